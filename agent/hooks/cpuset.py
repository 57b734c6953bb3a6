"""What a container's request leaves with (cpuset, memory nodes, limits): pure functions of request,
snapshot and grants.

The agent decides, the hook obeys. What the snapshot says of a pod wins over the request; a pod that
the snapshot does not know shares its class's pool, or waits for the agent when it claims CPUs of
its own. So does a container that qualifies by a node-local policy and was not decided about. A
container with own CPUs also waits while a creation that the agent has not seen yet may hold one of
them: that container could be started with it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeVar

import msgspec

from agent.allocate.batch import batch_limits
from agent.allocate.local.request import may_own, whole_cpus
from agent.allocate.shares import claims, kubelet_may_own, pool_class, shared_cpus
from agent.hooks.changes import UNCHANGED, Changes
from agent.hooks.requests import CreateContainer, UpdateContainer, announced
from agent.model.annotations import AnnotationError
from agent.model.batch import batch_resources
from agent.model.cpuset import EMPTY, CpuSet, union
from agent.model.doorbell import Asked
from agent.model.exclusion import excludes
from agent.model.limits import UNLIMITED, Limits
from agent.model.notice import MOUNTED_AT
from agent.model.pods import Pod
from agent.model.qos import QoS
from agent.model.snapshot import Snapshot
from agent.model.visible import Mount
from agent.model.wanted import NO_LIMITS, NOTHING, Wanted

Value = TypeVar("Value", str, int)


class Grant(msgspec.Struct, frozen=True):
    """What a creation carried: `cpus` None where that is unknown, `given` by us.

    `answered_at` (CLOCK_MONOTONIC, nanoseconds) is None while the runtime works on it.
    """

    uid: str
    title: str
    cpus: CpuSet | None
    given: Wanted = NOTHING
    answered_at: int | None = None

    @property
    def exclusive(self) -> bool:
        """Whether the CPUs are its pod's own."""
        return self.given.exclusive

    def seen_by(self, snapshot: Snapshot) -> bool:
        """Whether the agent has looked since the container exists."""
        return self.answered_at is not None and self.answered_at < snapshot.looked_at

    def may_hold(self, cpus: CpuSet) -> bool:
        """Whether the container may have one of the CPUs."""
        return self.cpus is None or bool(self.cpus & cpus)


class Keep(msgspec.Struct, frozen=True):
    """The request goes on as it came."""


class Give(msgspec.Struct, frozen=True):
    """The request goes on with these values in place of its own; a container with CPUs of its own
    also without a limit of CPU time, which would keep it from them."""

    wanted: Wanted

    @property
    def cpus(self) -> CpuSet | None:
        """None where the request keeps its own."""
        return None if self.wanted.cpuset is None else CpuSet.parse(self.wanted.cpuset)


class Wait(msgspec.Struct, frozen=True):
    """Nothing can be said yet; `reason` becomes the error if it stays so."""

    reason: str


Answer = Keep | Give | Wait


def create(
    request: CreateContainer, snapshot: Snapshot | None, grants: Collection[Grant]
) -> Answer:
    """The answer for a new container."""
    pod = announced(request.pod, 0)
    if snapshot and excludes(snapshot.excluded, pod.namespace, pod.name, request.container_name):
        return Keep()
    if snapshot is None:
        return Wait("the agent has written no snapshot") if claims(pod) else Keep()
    known = snapshot.pods.get(pod.uid)
    if own_cpus := local_request(request, snapshot):
        decided = known.containers.get(request.container_name) if known else None
        if decided is None or _outdated(decided, own_cpus):
            return Wait("the agent has not decided about this container")
    if known is None:
        if claims(pod) or (snapshot.kubelet_static and kubelet_may_own(pod)):
            return Wait("the agent has not decided about this pod")
        return _share(pod, request.container_name, snapshot, grants)
    wanted = known.of(request.container_name)
    if wanted.blocked:
        return Wait(wanted.blocked)
    if wanted.exclusive:
        cpus = CpuSet.parse(wanted.cpuset or "")
        for grant in grants:
            own = grant.uid == pod.uid and grant.exclusive
            if not own and not grant.seen_by(snapshot) and grant.may_hold(cpus):
                return Wait(f"a new container of {grant.title} may hold one of CPUs {cpus}")
    return _give(wanted)


def last_resort(
    request: CreateContainer, snapshot: Snapshot | None, grants: Collection[Grant]
) -> Answer:
    """The answer for a creation that goes on without the agent: the pool without every owner known.

    Where no CPU is left it stays with Wait: the creation fails, since an empty cpuset would mean
    every CPU of the parent. What a static kubelet gave to a pod stays its own.
    """
    pod = announced(request.pod, 0)
    if snapshot is None:
        return Keep()
    if snapshot.kubelet_static and kubelet_may_own(pod) and request.asked.cpuset:
        answer = _less_owned(request.asked.cpuset, snapshot)
        if isinstance(answer, Give) and not answer.cpus:
            return Wait("others own all the CPUs that it asks for")
        return answer
    return _share(pod, request.container_name, snapshot, grants)


