"""The CPUs, memory nodes and limits of a container's request: pure functions of request, snapshot
and assumed containers.

The agent decides, the hook applies the decision. The snapshot's values for a pod replace those of
the request. A pod that is missing in the snapshot shares the pool of its class, or waits for the
agent if it claims exclusive CPUs. A container that gets exclusive CPUs by a node-local policy also
waits for the agent's decision. A container with exclusive CPUs waits, too, while a container that
the agent has not seen yet may run on one of them. `AssumedContainers` has these new containers,
like the assumed pods of kube-scheduler.

A kubelet with the static policy writes the CPUs of a container into its checkpoint before it
creates the pod's sandbox, and into the request. These CPUs are never replaced. The container waits
until the agent has read the checkpoint, so that no other container is on its CPUs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Final

import msgspec

from agent.allocate.batch import batch_limits, batch_resources
from agent.allocate.shares import (
    claims,
    kubelet_may_own,
    may_own,
    pool_of,
    shared_cpus,
    whole_cpus,
)
from agent.hooks.requests import UNCHANGED, Changes, CreateContainer, UpdateContainer, announced
from agent.model.cpu.cpuset import EMPTY, CpuSet, CpuSetError, union
from agent.model.devices.visibility import Mount
from agent.model.linux_resources import NO_QUOTA, NO_RESOURCES, LinuxResources
from agent.model.notice import MOUNTED_AT
from agent.model.pod.annotations import AnnotationError
from agent.model.pod.pods import Pod
from agent.model.pod.qos import QoS
from agent.model.snapshot import (
    HOUSEKEEPING_CPUS,
    NOTHING,
    NUMA_NODES,
    OWN_CPUS,
    SHARED_CPUS,
    Snapshot,
    Wanted,
    excludes,
)
from agent.model.verdict import Wait


class AssumedContainer(msgspec.Struct, frozen=True):
    """The CPUs that a container may hold, before the agent has seen it."""

    uid: str
    """The uid of its pod, "" if it is unknown."""
    title: str
    """It names the container in messages."""
    cpus: CpuSet | None
    """None if they may be any."""
    given: Wanted = NOTHING
    """The values that the hooks set."""
    answered_at: int | None = None
    """CLOCK_MONOTONIC in nanoseconds; None while the runtime works on the request."""

    @property
    def exclusive(self) -> bool:
        """Whether the pod owns the CPUs."""
        return self.given.exclusive

    def seen_by(self, snapshot: Snapshot) -> bool:
        """Whether a pass of the agent has seen the container."""
        return self.answered_at is not None and self.answered_at < snapshot.listed_at

    def may_hold(self, cpus: CpuSet) -> bool:
        """Whether the container may have one of the CPUs."""
        return self.cpus is None or bool(self.cpus & cpus)


class Keep(msgspec.Struct, frozen=True):
    """The request stays unchanged."""


class Override(msgspec.Struct, frozen=True):
    """These values replace those of the request."""

    wanted: Wanted

    @property
    def cpus(self) -> CpuSet | None:
        """None when the request keeps its own."""
        return None if self.wanted.cpuset is None else CpuSet.parse(self.wanted.cpuset)


Answer = Keep | Override | Wait


_UNPLACED: Final = "the agent has not decided on which NUMA nodes it runs"
_UNCLAIMED: Final = "the agent has not decided about the CPUs of its ResourceClaim"


def create(
    request: CreateContainer,
    snapshot: Snapshot | None,
    assumed: Collection[AssumedContainer],
    has_devices: Callable[[], bool] = lambda: False,
    *,
    has_cpu_claim: bool = False,
) -> Answer:
    """The answer for a new container.

    `has_devices`: whether the container waits for a decision about its place if the agent does not
        know its pod or the pod's devices yet.
    `has_cpu_claim`: whether the container has CPUs of a ResourceClaim."""
    pod = announced(request.pod, 0)
    if snapshot and excludes(snapshot.excluded, pod.namespace, pod.name, request.container_name):
        return Keep()
    if snapshot is None:
        waits = claims(pod) or has_cpu_claim
        return Wait("the agent has written no snapshot") if waits else Keep()
    claims_more = has_cpu_claim and snapshot.gives_claims
    known = snapshot.pods.get(pod.uid)
    if own_cpus := local_request(request, snapshot):
        decided = known.containers.get(request.container_name) if known else None
        if decided is None or _outdated(decided, own_cpus):
            return Wait("the agent has not decided about this container")
    if known is None:
        if claims(pod) or (snapshot.kubelet_static and kubelet_may_own(pod)):
            return Wait("the agent has not decided about this pod")
        if claims_more:
            return Wait(_UNCLAIMED)
        if snapshot.places_devices and has_devices():
            return Wait(_UNPLACED)
        return _share(pod, request.container_name, snapshot, assumed)
    wanted = known.of(request.container_name)
    if claims_more and not wanted.exclusive:
        return Wait(_UNCLAIMED)
    if pod.uid in snapshot.unplaced and not wanted.exclusive and has_devices():
        return Wait(_UNPLACED)
    assigned = _assigned_by_kubelet(request, snapshot)
    decided_cpus = wanted.own or CpuSet.parse(wanted.cpuset or "")
    # A container with a claim has its CPUs beside those that the kubelet assigned.
    agent_read_them = (
        assigned <= decided_cpus if claims_more else wanted.kubelet and decided_cpus <= assigned
    )
    if assigned and not agent_read_them and wanted.cpuset is not None:
        return Wait(f"the agent has not read that the kubelet assigned CPUs {assigned} to it")
    if wanted.blocked:
        return Wait(wanted.blocked)
    if wanted.exclusive:
        same = {pod.uid, *_sharing_claims(pod.uid, snapshot)}
        for container in assumed:
            own = container.uid in same and container.exclusive
            if not own and not container.seen_by(snapshot) and container.may_hold(decided_cpus):
                return Wait(f"{container.title} may hold one of CPUs {decided_cpus}")
    return _override(wanted, request.requested)


def _sharing_claims(uid: str, snapshot: Snapshot) -> set[str]:
    """The uids of pods that use a ResourceClaim of this pod."""
    return {
        other
        for owner in snapshot.owners
        if owner.sharers and owner.is_of(uid)
        for other in (owner.uid, *owner.sharers)
    }


def fallback(
    request: CreateContainer, snapshot: Snapshot | None, assumed: Collection[AssumedContainer]
) -> Answer:
    """The answer for a creation without a decision of the agent: the pod's pool without the CPUs of
    the owners that the pool excludes. A pod to which a static kubelet may have assigned CPUs gets
    its requested CPUs without those of other owners. The answer is Wait if no CPU is left, and the
    creation must fail: an empty cpuset would mean every CPU of the parent. A container keeps the
    CPUs that a static kubelet assigned to it, even if the snapshot names another owner: the kubelet
    assigns each CPU to one container only."""
    pod = announced(request.pod, 0)
    if snapshot is None or _assigned_by_kubelet(request, snapshot):
        return Keep()
    if snapshot.kubelet_static and kubelet_may_own(pod) and request.requested.cpuset:
        answer = _without_owned(request.requested.cpuset, snapshot)
        if isinstance(answer, Override) and not answer.cpus:
            return Wait("other pods own all the CPUs that it requests")
        return answer
    return _share(pod, request.container_name, snapshot, assumed)


def local_request(request: CreateContainer, snapshot: Snapshot) -> int:
    """The number of CPUs that the container may own by the node-local policy in force."""
    if snapshot.cpu_policy == "none":
        return 0
    cpus = whole_cpus(request.requested.shares)
    return cpus if cpus and may_own(announced(request.pod, 0)) else 0


def reads_cpus(request: CreateContainer, snapshot: Snapshot, wanted: Wanted) -> bool:
    """Whether the container gets a file with its CPUs, which may change: it has devices, is mixed,
    or owns CPUs that the node-local policy may replace."""
    if wanted.numa_nodes or wanted.shared is not None:
        return True
    dynamic = wanted.exclusive and snapshot.cpu_policy == "dynamic"
    return dynamic and bool(local_request(request, snapshot))


def _outdated(decided: Wanted, cpus: int) -> bool:
    """Whether the decision was made for another number of CPUs."""
    return decided.exclusive and not decided.blocked and len(decided.own) != cpus


def update(
    request: UpdateContainer, snapshot: Snapshot | None, assumed: AssumedContainer | None
) -> Answer:
    """The answer for an update of a running container: the snapshot's values, or those that the
    hooks gave it at its creation. Of a container that neither knows, a request with a cpuset waits
    if there is a snapshot, and any other passes unchanged. A known container gets a cpuset also if
    the request has none: otherwise the runtime would restore the cpuset of the creation."""
    if snapshot is not None and request.container_id in snapshot.containers:
        return _override(snapshot.containers[request.container_id], request.requested)
    if assumed is not None:
        return _override(assumed.given, request.requested)
    if snapshot is None or not request.requested.cpuset:
        return Keep()
    return Wait("the agent does not know this container")


def without_owners(request: UpdateContainer, snapshot: Snapshot | None) -> Answer:
    """The answer after the deadline for a container that the agent does not know: the CPUs of its
    request without those of owners."""
    return _without_owned(request.requested.cpuset or "", snapshot) if snapshot else Keep()


def changes(
    request: CreateContainer | UpdateContainer, answer: Keep | Override, cpus_folder: str = ""
) -> Changes:
    """The values that differ from the request. `cpus_folder`: the host's folder with the file of
    the container's CPUs."""
    if isinstance(answer, Keep):
        return UNCHANGED
    wanted = answer.wanted
    mounts = (Mount(cpus_folder, MOUNTED_AT),) if cpus_folder else ()
    variables = _variables(wanted) if isinstance(request, CreateContainer) else ()
    return Changes(wanted.over(request.requested).missing_in(request.requested), mounts, variables)


