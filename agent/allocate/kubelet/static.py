"""The kubelet's static CPU manager policy as pure functions over states (peers.md §3.1).

Containers of Guaranteed pods that request whole CPUs get CPUs of their own; all others share the
default set. Three answers differ from the kubelet's on purpose: with full-pcpus-only no half core
is handed out, the default set is never emptied, and an init container that is placed again makes no
CPUs reusable that another container of its pod runs on.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

import msgspec

from agent.allocate.kubelet import options as option_rules
from agent.allocate.kubelet.demand import PodCpu, SharedReason, exclusive_cpus
from agent.allocate.kubelet.options import StartError, StartProblem, StaticOptions
from agent.allocate.kubelet.packed import NotEnoughCpusError
from agent.allocate.kubelet.state import StaticState
from agent.allocate.kubelet.take import take
from agent.allocate.layout import Layout
from agent.model.policies import NumaPolicy


class StaticPolicy(msgspec.Struct, frozen=True):
    """What is fixed while the policy runs. `reserved`: CPUs that no container gets as its own;
    `reserved_cores`: with the siblings of those."""

    layout: Layout
    options: StaticOptions
    reserved: int
    reserved_cores: int

    @property
    def all_cpus(self) -> int:
        """What the default set and the assignments are made of."""
        kept = self.reserved if self.options.strict_cpu_reservation else 0
        return self.layout.cpus & ~kept

    def available(self, state: StaticState) -> int:
        return state.default & ~self.reserved


class RefusalReason(enum.StrEnum):
    """Why a container can't be placed."""

    NOT_ENOUGH_CPUS = "not enough CPUs are free"
    NO_WHOLE_CORES = "the request is no whole number of cores"
    NOT_ENOUGH_CORES = "not enough whole cores are free"
    DEFAULT_EMPTIED = "nothing would be left to share"


class Exclusive(msgspec.Struct, frozen=True, tag="exclusive"):
    """`cpus`: the container's own from now on; `reused`: those of them that an init container of
    its pod had; `repeated`: it had all of them before."""

    cpus: int
    reused: int = 0
    repeated: bool = False


class Shared(msgspec.Struct, frozen=True, tag="shared"):
    """The container runs on the default set."""

    reason: SharedReason


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The state stays as it was. `available`: CPUs that could be had (those of whole cores, where
    these matter); `threads`: CPUs of a core; `held`: what the container already has and keeps."""

    reason: RefusalReason
    requested: int
    available: int
    threads: int
    held: int = 0


Placement = Exclusive | Shared | Refused


def make(
    layout: Layout, options: StaticOptions, topology_policy: NumaPolicy, reserved: int
) -> StaticPolicy:
    """A policy with these CPUs reserved. Raises StartError."""
    option_rules.check(options, layout, topology_policy)
    if unknown := reserved & ~layout.cpus:
        raise StartError(StartProblem.RESERVED_UNKNOWN, cpus=unknown)
    return StaticPolicy(layout, options, reserved, layout.expand(layout.touched(reserved)))


def make_with_count(
    layout: Layout, options: StaticOptions, topology_policy: NumaPolicy, count: int
) -> StaticPolicy:
    """A policy that chooses the CPUs to reserve as it chooses others. Raises StartError."""
    option_rules.check(options, layout, topology_policy)
    try:
        reserved = take(layout, layout.cpus, count, options)
    except NotEnoughCpusError as error:
        raise StartError(StartProblem.RESERVED_TOO_MANY, subject=f"{count} CPUs") from error
    return make(layout, options, topology_policy, reserved)


def start(policy: StaticPolicy, found: StaticState) -> StaticState:
    """The state to go on from; `found` is the one that was stored, or EMPTY. Raises StartError."""
    everything = policy.all_cpus
    if not found.default:
        if any(found.assigned.values()):
            raise StartError(StartProblem.DEFAULT_EMPTY)
        return StaticState(everything)
    reserved_shared = found.default & policy.reserved
    if policy.options.strict_cpu_reservation:
        if reserved_shared:
            raise StartError(StartProblem.RESERVED_SHARED, cpus=reserved_shared)
    elif reserved_shared != policy.reserved:
        raise StartError(StartProblem.RESERVED_NOT_SHARED, cpus=policy.reserved & ~found.default)
    known = found.default
    for uid, containers in found.assigned.items():
        for name, cpus in containers.items():
            if both := found.default & cpus:
                subject = f"{uid}/{name}"
                raise StartError(StartProblem.ASSIGNED_AND_SHARED, cpus=both, subject=subject)
            known |= cpus
    if known != everything:
        raise StartError(StartProblem.OTHER_CPUS, cpus=known ^ everything)
    return StaticState(found.default, found.assigned)


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
    try:
        first = 0
        if nodes is not None:
            aligned = allocatable & _aligned(policy, nodes)
            usable = _whole(policy.layout, aligned) if policy.options.full_pcpus_only else aligned
            first = _take(policy, aligned, min(asked, usable.bit_count()))
        return first | _take(policy, allocatable & ~first, asked - first.bit_count())
    except NotEnoughCpusError:
        if policy.options.full_pcpus_only:
            cores = _whole(policy.layout, allocatable).bit_count()
            return _refused(policy, RefusalReason.NOT_ENOUGH_CORES, asked, cores)
        free = allocatable.bit_count()
        return _refused(policy, RefusalReason.NOT_ENOUGH_CPUS, asked, free)


def _take(policy: StaticPolicy, free: int, count: int) -> int:
    """Half cores have their weight in the order of what is used most, as in the kubelet, but with
    full-pcpus-only none is handed out. Raises NotEnoughCpusError."""
    layout, options = policy.layout, policy.options
    cpus = take(layout, free, count, options)
    if options.full_pcpus_only and _whole(layout, cpus) != cpus:
        return take(layout, _whole(layout, free), count, options)
    return cpus


def _whole(layout: Layout, cpus: int) -> int:
    return layout.expand(layout.whole(cpus))


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
