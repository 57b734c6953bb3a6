"""A day of an agent in a cluster, accelerated. After every step the agent's report is compared with
one that is computed from the API server's objects alone."""

from __future__ import annotations

import copy
import itertools
import json
import random
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.kube.errors import KubeError
from agent.model.cpu.cpuset import CpuSet, union
from agent.model.nrt import resource_topology as fingerprint
from agent.model.nrt.resource_topology import decode
from agent.node.outbox import ReportPace
from tests.deploy.manifests import objects
from tests.fixtures import constants, trees
from tests.integration.apiserver import server
from tests.integration.apiserver.server import ApiServer
from tests.integration.harness import TestNode
from tests.integration.incluster import QOS, STATUS, Account
from tests.waiting import eventually

NODE = "node-a"
SOCKETS, NODES, CORES = 2, 2, 16
PER_NODE = CORES * 2
CPUS = SOCKETS * NODES * PER_NODE
WAVE, WAVES = 100, 10
TOPOLOGIES = "/apis/topology.node.k8s.io/{}/noderesourcetopologies"
TIMEOUT_SECONDS = 60.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """A separate API server, without policies and with only the older version of the kind."""
    with server.running(tmp_path_factory.mktemp("day")) as it:
        for each in objects("crds", "base"):
            if each["metadata"]["name"].startswith("noderesourcetopologies"):
                each = single_version(each, "v1alpha1")
            if each["kind"] != "DaemonSet":
                it.apply(each)
        it.node(NODE)
        it.create("/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "default"}})
        yield it


def single_version(definition: dict[str, Any], version: str) -> dict[str, Any]:
    kept = copy.deepcopy(definition)
    kept["spec"]["versions"] = [
        {**each, "storage": True}
        for each in definition["spec"]["versions"]
        if each["name"] == version
    ]
    return kept


class Day:
    """The actions of users and controllers in the cluster."""

    def __init__(self, api: ApiServer, node: TestNode) -> None:
        self.api = api
        self.node = node
        self.version = "v1alpha1"
        self.rng = random.Random(7)
        self._numbers = itertools.count()
        self._names = itertools.count()
        self._root = trees.write(
            str(node.folder / "machine"), trees.machine(SOCKETS, NODES, 1, CORES, 2)
        )
        (Path(self._root) / "proc").mkdir(exist_ok=True)
        self._account = Account(api, node)
        self._agents_pod = ""
        self.rotate()

    def start(self) -> None:
        self.node.constants["agent"] = constants.recheck(2)
        self._account.start_agent(self.node, f"--root={self._root}")

    def rotate(self) -> None:
        """Writes another token and revokes the last one."""
        last, self._agents_pod = self._agents_pod, f"agent-{next(self._names)}"
        space = "topolet-system"
        self.api.pod(space, self._agents_pod, NODE, "topolet-agent")
        self._account.write_token(self.api.token(space, "topolet-agent", pod=self._agents_pod))
        if last:
            self._remove(space, last)

    def pods(self) -> list[dict[str, Any]]:
        query = {"fieldSelector": f"spec.nodeName={NODE}"}
        items: list[dict[str, Any]] = json.loads(self.api.admin.get("/api/v1/pods", query))["items"]
        return items

    def create_pods(self, count: int) -> None:
        """Creates pods, half of them with exclusive CPUs."""
        free = sorted(CpuSet(range(CPUS)) - self._claimed() - CpuSet([0]))
        self.rng.shuffle(free)
        for number in range(count):
            name = f"p{next(self._numbers)}"
            metadata: dict[str, Any] = {"labels": {QOS: "LS"}}
            if number % 2 and len(free) > 4:
                own = CpuSet(free.pop() for _ in range(self.rng.randint(1, 4)))
                metadata = {
                    "labels": {QOS: self.rng.choice(["LSE", "LSR"])},
                    "annotations": {STATUS: json.dumps({"cpuset": str(own)})},
                }
            self.api.pod("default", name, NODE, **metadata)

    def change_pods(self, count: int) -> None:
        """Starts, ends or deletes so many pods."""
        phases = {
            each["metadata"]["name"]: each["status"]["phase"]
            for each in self.pods()
            if each["metadata"]["namespace"] == "default"
        }
        for name in self.rng.sample(sorted(phases), min(count, len(phases))):
            match self.rng.randrange(4), phases[name]:
                case 0, "Pending":
                    self._phase(name, "Running")
                case 1, "Pending" | "Running":
                    self._phase(name, "Succeeded")
                case _:
                    self._remove("default", name)

    def reported(self, version: str = "") -> dict[str, Any]:
        path = TOPOLOGIES.format(version or self.version)
        found: dict[str, Any] = json.loads(self.api.admin.get(f"{path}/{NODE}"))
        return found

    def report_is_correct(self) -> bool:
        """Whether zones, pools and fingerprint are those of the machine and its pods."""
        path = TOPOLOGIES.format(self.version)
        try:
            listed = json.loads(self.api.admin.get(path))["items"]
        except KubeError:  # a kind that was just added
            return False
        if not listed:
            return False
        found = decode(listed[0])
        claimed = self._claimed()
        started_pods = [
            (each["metadata"]["namespace"], each["metadata"]["name"])
            for each in self.pods()
            if each["status"]["phase"] != "Pending"
        ]
        zones = {zone.node: zone.resources["cpu"] for zone in found.zones}
        pools = json.loads(found.annotations["node.koordinator.sh/cpu-shared-pools"])
        return (
            found.fingerprint == fingerprint.fingerprint_of(started_pods)
            and union(CpuSet.parse(each["cpuset"]) for each in pools)
            == CpuSet(range(CPUS)) - claimed
            and {node: (cpu.capacity, cpu.available) for node, cpu in zones.items()}
            == {
                node: (1000 * PER_NODE, 1000 * len(on_node(node) - claimed))
                for node in range(SOCKETS * NODES)
            }
        )

    def wait_for_report(self, step: str) -> None:
        eventually(f"the report is correct after {step}", self.report_is_correct, TIMEOUT_SECONDS)

    def _claimed(self) -> CpuSet:
        return union(
            CpuSet.parse(json.loads(notes[STATUS])["cpuset"])
            for each in self.pods()
            if each["status"]["phase"] not in ("Succeeded", "Failed")
            if STATUS in (notes := each["metadata"].get("annotations", {}))
        )

    def _phase(self, name: str, phase: str) -> None:
        path = f"/api/v1/namespaces/default/pods/{name}/status"
        self.api.admin.merge(path, {"status": {"phase": phase}})

    def _remove(self, namespace: str, name: str) -> None:
        path = f"/api/v1/namespaces/{namespace}/pods/{name}"
        self.api.admin.request("DELETE", path, {"gracePeriodSeconds": 0})


def on_node(node: int) -> CpuSet:
    """The CPUs of a NUMA node: the machine numbers the first threads of all cores first."""
    first = range(node * CORES, (node + 1) * CORES)
    return CpuSet([*first, *(cpu + CPUS // 2 for cpu in first)])


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_day(cluster: ApiServer, node: TestNode) -> None:
    day = Day(cluster, node)
    day.start()
    day.wait_for_report("the start")
    metadata = day.reported()["metadata"]
    uid = json.loads(cluster.admin.get(f"/api/v1/nodes/{NODE}"))["metadata"]["uid"]
    assert [(each["kind"], each["uid"]) for each in metadata["ownerReferences"]] == [("Node", uid)]
    assert metadata["labels"]["app.kubernetes.io/managed-by"] == "topolet"

    for wave in range(WAVES):
        before = node.metric('topolet_reports_total{result="written"}')
        start = time.monotonic()
        day.create_pods(WAVE)
        match wave:
            case 2:
                cluster.restart_server()
            case 4:
                day.rotate()
            case 6:
                cluster.kill_server()
                cluster.compact()
                cluster.start_server()
            case 8:
                node.kill_agent()
                day.start()
                before = 0
        day.wait_for_report(f"wave {wave}")
        written = node.metric('topolet_reports_total{result="written"}') - before
        settled = (time.monotonic() - start) / ReportPace().settle_seconds
        assert written <= max(5, 1 + settled), "at most one write per settle period"
        day.change_pods(WAVE - 10)
        day.wait_for_report(f"the deletions of wave {wave}")

    wait_for_unchanged_reports(node, 1)
    quiet = day.reported()["metadata"]["resourceVersion"]
    wait_for_unchanged_reports(node, 3)
    assert day.reported()["metadata"]["resourceVersion"] == quiet, "an idle node writes nothing"

    labels = {"topology.topolet.io/cpus": None, "topology.topolet.io/smt": "maybe", "other": "1"}
    cluster.admin.merge(f"/api/v1/nodes/{NODE}", {"metadata": {"labels": labels}})

    def relabelled() -> bool:
        found = json.loads(cluster.admin.get(f"/api/v1/nodes/{NODE}"))["metadata"]["labels"]
        own = found.get("topology.topolet.io/cpus"), found.get("topology.topolet.io/smt")
        return (*own, found.get("other")) == (str(CPUS), "true", "1")

    eventually("the agent's labels are restored", relabelled, TIMEOUT_SECONDS)

    body = day.reported()
    zones = [{"name": "card-0", "type": "Card", "resources": []}, *body["zones"]]
    zones[1]["resources"][0]["available"] = "0"
    notes = {"other.io/note": "1", "node.koordinator.sh/cpu-shared-pools": "[]"}
    path = f"{TOPOLOGIES.format(day.version)}/{NODE}"
    cluster.admin.merge(path, {"zones": zones, "metadata": {"annotations": notes}})
    day.wait_for_report("another writer")
    after = day.reported()
    assert "card-0" in [zone["name"] for zone in after["zones"]]
    assert after["metadata"]["annotations"]["other.io/note"] == "1"

    for each in objects("crds"):
        cluster.apply(each)
    day.version = "v1alpha2"
    eventually("the newer version is served", lambda: served(cluster), TIMEOUT_SECONDS)
    eventually("the newer version is written", lambda: upgraded(day), TIMEOUT_SECONDS)
    day.create_pods(WAVE)
    day.wait_for_report("the upgrade")
    named = {each["name"]: each["value"] for each in day.reported()["attributes"]}
    assert named["topologyManagerPolicy"] == "none"
    assert "card-0" in [zone["name"] for zone in day.reported()["zones"]]
    log = node.log("agent")
    assert not re.findall("Traceback|the pass failed", log), log
    node.stop_agent()


def wait_for_unchanged_reports(node: TestNode, times: int) -> None:
    """Waits until so many further reports were equal to the stored objects."""
    series = 'topolet_reports_total{result="unchanged"}'
    wanted = node.metric(series) + times
    eventually("the reports are unchanged", lambda: node.metric(series) >= wanted, TIMEOUT_SECONDS)


def upgraded(day: Day) -> bool:
    try:
        return "attributes" in day.reported()
    except KubeError:  # a version that was just added
        return False


def served(cluster: ApiServer) -> bool:
    group = json.loads(cluster.admin.get("/apis/topology.node.k8s.io"))
    return "v1alpha2" in [each["version"] for each in group["versions"]]