def _variables(wanted: Wanted) -> tuple[tuple[str, str], ...]:
    """The variables that tell the container its place."""
    variables = [(NUMA_NODES, wanted.numa_nodes)] if wanted.numa_nodes else []
    if wanted.shared is not None:
        variables += [(OWN_CPUS, str(wanted.own)), (SHARED_CPUS, wanted.shared)]
    if wanted.housekeeping:
        variables.append((HOUSEKEEPING_CPUS, wanted.housekeeping))
    return tuple(variables)


def _assigned_by_kubelet(request: CreateContainer, snapshot: Snapshot) -> CpuSet:
    """The exclusive CPUs that a kubelet with the static policy assigned to the container; empty for
    none. The policy assigns exclusive CPUs to the containers of a Guaranteed pod that request whole
    CPUs, and to no others (pkg/kubelet/cm/cpumanager, policy_static.go, guaranteedCPUs). The quota
    of such a container equals its request, or is removed. Another quota means a pod with pod-level
    resources, whose containers get no exclusive CPUs."""
    whole = whole_cpus(request.requested.shares) if snapshot.kubelet_static else 0
    if not whole or not kubelet_may_own(announced(request.pod, 0)):
        return EMPTY
    quota = request.requested.quota or NO_QUOTA
    if quota != NO_QUOTA and quota.microseconds != whole * quota.period_microseconds:
        return EMPTY
    try:
        cpus = CpuSet.parse(request.requested.cpuset or "")
    except CpuSetError:
        return EMPTY
    return cpus if len(cpus) == whole else EMPTY


