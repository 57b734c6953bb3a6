"""Builders of nodes, pod allocations, requests and offers of CPUs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from agent.allocate.node_allocation import Amounts, NodeAllocation, PodAllocation, TopologyOptions
from agent.allocate.node_allocator.cpus import CpuOffer, cpu_offer
from agent.model.cpu import layout
from agent.model.cpu.cpuset import CpuSet
from agent.model.cpu.policies import ExclusivePolicy
from agent.model.pod.qos import QoS
from agent.model.pod.resource_request import ResourceRequest
from conformance import machines

GIB = 1 << 30


def node_options(shape: tuple[int, int, int, int] = (2, 1, 4, 2), **more: Any) -> TopologyOptions:
    """Siblings are adjacent; each NUMA node has its CPUs and 16 GiB."""
    made = layout.of(machines.cpus(shape, "adjacent"))
    zones = {
        node.id: {"cpu": 1000 * node.cpus.bit_count(), "memory": 16 * GIB} for node in made.nodes
    }
    return TopologyOptions(**{"layout": made, "numa_allocatable": zones, **more})


def owner(cpus: int, memory_gib: int = 0, uid: str = "a", **more: Any) -> ResourceRequest:
    """An LSR pod that requests this number of CPUs."""
    return ResourceRequest(
        uid, f"ns/{uid}", QoS.LSR, owner=True, requests=_requests(cpus * 1000, memory_gib), **more
    )


def ls_pod(cpu_milli: int, memory_gib: int = 0, uid: str = "a", **more: Any) -> ResourceRequest:
    """An LS pod that requests this amount of CPU."""
    return ResourceRequest(
        uid, f"ns/{uid}", QoS.LS, requests=_requests(cpu_milli, memory_gib), **more
    )


def claim(
    uid: str,
    cpus: str = "",
    amounts: Amounts | None = None,
    exclusive: ExclusivePolicy = ExclusivePolicy.NONE,
) -> PodAllocation:
    """A pod with these CPUs and amounts."""
    own = CpuSet.parse(cpus)
    return PodAllocation(uid, f"ns/{uid}", own, exclusive, amounts or {}, 1000 * len(own))


def allocated(node: TopologyOptions, held: Iterable[PodAllocation] = ()) -> NodeAllocation:
    """The node with these pods on it."""
    node_allocation = NodeAllocation(node)
    for each in held:
        node_allocation.add(each)
    return node_allocation


def offered(node: TopologyOptions, request: ResourceRequest, *held: PodAllocation) -> CpuOffer:
    """The offer of a node with these pods on it."""
    answer = cpu_offer(node, allocated(node, held), request)
    assert isinstance(answer, CpuOffer), answer
    return answer


def _requests(cpu_milli: int, memory_gib: int) -> dict[str, int]:
    requested = {"cpu": cpu_milli, "memory": memory_gib * GIB}
    return {name: amount for name, amount in requested.items() if amount}
