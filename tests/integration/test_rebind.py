"""A RebindResource on a real API server, with a real runtime: the scheduler changes annotations
with the role of its overlay, and the agent moves the containers.

The machine of this test has two NUMA nodes of one CPU each. Two pods are bound to both NUMA nodes,
and the plan binds each pod to one."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.__main__ import main
from agent.kube.errors import NotFoundError
from agent.model.nrt.node_annotations import CPU_TOPOLOGY
from agent.node.rebinds import PERIOD_SECONDS, UNTAKEN_SECONDS
from tests.fixtures import trees
from tests.fixtures.pods import run_pod
from tests.integration.apiserver.server import ApiServer
from tests.integration.harness import TestNode
from tests.integration.incluster import QOS, READ_RULES, STATUS, TOPOLOGY, WRITE_RULES, Account
from tests.integration.scheduling import NO_AGENT_PODS, REBINDS, Scheduler, write_kubeconfig
from tests.waiting import eventually

Object = dict[str, Any]

TIMEOUT_SECONDS = 60.0
BOTH = {
    "numaNodeResources": [
        {"node": 0, "resources": {"cpu": "200m"}},
        {"node": 1, "resources": {"cpu": "200m"}},
    ]
}


class FragmentedNode:
    """A node with two pods that are bound to both of its NUMA nodes."""

    def __init__(self, api: ApiServer, node: TestNode, name: str, config: Path) -> None:
        self.api, self.node, self.name, self.config = api, node, name, config
        api.namespace(name)
        api.node(name)
        api.account(name, "agent", [*READ_RULES, *WRITE_RULES])
        api.account(name, "default", [])
        account = Account(api, node)
        account.write_token(api.token(name, "agent"))
        self.containers: dict[str, str] = {}
        for pod in ("a", "b"):
            made = api.pod(
                name,
                pod,
                name,
                labels={QOS: "LS"},
                annotations={STATUS: json.dumps(BOTH)},
            )
            uid = str(made["metadata"]["uid"])
            self.containers[pod] = run_pod(node.direct, node.spec(pod, "LS", uid=uid))[1]
        root = trees.write(str(node.folder / "machine"), trees.machine(2, 1, 1, 1, 1))
        (Path(root) / "proc").mkdir(exist_ok=True)
        account.start_agent(node, f"--root={root}", f"--node-name={name}")
        # The scheduler reads the CPUs from this report.
        eventually("the CPUs are reported", self.reported, TIMEOUT_SECONDS)
        self.wait_for_cpus(a="0-1", b="0-1")

    def reported(self) -> bool:
        try:
            found = json.loads(self.api.admin.get(TOPOLOGY + self.name))
        except NotFoundError:
            return False
        return CPU_TOPOLOGY in found["metadata"].get("annotations", {})

    def wait_for_cpus(self, **cpus: str) -> None:
        eventually(f"on {cpus}", lambda: self.cpus() == cpus, TIMEOUT_SECONDS)

    def cpus(self) -> dict[str, str]:
        """The CPUs of the running containers, from the kernel."""
        return {pod: self.node.cpus(each) for pod, each in self.containers.items()}

    def numa_nodes(self) -> dict[str, list[int]]:
        """The NUMA nodes in the annotations of the pods."""
        found = {}
        for pod in self.containers:
            path = f"/api/v1/namespaces/{self.name}/pods/{pod}"
            notes = json.loads(self.api.admin.get(path))["metadata"]["annotations"]
            parts = json.loads(notes[STATUS])["numaNodeResources"]
            found[pod] = [each["node"] for each in parts]
        return found

    def rebind(self, name: str, **spec: Any) -> None:
        wanted = {
            "apiVersion": "scheduling.koordinator.sh/v1alpha1",
            "kind": "RebindResource",
            "metadata": {"name": name},
            "spec": {"nodeName": self.name, "rebindAction": "RebindCPU", **spec},
        }
        self.api.create(REBINDS, wanted)

    def status(self, name: str) -> Object:
        found: Object = json.loads(self.api.admin.get(f"{REBINDS}/{name}"))["status"]
        return found

    def wait_for_end(self, name: str) -> Object:
        eventually(
            f"{name} has ended",
            lambda: (
                self.status(name).get("updateTimestamp") and self.status(name)["phase"] != "Pending"
            ),
            TIMEOUT_SECONDS,
        )
        return self.status(name)


@pytest.fixture
def config(apiserver: ApiServer, tmp_path: Path) -> Path:
    path = tmp_path / "kubeconfig"
    write_kubeconfig(apiserver, path)
    return path


@pytest.fixture
def scheduler(config: Path, tmp_path: Path) -> Iterator[Scheduler]:
    with Scheduler(tmp_path, config) as it:
        yield it


def operators_token(apiserver: ApiServer, namespace: str) -> str:
    """The token of an account with the role for `topolet rebind`."""
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    apiserver.create(accounts, {"metadata": {"name": "operator"}})
    body: Object = {"metadata": {"name": f"rebind-{namespace}"}}
    role = {
        "apiGroup": "rbac.authorization.k8s.io",
        "kind": "ClusterRole",
        "name": "topolet-rebind",
    }
    subject = {"kind": "ServiceAccount", "name": "operator", "namespace": namespace}
    body |= {"roleRef": role, "subjects": [subject]}
    apiserver.create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", body)
    return apiserver.token(namespace, "operator")


def test_pods_are_rebound_while_their_containers_run(
    apiserver: ApiServer,
    node: TestNode,
    config: Path,
    scheduler: Scheduler,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fragmented = FragmentedNode(apiserver, node, "fragmented", config)
    fragmented.rebind("untaken")
    assert fragmented.status("untaken")["phase"] == "Unknown"
    assert "no controller has taken it" in fragmented.status("untaken")["reason"]
    apiserver.admin.delete(f"{REBINDS}/untaken")

    scheduler.start(NO_AGENT_PODS)
    scheduler.until_ready()
    fragmented.rebind("dry", dryRun=True)
    shown = fragmented.wait_for_end("dry")
    assert (shown["phase"], shown["reason"]) == ("Succeed", "dry run; pods to move: 2")
    assert len(shown["plan"]["moves"]) == 2
    assert fragmented.numa_nodes() == {"a": [0, 1], "b": [0, 1]}

    fragmented.rebind("rebind")
    shown = fragmented.wait_for_end("rebind")
    assert (shown["phase"], shown["reason"]) == ("Succeed", "pods moved: 2"), scheduler.log()
    before, after = shown["plan"]["before"], shown["plan"]["after"]
    assert (before["numaCrossings"], after["numaCrossings"]) == (2, 0)
    assert fragmented.numa_nodes() == {"a": [0], "b": [0]}
    fragmented.wait_for_cpus(a="0", b="0")

    # An operator without other permissions uses the command.
    operator = tmp_path / "operator"
    operator.write_text(
        json.dumps(apiserver.kubeconfig(operators_token(apiserver, fragmented.name)))
    )
    assert main(["rebind", fragmented.name, f"--kubeconfig={operator}", "--wait"]) == 0
    assert "Succeed: no pods could be placed better" in capsys.readouterr().out
    fragmented.rebind("nowhere", nodeName="nowhere")
    shown = fragmented.wait_for_end("nowhere")
    assert (shown["phase"], shown["reason"]) == ("Failed", "node nowhere does not exist")


def test_a_restarted_scheduler_completes_the_rebind_of_a_killed_one(
    apiserver: ApiServer, node: TestNode, config: Path, scheduler: Scheduler
) -> None:
    fragmented = FragmentedNode(apiserver, node, "killed", config)
    scheduler.start(NO_AGENT_PODS)
    scheduler.until_ready()
    fragmented.rebind("rebind-killed")
    eventually("the plan is written", lambda: "plan" in fragmented.status("rebind-killed"))
    scheduler.end(signal.SIGKILL)
    assert fragmented.status("rebind-killed")["plan"]["moves"]
    scheduler.start(NO_AGENT_PODS)
    scheduler.until_ready()
    shown = fragmented.wait_for_end("rebind-killed")
    assert shown["phase"] == "Succeed", (shown, scheduler.log())
    assert fragmented.numa_nodes() == {"a": [0], "b": [0]}
    fragmented.wait_for_cpus(a="0", b="0")


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_agent_of_the_node_reports_that_no_scheduler_serves_it(
    apiserver: ApiServer, node: TestNode, config: Path
) -> None:
    fragmented = FragmentedNode(apiserver, node, "alone", config)
    fragmented.rebind("nobody-serves")
    timeout_seconds = 3 * (PERIOD_SECONDS + UNTAKEN_SECONDS)
    eventually(
        "failed", lambda: fragmented.status("nobody-serves")["phase"] == "Failed", timeout_seconds
    )
    assert fragmented.status("nobody-serves")["reason"].startswith("NoController: ")
    fragmented.wait_for_cpus(a="0-1", b="0-1")