def _override(wanted: Wanted, requested: LinuxResources) -> Keep | Override:
    """A request with CPUs that the kubelet assigned keeps them: they are never older than the
    agent's decision."""
    if wanted.kubelet and requested.cpuset:
        mixed = wanted.shared is not None
        wanted = _beside(wanted, requested) if mixed else wanted.without("cpuset")
    return Keep() if wanted.unmanaged and not _variables(wanted) else Override(wanted)


def _beside(wanted: Wanted, requested: LinuxResources) -> Wanted:
    """The values of a mixed container with the CPUs of the request instead of its own, if these
    are not among them. The agent's own requests have the share of a decision too, which may be
    older than the snapshot's."""
    try:
        own = CpuSet.parse(requested.cpuset or "")
    except CpuSetError:
        return wanted.without("cpuset")
    if wanted.own <= own:
        return wanted
    shared = CpuSet.parse(wanted.shared or "") - own
    resources = msgspec.structs.replace(wanted.resources, cpuset=str(own | shared))
    return msgspec.structs.replace(wanted, resources=resources, shared=str(shared))


def _without_owned(requested: str, snapshot: Snapshot) -> Answer:
    try:
        cpus = CpuSet.parse(requested)
    except ValueError:
        return Keep()
    # The kubelet requests the CPUs that it assigned for their containers only.
    free = cpus - union(owner.claimed for owner in snapshot.owners if not owner.kubelet)
    return Override(Wanted(LinuxResources(str(free)))) if free != cpus else Keep()


