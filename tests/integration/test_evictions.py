"""Evictions by an agent on a real API server, of pods in real cgroups. No kubelet removes them."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

from agent.kube.errors import KubeError
from agent.kube.events import Regarding
from agent.kube.eviction import KILL_SECONDS, EvictionResult, delete, evict
from agent.usage import EVICTIONS_FILE
from agent.view import evictions as evictions_view
from agent.view.evictions import ShownEvictions
from tests.deploy.manifests import objects
from tests.fixtures.pods import run_pod
from tests.integration.apiserver.server import ApiServer
from tests.integration.harness import TestNode
from tests.integration.incluster import QOS, READ_RULES, WRITE_RULES, ClusterNode
from tests.waiting import eventually

NODE = "evicting"
PODS = f"/api/v1/namespaces/{NODE}/pods"
TIMEOUT_SECONDS = 90.0
COOLING_SECONDS = 8
RULES = [
    *READ_RULES,
    *WRITE_RULES,
    {"apiGroups": ["slo.koordinator.sh"], "resources": ["nodeslos"], "verbs": ["list", "watch"]},
    {"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]},
    {"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"]},
]
CONFIG = {
    "clusterStrategy": {
        "enable": True,
        "memoryEvictThresholdPercent": 1,
        "memoryEvictLowerPercent": 0,
    }
}
PRIORITIES = {"guarded": 5100, "victim": 5200, "next": 5300}
BUDGET = {
    "apiVersion": "policy/v1",
    "kind": "PodDisruptionBudget",
    "metadata": {"name": "keeps", "namespace": NODE},
    "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "guarded"}}},
}


class EvictingNode:
    """Three BE pods and a critical one, on a node that has more memory in use than it may."""

    def __init__(self, api: ApiServer, node: TestNode, folder: Path) -> None:
        self.api, self.node = api, node
        for definition in objects("crds"):
            api.apply(definition)
        (folder / "resource-threshold-config").write_text(json.dumps(CONFIG))
        self.flags = (
            *("--usage=true", "--node-slo=follow", f"--slo-config={folder}", "--colocation=act"),
            *("--evictions=BEMemoryEvict", f"--eviction-cooling-seconds={COOLING_SECONDS}"),
        )
        self.of_cluster = ClusterNode(api, node, NODE, RULES)
        api.account(NODE, "default", [])
        amounts = {"cpu": "8", "memory": "1Ti"}
        status = {"capacity": amounts, "allocatable": amounts}
        api.admin.merge(f"/api/v1/nodes/{NODE}/status", {"status": status})
        for name, value in PRIORITIES.items():
            body = {"metadata": {"name": f"evicting-{name}"}, "value": value}
            api.create("/apis/scheduling.k8s.io/v1/priorityclasses", body)
        for name in PRIORITIES:
            self.run(name, f"evicting-{name}")
        self.run("critical", "system-node-critical")
        api.create(f"/apis/policy/v1/namespaces/{NODE}/poddisruptionbudgets", BUDGET)

    def run(self, name: str, priority_class: str) -> None:
        spec = {
            "nodeName": NODE,
            "priorityClassName": priority_class,
            "automountServiceAccountToken": False,
            "containers": [{"name": "c", "image": "none"}],
        }
        metadata = {"name": name, "labels": {QOS: "BE", "app": name}}
        uid = self.api.create(PODS, {"metadata": metadata, "spec": spec})["metadata"]["uid"]
        # The API server asks no budget about pods that do not run.
        self.api.admin.merge(f"{PODS}/{name}/status", {"status": {"phase": "Running"}})
        of_runtime = self.node.spec(name, "BE", uid=str(uid), namespace=NODE)
        run_pod(self.node.direct, of_runtime)

    def start(self) -> None:
        self.of_cluster.start_agent(self.node, *self.flags)

    def need(self, memory: str) -> None:
        """The node has so much memory from now on."""
        status = {"capacity": {"memory": memory}}
        self.api.admin.merge(f"/api/v1/nodes/{NODE}/status", {"status": status})

    def deleted(self) -> dict[str, datetime.datetime]:
        """When the pods end that are leaving."""
        items = json.loads(self.api.admin.get(PODS))["items"]
        return {
            item["metadata"]["name"]: datetime.datetime.fromisoformat(
                item["metadata"]["deletionTimestamp"]
            )
            for item in items
            if "deletionTimestamp" in item["metadata"]
        }

    def notes(self, reason: str) -> dict[str, str]:
        """By pod, the note of the Event with this reason."""
        path = f"/apis/events.k8s.io/v1/namespaces/{NODE}/events"
        items: list[dict[str, Any]] = json.loads(self.api.admin.get(path))["items"]
        return {
            item["regarding"]["name"]: item["note"] for item in items if item["reason"] == reason
        }

    def told(self) -> ShownEvictions:
        try:
            return evictions_view.read(str(self.node.state / EVICTIONS_FILE))
        except FileNotFoundError:
            return ShownEvictions(acts=False)


def test_one_pod_after_the_other_leaves_but_not_those_that_a_budget_keeps(
    apiserver: ApiServer, node: TestNode, tmp_path: Path
) -> None:
    evicting = EvictingNode(apiserver, node, tmp_path)
    evicting.start()
    eventually("the agent has looked", lambda: evicting.told().pods, TIMEOUT_SECONDS)
    assert not evicting.deleted(), "hardly any of the terabyte is in use"
    other = Regarding(NODE, "victim", "00000000-0000-0000-0000-000000000000")
    assert evict(apiserver.admin, other) is EvictionResult.DELETED
    assert not evicting.deleted(), "the uid is another one"

    evicting.need("1Gi")
    eventually("a pod leaves", evicting.deleted, TIMEOUT_SECONDS)
    node.kill_agent()
    assert list(evicting.deleted()) == ["victim"], "the budget of the first one refuses"
    evicting.start()

    eventually("the next pod leaves", lambda: "next" in evicting.deleted(), TIMEOUT_SECONDS)
    deleted = evicting.deleted()
    assert deleted.keys() == {"victim", "next"}
    pause = deleted["next"] - deleted["victim"]
    assert pause >= datetime.timedelta(seconds=COOLING_SECONDS - 1)
    assert "memory is in use, and 1 % evicts. The pod is next by its priority 5300" in (
        eventual_note(evicting, "EvictedFromNode", "next")
    )
    assert "disruption budget" in eventual_note(evicting, "EvictionRefused", "guarded")
    assert node.metric('topolet_evicted_pods_total{feature="BEMemoryEvict"}') == 1
    eventually("people are told", lambda: told_of(node, "critical") != "", TIMEOUT_SECONDS)
    assert told_of(node, "critical") == "It is never evicted: it is critical."
    explained = node.run_cli("explain", "node", "colocation", f"--state-dir={node.state}").stdout
    assert "BEMemoryEvict: " in explained

    guarded = json.loads(apiserver.admin.get(f"{PODS}/guarded"))["metadata"]
    assert delete(apiserver.admin, other._replace(name="guarded")) is EvictionResult.DELETED
    assert "guarded" not in evicting.deleted(), "the uid is another one"
    of_uid = Regarding(NODE, "guarded", guarded["uid"])
    assert delete(apiserver.admin, of_uid) is EvictionResult.EVICTED
    killed = json.loads(apiserver.admin.get(f"{PODS}/guarded"))["metadata"]
    assert killed["deletionGracePeriodSeconds"] == KILL_SECONDS, "no budget is asked"


def eventual_note(evicting: EvictingNode, reason: str, pod: str) -> str:
    eventually("the Event is written", lambda: pod in evicting.notes(reason), TIMEOUT_SECONDS)
    return evicting.notes(reason)[pod]


def told_of(node: TestNode, name: str) -> str:
    done = node.run_cli(
        *("explain", "--values=here", f"--namespace={NODE}", "-o", "json"),
        *(f"--runtime-endpoint=unix://{node.containerd.socket}", f"--state-dir={node.state}", name),
    )
    try:
        return str(json.loads(done.stdout)["evictions"])
    except (ValueError, KeyError, KubeError):
        return ""
