"""Placing and removing containers under the kubelet's static CPU manager policy (peers.md §3.1), as
functions from one state to the next.

Containers of Guaranteed pods that request whole CPUs get CPUs of their own; all others share the
default set. Three answers differ from the kubelet's on purpose: with full-pcpus-only no half core
is handed out, the default set is never emptied, and an init container that is placed again makes no
CPUs reusable that another container of its pod runs on.
"""

from __future__ import annotations

from collections.abc import Iterable

from agent.allocate.kubelet.demand import PodCpu, exclusive_cpus
from agent.allocate.kubelet.packed import NotEnoughCpusError
from agent.allocate.kubelet.placement import Exclusive, Placement, RefusalReason, Refused, Shared
from agent.allocate.kubelet.policy import StaticPolicy
from agent.allocate.kubelet.state import StaticState
from agent.allocate.kubelet.take import of_whole_cores, take_aligned


def allocate(
    policy: StaticPolicy,
    state: StaticState,
    pod: PodCpu,
    container: str,
    nodes: Iterable[int] | None = None,
) -> tuple[StaticState, Placement]:
    """Places a container; `nodes`: ids of the NUMA nodes to take from first. Raises KeyError where
    the pod has no such container."""
    asked = exclusive_cpus(pod, pod.container(container))
    if not isinstance(asked, int):
        return state, Shared(asked)
    held = state.held(pod.uid, container)
    refused = _smt_refusal(policy, state, asked, held)
    if refused is not None:
        return state, refused
    reusable = state.reusable_by(pod.uid)
    if held:
        return _with_reusable(state, pod, container, held), Exclusive(held, repeated=True)
    allocatable = policy.available(state) | reusable
    cpus = _chosen(policy, allocatable, asked, nodes)
    if isinstance(cpus, Refused):
        return state, cpus
    default = state.default & ~cpus
    if not default and state.default:
        reason = RefusalReason.DEFAULT_EMPTIED
        return state, _refused(policy, reason, asked, allocatable.bit_count())
    placed = StaticState(
        default,
        state.with_assigned(pod.uid, container, cpus),
        state.reusable_of,
        state.reusable,
    )
    return _with_reusable(placed, pod, container, cpus), Exclusive(cpus, cpus & reusable)


def remove(state: StaticState, uid: str, container: str) -> StaticState:
    """Takes a container's CPUs back, but those that others of its pod have too."""
    cpus = state.held(uid, container)
    if not cpus:
        return state
    assigned = state.without(uid, container)
    for held in assigned.get(uid, {}).values():
        cpus &= ~held
    return StaticState(state.default | cpus, assigned, state.reusable_of, state.reusable)


def _smt_refusal(policy: StaticPolicy, state: StaticState, asked: int, held: int) -> Refused | None:
    """The kubelet looks at this even where the container has its CPUs, and counts no reusable."""
    if not policy.options.full_pcpus_only:
        return None
    free = (state.default & ~policy.reserved_cores).bit_count()
    if asked % policy.layout.threads:
        return _refused(policy, RefusalReason.NO_WHOLE_CORES, asked, free, held)
    if asked > free:
        return _refused(policy, RefusalReason.NOT_ENOUGH_CORES, asked, free, held)
    return None


def _refused(
    policy: StaticPolicy, reason: RefusalReason, asked: int, available: int, held: int = 0
) -> Refused:
    return Refused(reason, asked, available, policy.layout.threads, held)


def _chosen(
    policy: StaticPolicy, allocatable: int, asked: int, nodes: Iterable[int] | None
) -> int | Refused:
    layout, options = policy.layout, policy.options
    try:
        first = 0
        if nodes is not None:
            aligned = allocatable & _aligned(policy, nodes)
            usable = of_whole_cores(layout, aligned) if options.full_pcpus_only else aligned
            first = take_aligned(layout, aligned, min(asked, usable.bit_count()), options)
        rest = allocatable & ~first
        return first | take_aligned(layout, rest, asked - first.bit_count(), options)
    except NotEnoughCpusError:
        if options.full_pcpus_only:
            cores = of_whole_cores(layout, allocatable).bit_count()
            return _refused(policy, RefusalReason.NOT_ENOUGH_CORES, asked, cores)
        free = allocatable.bit_count()
        return _refused(policy, RefusalReason.NOT_ENOUGH_CPUS, asked, free)


def _aligned(policy: StaticPolicy, nodes: Iterable[int]) -> int:
    """All CPUs of these NUMA nodes, with align-by-socket of the sockets that they touch."""
    cpus = policy.layout.of_nodes(nodes)
    if policy.options.align_by_socket:
        for socket in policy.layout.sockets:
            if socket.cpus & cpus:
                cpus |= socket.cpus
    return cpus


def _with_reusable(state: StaticState, pod: PodCpu, container: str, cpus: int) -> StaticState:
    """The state after a container of this pod was placed on these CPUs."""
    reusable = state.reusable_by(pod.uid)
    if pod.ends_before_others(container):
        reusable |= cpus
        for name, held in state.assigned[pod.uid].items():
            if not pod.ends_before_others(name):
                reusable &= ~held
    else:
        reusable &= ~cpus
    return StaticState(state.default, state.assigned, pod.uid, reusable)
