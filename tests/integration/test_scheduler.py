"""A real kube-scheduler that asks `topolet scheduler`, with real objects and no kubelet."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from agent.model.cpuset import CpuSet
from tests.integration.apiserver.server import ApiServer
from tests.integration.kubescheduler import objects
from tests.integration.kubescheduler.company import PROFILE, Topolet, company
from tests.integration.kubescheduler.hosts import Hosts, furnish, hosts
from tests.waiting import eventually

PATIENCE_SECONDS = 60.0
PROMISED_SECONDS = 10.0
STATUS = "scheduling.koordinator.sh/resource-status"
ALLOCATED = "scheduling.koordinator.sh/device-allocated"
NUMA_SPEC = "scheduling.koordinator.sh/numa-topology-spec"
JOINT = "scheduling.koordinator.sh/device-joint-allocate"
GROUP = "topolet.io/group"
ONE_NODE = {NUMA_SPEC: json.dumps({"numaTopologyPolicy": "SingleNUMANode"})}
MEMORY = {"memory": "64Mi"}
# Two NUMA nodes of 8 CPUs.
SHAPE = (2, 1, 4, 2)

Pod = dict[str, Any]


@pytest.fixture(scope="module")
def topolet(apiserver: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topolet]:
    furnish(apiserver)
    with company(apiserver, tmp_path_factory.mktemp("scheduler")) as it:
        yield it


class Yard:
    """Hosts and pods of one test."""

    def __init__(self, api: ApiServer, name: str, hosts: Hosts) -> None:
        self.api = api
        self.name = name
        self.hosts = hosts

    def ask(
        self,
        name: str,
        requests: dict[str, str],
        qos: str = "",
        notes: dict[str, str] | None = None,
        **spec: Any,
    ) -> None:
        """A pod that wants a node of the test's."""
        labels = {"koordinator.sh/qosClass": qos} if qos else {}
        pod = objects.pending(
            self.name,
            name,
            {**MEMORY, **requests},
            scheduler=PROFILE,
            labels=labels,
            annotations=notes,
            nodeSelector=self.hosts.selector,
            **spec,
        )
        objects.create(self.api, pod)

    def pods(self) -> dict[str, Pod]:
        return objects.pods(self.api, self.name)

    def bound(self) -> dict[str, Pod]:
        return {name: pod for name, pod in self.pods().items() if "nodeName" in pod["spec"]}

    def wait_bound(self, *names: str, seconds: float = PATIENCE_SECONDS) -> dict[str, Pod]:
        eventually(
            f"bound: {', '.join(names[:5])}",
            lambda: self.bound().keys() >= set(names),
            seconds,
        )
        return self.bound()

    def wait_refused(self, name: str) -> str:
        """The reason that people read."""

        def reason() -> str:
            for each in self.pods()[name]["status"].get("conditions", []):
                if each["type"] == "PodScheduled" and each["status"] == "False":
                    return str(each.get("message", ""))
            return ""

        eventually(f"{name} refused", reason, PATIENCE_SECONDS)
        return reason()


@pytest.fixture
def yard(apiserver: ApiServer, topolet: Topolet, request: pytest.FixtureRequest) -> Iterator[Yard]:
    name = request.node.originalname.removeprefix("test_").replace("_", "-")[:40].strip("-")
    objects.namespace(apiserver, name)
    with hosts(apiserver, name) as it:
        yard = Yard(apiserver, name, it)
        yield yard
        for pod in yard.pods():
            objects.end(apiserver, name, pod)


def cpus(pod: Pod) -> CpuSet:
    return CpuSet.parse(json.loads(pod["metadata"]["annotations"][STATUS]).get("cpuset", ""))


def devices(pod: Pod) -> Any:
    return json.loads(pod["metadata"]["annotations"][ALLOCATED])


def test_lse(yard: Yard) -> None:
    node = yard.hosts.add(SHAPE)
    yard.ask("a", {"cpu": "4"}, "LSE")
    pod = yard.wait_bound("a")["a"]
    assert pod["spec"]["nodeName"] == node
    assert len(cpus(pod)) == 4


def test_ls_on_a_single_numa_node(yard: Yard) -> None:
    yard.hosts.add(SHAPE)
    for name in ("a", "b"):
        yard.ask(name, {"cpu": "5"}, "LS", ONE_NODE)
    bound = yard.wait_bound("a", "b")
    homes = [
        [
            each["node"]
            for each in json.loads(pod["metadata"]["annotations"][STATUS])["numaNodeResources"]
        ]
        for pod in bound.values()
    ]
    assert sorted(homes) == [[0], [1]]
    yard.ask("c", {"cpu": "5"}, "LS", ONE_NODE)
    assert "cpu" in yard.wait_refused("c")
