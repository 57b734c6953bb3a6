"""Which NUMA nodes a container or pod could take its exclusive CPUs from (peers.md §3.1)."""

from __future__ import annotations

from agent.allocate.bits import members
from agent.allocate.kubelet.demand import PodCpu, cpus_of, pod_cpus
from agent.allocate.kubelet.policy import StaticPolicy
from agent.allocate.kubelet.state import StaticState
from agent.allocate.numa.hint import Hint
from agent.allocate.numa.masks import of_nodes, subsets


def container_hints(
    policy: StaticPolicy, state: StaticState, pod: PodCpu, container: str
) -> tuple[Hint, ...] | None:
    """In the order of `subsets`, whose limit holds; None: no preference; empty: can't be satisfied.

    A container that has its CPUs gets the masks that hold these. Raises KeyError where the pod has
    no such container.
    """
    asked = cpus_of(pod, pod.container(container))
    if not asked:
        return None
    held = state.held(pod.uid, container)
    if held:
        return _hints(policy, held, 0, asked) if held.bit_count() == asked else ()
    return _hints(policy, policy.available(state), state.reusable_by(pod.uid), asked)


def pod_hints(policy: StaticPolicy, state: StaticState, pod: PodCpu) -> tuple[Hint, ...] | None:
    """The same for the pod as a whole."""
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


def _hints(policy: StaticPolicy, available: int, bound: int, asked: int) -> tuple[Hint, ...]:
    """Masks with enough CPUs that have all nodes of the `bound` CPUs; a CPU that is available as
    well as bound counts once."""
    layout = policy.layout
    usable = available | bound
    places = [(1 << node.id, (node.cpus & usable).bit_count()) for node in layout.nodes]
    needed = of_nodes(layout.node_ids(bound))
    smallest = _smallest([node.cpus.bit_count() for node in layout.nodes], asked)
    return tuple(
        Hint(mask, _preferred(policy, mask, smallest))
        for mask in subsets(node.id for node in layout.nodes)
        if not needed & ~mask and sum(held for node, held in places if node & mask) >= asked
    )


def _smallest(sizes: list[int], asked: int) -> int:
    """The fewest NUMA nodes that could hold the request if all their CPUs were free."""
    held = 0
    for count, size in enumerate(sorted(sizes, reverse=True), 1):
        held += size
        if held >= asked:
            return count
    return len(sizes)


def _preferred(policy: StaticPolicy, mask: int, smallest: int) -> bool:
    if mask.bit_count() == smallest:
        return True
    layout = policy.layout
    per_socket = len(layout.nodes) // len(layout.sockets)
    if not policy.options.align_by_socket or not per_socket:
        return False
    cpus = layout.of_nodes(members(mask))
    touched = sum(1 for socket in layout.sockets if socket.cpus & cpus)
    return touched == -(-smallest // per_socket)