def _share(
    pod: Pod, container_name: str, snapshot: Snapshot, assumed: Collection[AssumedContainer]
) -> Answer:
    """The pod's pool without the CPUs of owners that the pool excludes."""
    excluded = pool_of(pod).excluded
    owned = union(owner.cpus for owner in snapshot.owners if owner.qos in excluded) | union(
        (container.cpus or EMPTY) - CpuSet.parse(container.given.shared or "")
        for container in assumed
        if container.exclusive and container.uid != pod.uid and not container.seen_by(snapshot)
    )
    cpus = shared_cpus(pod, snapshot.pools) - owned
    if not cpus:
        return Wait("its pool has no CPU")
    batch = _batch(pod, container_name)
    return Override(Wanted(msgspec.structs.replace(batch, cpuset=str(cpus))))


def _batch(pod: Pod, container_name: str) -> LinuxResources:
    """The limits of a BE pod's batch resources, without the ratio of the node, which the agent's
    next pass applies."""
    if pod.qos is not QoS.BE:
        return NO_RESOURCES
    try:
        batch = batch_limits(pod.qos, batch_resources(pod.annotations))
    except AnnotationError:
        return NO_RESOURCES
    return batch.containers.get(container_name, NO_RESOURCES) if batch else NO_RESOURCES


CUT_OFF_SECONDS: Final = 1.0
"""How long a runtime may go on with the calls of a frontend that was killed: containerd cancels
them at once, but removes a container that it is starting only when its shim has made it."""
MAX_ASSUMED = 256
"""The most assumed containers, and ended starts, that are kept one by one."""


def requested_cpus(cpuset: str | None) -> CpuSet | None:
    """The CPUs that a container with this cpuset in its request may get; None for any."""
    try:
        return CpuSet.parse(cpuset or "") or None
    except ValueError:
        return None


class _Start(msgspec.Struct):
    """A StartContainer call. `listed_at`: of the snapshot when the call began, 0 without a
    snapshot."""

    listed_at: int
    ended_at: int | None = None


_STARTING: Final = AssumedContainer("", "a container that is being started", None)
_EARLIER: Final = AssumedContainer("", "a container that was created earlier", None)


