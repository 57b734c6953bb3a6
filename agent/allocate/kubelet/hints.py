"""Which NUMA nodes a container or pod could take its exclusive CPUs from (peers.md §3.1)."""

from __future__ import annotations

from itertools import combinations
from typing import Final

import msgspec

from agent.allocate.kubelet.demand import PodCpu, cpus_of, pod_cpus
from agent.allocate.kubelet.state import StaticState
from agent.allocate.kubelet.static import StaticPolicy

MAX_NODES: Final = 16
"""NUMA nodes with CPUs for which all masks are listed (65,535 of them)."""


class CpuHint(msgspec.Struct, frozen=True):
    """`nodes`: ids of NUMA nodes as a bit mask."""

    nodes: int
    preferred: bool


class TooManyNodesError(ValueError):
    """The machine has more NUMA nodes with CPUs than hints can be listed for."""


def container_hints(
    policy: StaticPolicy, state: StaticState, pod: PodCpu, container: str
) -> tuple[CpuHint, ...] | None:
    """By size of the mask, then by its nodes; None: no preference; empty: can't be satisfied.

    A container that has its CPUs gets the masks that hold these. Raises KeyError where the pod has
    no such container, TooManyNodesError.
    """
    asked = cpus_of(pod, pod.container(container))
    if not asked:
        return None
    held = state.held(pod.uid, container)
    if held:
        return _hints(policy, held, 0, asked) if held.bit_count() == asked else ()
    return _hints(policy, policy.available(state), state.reusable_by(pod.uid), asked)


def pod_hints(policy: StaticPolicy, state: StaticState, pod: PodCpu) -> tuple[CpuHint, ...] | None:
    """The same for the pod as a whole. Raises TooManyNodesError."""
    asked = pod_cpus(pod)
    if not asked:
        return None
    assigned = 0
    for container in (*pod.init, *pod.containers):
        held = state.held(pod.uid, container.name)
        if held:
            if held.bit_count() != cpus_of(pod, container):
                return ()
            assigned |= held
    if assigned.bit_count() == asked:
        return _hints(policy, assigned, 0, asked)
    reusable = state.reusable_by(pod.uid) | assigned
    return _hints(policy, policy.available(state), reusable, asked)


def _hints(policy: StaticPolicy, available: int, bound: int, asked: int) -> tuple[CpuHint, ...]:
    """Masks with enough CPUs that have all nodes of the `bound` CPUs; a CPU that is available as
    well as bound counts once."""
    layout = policy.layout
    if len(layout.nodes) > MAX_NODES:
        raise TooManyNodesError(
            f"{len(layout.nodes)} NUMA nodes have CPUs: at most {MAX_NODES} can"
        )
    usable = available | bound
    width = max((node.id for node in layout.nodes), default=0) + 1
    low = (1 << width) - 1
    places = [(node.cpus & usable).bit_count() << width | 1 << node.id for node in layout.nodes]
    needed = sum(1 << node.id for node in layout.nodes if node.cpus & bound)
    smallest = _smallest([node.cpus.bit_count() for node in layout.nodes], asked)
    enough = asked << width
    return tuple(
        CpuHint(total & low, _preferred(policy, total & low, count, smallest))
        for count in range(1, len(places) + 1)
        for total in map(sum, combinations(places, count))
        if total >= enough and not needed & ~total
    )


def _smallest(sizes: list[int], asked: int) -> int:
    """The fewest NUMA nodes that could hold the request if all their CPUs were free."""
    held = 0
    for count, size in enumerate(sorted(sizes, reverse=True), 1):
        held += size
        if held >= asked:
            return count
    return len(sizes)


def _preferred(policy: StaticPolicy, nodes: int, count: int, smallest: int) -> bool:
    if count == smallest:
        return True
    layout = policy.layout
    per_socket = len(layout.nodes) // len(layout.sockets)
    if not policy.options.align_by_socket or not per_socket:
        return False
    cpus = sum(node.cpus for node in layout.nodes if nodes >> node.id & 1)
    touched = sum(1 for socket in layout.sockets if socket.cpus & cpus)
    return touched == -(-smallest // per_socket)
