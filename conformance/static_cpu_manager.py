"""The kubelet's static CPU manager policy as functions from one state to the next
(pkg/kubelet/cm/cpumanager/policy_static.go).

Containers of Guaranteed pods that request whole CPUs get exclusive CPUs; all others share the
default set. Three results differ from the kubelet's on purpose: full-pcpus-only never assigns half
a core, the default set is never emptied, and when an init container is placed again, CPUs on which
another container of its pod runs do not become reusable.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

import msgspec

from agent.allocate.kubelet.cpu_assignment import of_whole_cores, take, take_aligned
from agent.allocate.kubelet.static_policy import (
    AllocationRefused,
    NotEnoughCpusError,
    PolicyStartError,
    RefusalReason,
    StartProblem,
    StaticOptions,
    check_options,
    smt_refusal,
)
from agent.allocate.numa.hint import TopologyHint, of_nodes, subsets
from agent.model.cpu.cpuset import members
from agent.model.cpu.layout import Layout
from agent.model.cpu.policies import NumaPolicy
from agent.model.pod_request import (
    ContainerCpu,
    PodCpu,
    SharedReason,
    cpus_of,
    exclusive_cpus,
)


class Exclusive(msgspec.Struct, frozen=True, tag="exclusive"):
    """The container has exclusive CPUs, a mask."""

    cpus: int
    reused: int = 0
    """The part of the CPUs that an init container of its pod had."""
    repeated: bool = False
    """The container had all of them before."""


class Shared(msgspec.Struct, frozen=True, tag="shared"):
    """The container runs on the default set."""

    reason: SharedReason


Placement: TypeAlias = Exclusive | Shared | AllocationRefused


class StaticState(msgspec.Struct, frozen=True):
    """The state of the CPU manager, as CPU masks."""

    default: int
    """The CPUs that containers without exclusive CPUs share."""
    assigned: dict[str, dict[str, int]] = {}
    """Exclusive CPUs by pod uid and container."""
    reusable_of: str | None = None
    """The pod that placed a container last, None before the first."""
    reusable: int = 0
    """The CPUs of that pod's init containers, which its next containers may get."""

    def held(self, uid: str, container: str) -> int:
        """The container's exclusive CPUs; 0 if it has none."""
        return self.assigned.get(uid, _NOTHING).get(container, 0)

    def reusable_by(self, uid: str) -> int:
        return self.reusable if uid == self.reusable_of else 0

    def with_assigned(self, uid: str, container: str, cpus: int) -> dict[str, dict[str, int]]:
        """The assignments with this one added."""
        return {**self.assigned, uid: {**self.assigned.get(uid, _NOTHING), container: cpus}}

    def without(self, uid: str, container: str) -> dict[str, dict[str, int]]:
        """The assignments without this one."""
        mine = {name: cpus for name, cpus in self.assigned[uid].items() if name != container}
        others = {other: held for other, held in self.assigned.items() if other != uid}
        return {**others, uid: mine} if mine else others


EMPTY: Final = StaticState(0)
_NOTHING: Final[dict[str, int]] = {}


class StaticPolicy(msgspec.Struct, frozen=True):
    """The constants of a running policy."""

    layout: Layout
    options: StaticOptions
    reserved: int
    """CPUs that no container gets exclusively."""
    reserved_cores: int
    """These CPUs and their siblings."""

    @property
    def all_cpus(self) -> int:
        kept = self.reserved if self.options.strict_cpu_reservation else 0
        return self.layout.cpus & ~kept

    def available(self, state: StaticState) -> int:
        return state.default & ~self.reserved


def make(
    layout: Layout, options: StaticOptions, topology_policy: NumaPolicy, reserved: int
) -> StaticPolicy:
    """A policy with these CPUs reserved. Raises PolicyStartError."""
    check_options(options, layout, topology_policy)
    if unknown := reserved & ~layout.cpus:
        raise PolicyStartError(StartProblem.RESERVED_UNKNOWN, cpus=unknown)
    return StaticPolicy(layout, options, reserved, layout.expand(layout.touched(reserved)))


def make_with_count(
    layout: Layout, options: StaticOptions, topology_policy: NumaPolicy, count: int
) -> StaticPolicy:
    """A policy that chooses the CPUs to reserve like those of a container. Raises
    PolicyStartError."""
    check_options(options, layout, topology_policy)
    try:
        reserved = take(layout, layout.cpus, count, options)
    except NotEnoughCpusError as error:
        raise PolicyStartError(StartProblem.RESERVED_TOO_MANY, subject=f"{count} CPUs") from error
    return make(layout, options, topology_policy, reserved)


