"""A real kubelet with the topology manager policy restricted on four NUMA nodes of four CPUs admits
the pods that the scheduler's filter passes, and rejects the others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from agent.allocate.nrt.filter import filter
from agent.allocate.nrt.node import zoned_node
from agent.allocate.refusal import Reason, Refusal
from agent.model.nrt.node_annotations import AGENT_SETTINGS, CPU_MANAGER_POLICY
from agent.model.nrt.resource_topology import NodeTopology
from agent.model.pod import apiobjects
from agent.model.pod.numa_request import numa_request_of
from agent.node.kubelet_view import kubelet_resources, reserved
from agent.node.node_resource_topology import zones
from tests.fixtures.containerd import Containerd
from tests.integration.kubelet import standalone
from tests.integration.kubelet.standalone import NODE, Kubelet, container, running_pid
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(1200)

POLICY = "restricted"
NOTES = {
    CPU_MANAGER_POLICY: '{"policy": "static"}',
    AGENT_SETTINGS: '{"memoryManagerPolicy": "Static"}',
}


@pytest.fixture(scope="module")
def kubelet(containerd: Containerd, program_on_tmpfs: None) -> Iterator[Kubelet]:
    with standalone.running(containerd, more={"topologyManagerPolicy": POLICY}) as it:
        yield it


def filter_cause(kubelet: Kubelet, containers: list[dict[str, Any]]) -> Reason | None:
    """The cause why the filter rejects the pod, with the report of an agent; None if it passes."""
    allocatable = kubelet.client.allocatable()
    allocated = kubelet_resources(
        kubelet.client.pods(), kubelet.topology, allocatable
    ).pods.values()
    reported_zones = zones(kubelet.topology, allocated, reserved(kubelet.topology, allocatable))
    topology = NodeTopology(NODE, reported_zones, POLICY, "container", annotations=NOTES)
    pod = apiobjects.from_object(
        {"metadata": {"uid": "p", "name": "p"}, "spec": {"containers": containers}}
    )
    found = filter(zoned_node(topology, ()), numa_request_of(pod))
    return found.reason if isinstance(found, Refusal) else None


def admitted(kubelet: Kubelet, name: str, containers: list[dict[str, Any]]) -> bool:
    """Whether the kubelet admits such a pod; it exists until the test ends it."""
    full = kubelet.run(name, containers)
    rejected = (f'object="default/{full}"', 'reason="TopologyAffinityError"')
    outcome: list[bool] = []

    def decided() -> bool:
        if any(all(word in line for word in rejected) for line in kubelet.log.splitlines()):
            outcome.append(False)
        elif all(running_pid(kubelet, full, each["name"]) for each in containers):
            outcome.append(True)
        return bool(outcome)

    eventually(f"the kubelet decides about {name}", decided, standalone.START_SECONDS)
    return outcome[0]


def test_the_filter_and_a_kubelet_with_the_policy_restricted_agree(kubelet: Kubelet) -> None:
    """The kubelet takes the lowest NUMA node that has enough CPUs. In the end 3, 1, 0 and 1 CPUs of
    the NUMA nodes are free, five in all."""
    assert [len(node.cpus) for node in kubelet.topology.numa_nodes] == [4, 4, 4, 4]
    for name, cpus in (("a", 3), ("b", 1), ("c", 3), ("d", 2), ("e", 2), ("f", 3)):
        containers = [container("main", str(cpus))]
        assert filter_cause(kubelet, containers) is None
        assert admitted(kubelet, name, containers)
    for name in ("a", "b"):
        kubelet.end(name)
    four = [container("main", "4")]
    assert filter_cause(kubelet, four) is Reason.NO_PREFERRED_HOLDS
    assert not admitted(kubelet, "four", four)
    kubelet.end("four")