class AssumedContainers:
    """The containers created since the agent's last pass, by number and by container id. A
    process does not know the creations and starts of another one: while such a process lives, and
    until a pass that begins after its end, one container with any CPUs represents them. It also
    represents the oldest ones beyond MAX_ASSUMED: memory must stay bounded while no agent runs.

    A start uses the cpuset that the runtime had when the start began: containerd reads the spec
    first and creates the cgroup later, so that the agent's update of a container that is being
    started may come too late. A start is safe for a snapshot that was published before it began, or
    by a pass that began after it ended; any other may hold any CPU."""

    def __init__(
        self, has_others: Callable[[], bool] = lambda: False, *, was_cut_off: bool = False
    ) -> None:
        """`has_others`: returns whether another such process lives.
        `was_cut_off`: says that the one before was killed, or has left calls in progress."""
        self._has_others = has_others
        self._cut_off_seconds = CUT_OFF_SECONDS if was_cut_off else 0.0
        self._next = 0
        self._by_number: dict[int, AssumedContainer] = {}
        self._ids: dict[str, int] = {}
        self._starts: dict[int, _Start] = {}
        self._earlier: AssumedContainer | None = _EARLIER
        self._follow_others()

    @property
    def in_progress(self) -> bool:
        """Whether the runtime works on a creation or a start."""
        return any(each.answered_at is None for each in self._by_number.values()) or any(
            each.ended_at is None for each in self._starts.values()
        )

    def all(self, snapshot: Snapshot | None) -> tuple[AssumedContainer, ...]:
        """The containers that count for a decision by this snapshot."""
        self._follow_others()
        others = () if self._earlier is None else (self._earlier,)
        if any(each.listed_at != _listed_at(snapshot) for each in self._starts.values()):
            others = (*others, _STARTING)
        return (*others, *self._by_number.values())

    def of(self, container_id: str) -> AssumedContainer | None:
        """The container if it was created through this frontend and the agent has not
        seen it yet."""
        number = self._ids.get(container_id)
        return None if number is None else self._by_number.get(number)

    def assume(self, container: AssumedContainer) -> int:
        """A request is sent to the runtime. Returns the number that identifies the container in
        `answered` and `failed`."""
        number = self._number()
        self._by_number[number] = container
        return number

    def answered(self, number: int, container_id: str) -> None:
        """The runtime created the container."""
        container = self._by_number.get(number)
        if container is not None:
            self._by_number[number] = msgspec.structs.replace(
                container, answered_at=time.monotonic_ns()
            )
            self._ids[container_id] = number
            self._fold()

    def failed(self, number: int) -> None:
        """The runtime gave no answer or an error. The container may still exist: it counts
        until the agent's next pass."""
        container = self._by_number.get(number)
        if container is not None:
            self._by_number[number] = msgspec.structs.replace(
                container, answered_at=time.monotonic_ns()
            )
            self._fold()

    def start(self, snapshot: Snapshot | None) -> int:
        """A container is being started. Returns the number that identifies the start in
        `started`."""
        number = self._number()
        self._starts[number] = _Start(_listed_at(snapshot))
        return number

    def started(self, number: int, snapshot: Snapshot | None) -> bool:
        """The start has ended. Returns whether the agent published a snapshot in the meantime: the
        container may run with the cpuset of the snapshot before it."""
        start = self._starts[number]
        start.ended_at = time.monotonic_ns()
        ended = [number for number, start in self._starts.items() if start.ended_at is not None]
        for number in ended[:-MAX_ASSUMED]:
            del self._starts[number]
        return start.listed_at != _listed_at(snapshot)

    def removed(self, container_id: str) -> None:
        """The container was removed and holds nothing."""
        number = self._ids.pop(container_id, None)
        if number is not None:
            self._by_number.pop(number, None)

    def seen(self, snapshot: Snapshot) -> None:
        """Drops the containers that the agent's last pass has seen."""
        if self._earlier is not None and self._earlier.seen_by(snapshot):
            self._earlier = None
        self._starts = {
            number: start
            for number, start in self._starts.items()
            if start.ended_at is None or start.ended_at >= snapshot.listed_at
        }
        if any(container.seen_by(snapshot) for container in self._by_number.values()):
            self._by_number = {
                number: container
                for number, container in self._by_number.items()
                if not container.seen_by(snapshot)
            }
            self._ids = {
                each: number for each, number in self._ids.items() if number in self._by_number
            }

    def _fold(self) -> None:
        """Replaces the older half of the created containers by one with any CPUs, if there are
        more than MAX_ASSUMED."""
        if len(self._by_number) <= MAX_ASSUMED:
            return
        answered = [
            number for number, each in self._by_number.items() if each.answered_at is not None
        ]
        folded = set(answered[: len(answered) // 2])
        if not folded:
            return
        older = () if self._earlier is None else (self._earlier,)
        represented = (*older, *(self._by_number[number] for number in folded))
        if self._earlier is not _EARLIER:
            # A slow creation may have been answered after one that began later and is folded later.
            latest = max(each.answered_at or 0 for each in represented)
            self._earlier = msgspec.structs.replace(_EARLIER, answered_at=latest)
        self._by_number = {
            number: each for number, each in self._by_number.items() if number not in folded
        }
        self._ids = {
            each: number for each, number in self._ids.items() if number in self._by_number
        }

    def _follow_others(self) -> None:
        if self._has_others():
            self._earlier, self._cut_off_seconds = _EARLIER, CUT_OFF_SECONDS
        elif self._earlier is _EARLIER:
            ended = time.monotonic_ns() + int(self._cut_off_seconds * 1e9)
            self._earlier = msgspec.structs.replace(_EARLIER, answered_at=ended)

    def _number(self) -> int:
        self._next += 1
        return self._next


def _listed_at(snapshot: Snapshot | None) -> int:
    return 0 if snapshot is None else snapshot.listed_at