def start(policy: StaticPolicy, stored: StaticState) -> StaticState:
    """The initial state.

    `stored`: the stored state, or EMPTY.

    Raises PolicyStartError."""
    everything = policy.all_cpus
    if not stored.default:
        if any(stored.assigned.values()):
            raise PolicyStartError(StartProblem.DEFAULT_EMPTY)
        return StaticState(everything)
    reserved_shared = stored.default & policy.reserved
    if policy.options.strict_cpu_reservation:
        if reserved_shared:
            raise PolicyStartError(StartProblem.RESERVED_SHARED, cpus=reserved_shared)
    elif reserved_shared != policy.reserved:
        raise PolicyStartError(
            StartProblem.RESERVED_NOT_SHARED, cpus=policy.reserved & ~stored.default
        )
    seen = stored.default
    for uid, containers in stored.assigned.items():
        mine = 0
        for name, cpus in containers.items():
            subject = f"{uid}/{name}"
            if both := stored.default & cpus:
                raise PolicyStartError(StartProblem.ASSIGNED_AND_SHARED, cpus=both, subject=subject)
            if twice := seen & cpus:
                raise PolicyStartError(StartProblem.ASSIGNED_TWICE, cpus=twice, subject=subject)
            mine |= cpus
        seen |= mine
    if seen != everything:
        raise PolicyStartError(StartProblem.OTHER_CPUS, cpus=seen ^ everything)
    return StaticState(stored.default, stored.assigned)


def allocate(
    policy: StaticPolicy,
    state: StaticState,
    pod: PodCpu,
    container: str,
    nodes: Iterable[int] | None = None,
) -> tuple[StaticState, Placement]:
    """Places a container.

    `nodes`: ids of the NUMA nodes to take CPUs from first, None for any.

    Raises KeyError if the pod has no such container."""
    requested = exclusive_cpus(pod, container_of(pod, container))
    if not isinstance(requested, int):
        return state, Shared(requested)
    held = state.held(pod.uid, container)
    refused = _smt_refusal(policy, state, requested, held)
    if refused is not None:
        return state, refused
    reusable = state.reusable_by(pod.uid)
    if held:
        return _with_reusable(state, pod, container, held), Exclusive(held, repeated=True)
    allocatable = policy.available(state) | reusable
    cpus = _chosen(policy, allocatable, requested, nodes)
    if isinstance(cpus, AllocationRefused):
        return state, cpus
    default = state.default & ~cpus
    if not default and state.default:
        reason = RefusalReason.DEFAULT_EMPTIED
        return state, _refused(policy, reason, requested, allocatable.bit_count())
    placed = StaticState(
        default,
        state.with_assigned(pod.uid, container, cpus),
        state.reusable_of,
        state.reusable,
    )
    return _with_reusable(placed, pod, container, cpus), Exclusive(cpus, cpus & reusable)


def remove(state: StaticState, uid: str, container: str) -> StaticState:
    """Releases a container's CPUs except those that other containers of its pod have too."""
    cpus = state.held(uid, container)
    if not cpus:
        return state
    assigned = state.without(uid, container)
    for held in assigned.get(uid, {}).values():
        cpus &= ~held
    return StaticState(state.default | cpus, assigned, state.reusable_of, state.reusable)


def _smt_refusal(
    policy: StaticPolicy, state: StaticState, requested: int, held: int
) -> AllocationRefused | None:
    """The refusal of full-pcpus-only. The kubelet checks it without reusable CPUs, and even if the
    container has its CPUs."""
    if not policy.options.full_pcpus_only:
        return None
    free = (state.default & ~policy.reserved_cores).bit_count()
    return smt_refusal(requested, free, policy.layout.threads, held)


def _refused(
    policy: StaticPolicy, reason: RefusalReason, requested: int, available: int
) -> AllocationRefused:
    return AllocationRefused(reason, requested, available, policy.layout.threads)


def _chosen(
    policy: StaticPolicy, allocatable: int, requested: int, nodes: Iterable[int] | None
) -> int | AllocationRefused:
    layout, options = policy.layout, policy.options
    try:
        first = 0
        if nodes is not None:
            aligned = allocatable & _aligned(policy, nodes)
            usable = of_whole_cores(layout, aligned) if options.full_pcpus_only else aligned
            first = take_aligned(layout, aligned, min(requested, usable.bit_count()), options)
        rest = allocatable & ~first
        return first | take_aligned(layout, rest, requested - first.bit_count(), options)
    except NotEnoughCpusError:
        if options.full_pcpus_only:
            cores = of_whole_cores(layout, allocatable).bit_count()
            return _refused(policy, RefusalReason.NOT_ENOUGH_CORES, requested, cores)
        free = allocatable.bit_count()
        return _refused(policy, RefusalReason.NOT_ENOUGH_CPUS, requested, free)


