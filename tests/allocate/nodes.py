"""Nodes, pods and what they ask, small and readable."""

from __future__ import annotations

from typing import Any

from agent.allocate import layout
from agent.allocate.pod_allocation import PodAllocation
from agent.allocate.resource_request import ResourceRequest
from agent.allocate.topology_options import Amounts, TopologyOptions
from agent.conformance import machines
from agent.model.cpuset import CpuSet
from agent.model.policies import ExclusivePolicy
from agent.model.qos import QoS

GIB = 1 << 30


def facts(shape: tuple[int, int, int, int] = (2, 1, 4, 2), **more: Any) -> TopologyOptions:
    """Siblings side by side; each NUMA node has its CPUs and 16 GiB."""
    made = layout.of(machines.cpus(shape, "adjacent"))
    zones = {
        node.id: {"cpu": 1000 * node.cpus.bit_count(), "memory": 16 * GIB} for node in made.nodes
    }
    return TopologyOptions(**{"layout": made, "zones": zones, **more})


def owner(cpus: int, memory_gib: int = 0, uid: str = "a", **more: Any) -> ResourceRequest:
    """An LSR pod of so many CPUs."""
    return ResourceRequest(
        uid, f"ns/{uid}", QoS.LSR, owner=True, requests=_requests(cpus * 1000, memory_gib), **more
    )


def sharer(cpu_milli: int, memory_gib: int = 0, uid: str = "a", **more: Any) -> ResourceRequest:
    """An LS pod of so much CPU."""
    return ResourceRequest(
        uid, f"ns/{uid}", QoS.LS, requests=_requests(cpu_milli, memory_gib), **more
    )


def claim(
    uid: str,
    cpus: str = "",
    amounts: Amounts | None = None,
    exclusive: ExclusivePolicy = ExclusivePolicy.NONE,
) -> PodAllocation:
    """A pod that holds these CPUs and amounts."""
    own = CpuSet.parse(cpus)
    return PodAllocation(uid, f"ns/{uid}", own, exclusive, amounts or {}, 1000 * len(own))


def _requests(cpu_milli: int, memory_gib: int) -> dict[str, int]:
    asked = {"cpu": cpu_milli, "memory": memory_gib * GIB}
    return {name: amount for name, amount in asked.items() if amount}