def local_request(request: CreateContainer, snapshot: Snapshot) -> int:
    """How many CPUs of its own the container may expect by the node-local policy in force."""
    if snapshot.cpu_policy == "none":
        return 0
    cpus = whole_cpus(request.asked.shares)
    return cpus if cpus and may_own(announced(request.pod, 0)) else 0


def is_told(request: CreateContainer, snapshot: Snapshot) -> bool:
    """Whether the container's CPUs may change and a file tells it."""
    return snapshot.cpu_policy == "dynamic" and bool(local_request(request, snapshot))


def _outdated(decided: Wanted, cpus: int) -> bool:
    """Whether the decision was made of another request."""
    held = CpuSet.parse(decided.cpuset or "")
    return decided.exclusive and not decided.blocked and len(held) != cpus


def update(request: UpdateContainer, snapshot: Snapshot | None, granted: Grant | None) -> Answer:
    """The answer for a change of a running container: snapshot, then grant, then the request
    without other pods' CPUs.

    Also a request without cpuset gets one: the runtime would write back the cpuset that it
    remembers from the creation.
    """
    if snapshot is not None and request.container_id in snapshot.containers:
        return _give(snapshot.containers[request.container_id])
    if granted is not None:
        return _give(granted.given)
    if snapshot is None or not request.asked.cpuset:
        return Keep()
    return Wait("the agent does not know this container")


def without_owners(request: UpdateContainer, snapshot: Snapshot | None) -> Answer:
    """The answer for a container nobody knows: what it asks for, less what others own."""
    return _less_owned(request.asked.cpuset, snapshot) if snapshot else Keep()


def changes(
    request: CreateContainer | UpdateContainer, answer: Keep | Give, told_in: str = ""
) -> Changes:
    """What the request does not ask for itself. `told_in`: the host's folder that tells the
    container its CPUs."""
    if isinstance(answer, Keep):
        return UNCHANGED
    mounts = (Mount(told_in, MOUNTED_AT),) if told_in else ()
    return msgspec.structs.replace(missing(answer.wanted, request.asked), mounts=mounts)


def missing(wanted: Wanted, asked: Asked) -> Changes:
    """What is wanted and not asked for."""
    limits = wanted.limits
    lifted = UNLIMITED if wanted.exclusive and asked.quota_microseconds > 0 else None
    mems = None if limits.mems is None else str(limits.mems)
    return Changes(
        cpuset=_other(wanted.cpuset, asked.cpuset),
        mems=_other(mems, asked.mems),
        shares=_other(limits.shares, asked.shares),
        quota_microseconds=_other(limits.quota_microseconds or lifted, asked.quota_microseconds),
        memory_limit_bytes=_other(limits.memory_limit_bytes, asked.memory_limit_bytes),
    )


def _give(wanted: Wanted) -> Keep | Give:
    return Keep() if wanted.hands_off else Give(wanted)


def _other(value: Value | None, present: Value) -> Value | None:
    return None if value == present else value


def _less_owned(requested: str, snapshot: Snapshot) -> Answer:
    try:
        asked = CpuSet.parse(requested)
    except ValueError:
        return Keep()
    free = asked - union(owner.claimed for owner in snapshot.owners)
    return Give(Wanted(str(free))) if free != asked else Keep()


def _share(pod: Pod, container_name: str, snapshot: Snapshot, grants: Collection[Grant]) -> Answer:
    """The pod's pool without owned CPUs; a BE pool may hold those of owners that are not LSE."""
    on_be = pool_class(pod) is QoS.BE
    owned = union(
        owner.cpus for owner in snapshot.owners if not on_be or owner.qos is QoS.LSE
    ) | union(
        grant.cpus or EMPTY
        for grant in grants
        if grant.exclusive and grant.uid != pod.uid and not grant.seen_by(snapshot)
    )
    system = CpuSet.parse(snapshot.system)
    cpus = shared_cpus(pod, snapshot.ls_pools, snapshot.be_pools, system) - owned
    if not cpus:
        return Wait("its pool has no CPU")
    return Give(Wanted(str(cpus), limits=_batch(pod, container_name)))


def _batch(pod: Pod, container_name: str) -> Limits:
    """Without the node's ratio, which the agent's next look applies."""
    try:
        batch = batch_limits(pod.qos, batch_resources(pod.annotations))
    except AnnotationError:
        return NO_LIMITS
    return batch.containers.get(container_name, NO_LIMITS) if batch else NO_LIMITS