def _aligned(policy: StaticPolicy, nodes: Iterable[int]) -> int:
    """All CPUs of these NUMA nodes; with align-by-socket, of all their sockets."""
    cpus = policy.layout.of_nodes(nodes)
    if policy.options.align_by_socket:
        for socket in policy.layout.sockets:
            if socket.cpus & cpus:
                cpus |= socket.cpus
    return cpus


def _with_reusable(state: StaticState, pod: PodCpu, container: str, cpus: int) -> StaticState:
    """The state after a container of this pod was placed on these CPUs."""
    reusable = state.reusable_by(pod.uid)
    if ends_before_others(pod, container):
        reusable |= cpus
        for name, held in state.assigned[pod.uid].items():
            if not ends_before_others(pod, name):
                reusable &= ~held
    else:
        reusable &= ~cpus
    return StaticState(state.default, state.assigned, pod.uid, reusable)


def container_of(pod: PodCpu, name: str) -> ContainerCpu:
    """Raises KeyError if the pod has no such container."""
    for container in (*pod.init, *pod.containers):
        if container.name == name:
            return container
    raise KeyError(f"pod {pod.uid} has no container {name}")


def ends_before_others(pod: PodCpu, name: str) -> bool:
    """Whether it is a plain init container, whose CPUs the next ones may have."""
    return any(each.name == name and not each.sidecar for each in pod.init)


def pod_cpus(pod: PodCpu) -> int:
    """The most exclusive CPUs that the pod holds at one time: each plain init container runs
    together with the sidecars before it, the containers together with all sidecars."""
    sidecars = most = 0
    for container in pod.init:
        requested = cpus_of(pod, container)
        if container.sidecar:
            sidecars += requested
        else:
            most = max(most, sidecars + requested)
    return max(most, sidecars + sum(cpus_of(pod, each) for each in pod.containers))


def container_hints(
    policy: StaticPolicy, state: StaticState, pod: PodCpu, container: str
) -> tuple[TopologyHint, ...] | None:
    """The hints, in the order of `subsets`, whose limit applies. None: no preference. Empty: the
    request can't be satisfied.

    For a container that has its CPUs, the masks that contain these. Raises KeyError if the pod has
    no such container.
    """
    requested = cpus_of(pod, container_of(pod, container))
    if not requested:
        return None
    held = state.held(pod.uid, container)
    if held:
        return _hints(policy, held, 0, requested) if held.bit_count() == requested else ()
    return _hints(policy, policy.available(state), state.reusable_by(pod.uid), requested)


def pod_hints(
    policy: StaticPolicy, state: StaticState, pod: PodCpu
) -> tuple[TopologyHint, ...] | None:
    """The hints of the pod as a whole."""
    requested = pod_cpus(pod)
    if not requested:
        return None
    assigned = 0
    for container in (*pod.init, *pod.containers):
        held = state.held(pod.uid, container.name)
        if held:
            if held.bit_count() != cpus_of(pod, container):
                return ()
            assigned |= held
    if assigned.bit_count() == requested:
        return _hints(policy, assigned, 0, requested)
    reusable = state.reusable_by(pod.uid) | assigned
    return _hints(policy, policy.available(state), reusable, requested)


def _hints(
    policy: StaticPolicy, available: int, bound: int, requested: int
) -> tuple[TopologyHint, ...]:
    """The masks with enough CPUs that contain all nodes of the `bound` CPUs. A CPU that is
    available and bound counts once."""
    layout = policy.layout
    usable = available | bound
    places = [(1 << node.id, (node.cpus & usable).bit_count()) for node in layout.nodes]
    needed = of_nodes(layout.node_ids(bound))
    smallest = _smallest([node.cpus.bit_count() for node in layout.nodes], requested)
    return tuple(
        TopologyHint(mask, _preferred(policy, mask, smallest))
        for mask in subsets(node.id for node in layout.nodes)
        if not needed & ~mask and sum(held for node, held in places if node & mask) >= requested
    )


def _smallest(sizes: list[int], requested: int) -> int:
    """The smallest number of NUMA nodes that fit the request if all their CPUs are free."""
    held = 0
    for count, size in enumerate(sorted(sizes, reverse=True), 1):
        held += size
        if held >= requested:
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
