"""Memory QoS: protection of what pods request (`memory.min`, `memory.low`), and the amount above
which the kernel reclaims from a container (`memory.high`), on cgroup v2 (Koordinator:
pkg/koordlet/qosmanager/plugins/cgreconcile; Linux: Documentation/admin-guide/cgroup-v2.rst).

The kernel protects a group only as far as the groups above it are protected, so the groups of QoS
classes get the sums of their pods. koordlet lets the sums exceed the memory of the node, and then
nothing is left to reclaim: here they do not, and batch pods lose their protection first.
`memory.oom.group` is never set on the groups of QoS classes, where one kill ends every pod, and
never reset: a kubelet sets it on containers. The files that only Anolis' kernel has are not
written: in place of its `memory.wmark_ratio`, mainline kernels reclaim what `memory.reclaim`
says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from agent.model.node_slo import MemoryQos
from agent.model.pod.annotations import BATCH_MEMORY_NAMES
from agent.model.pod.apiobjects import ApiContainer, ApiPod, Phase
from agent.model.pod.numa_request import kube_class_of
from agent.model.pod.qos import QOS_LABEL, KubeClass, QoS
from agent.model.pod.resource_request import pod_requests


class MemoryValues(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Values of a group. None means that the kernel's value stays, or comes back."""

    min_bytes: int | None = None
    low_bytes: int | None = None
    high_bytes: int | None = None
    oom_group: bool = False
    """A kill for want of memory ends all processes of the group. False leaves what the kubelet has
    set."""
    mark_bytes: int | None = None
    """What a container uses above it is reclaimed. Batch containers alone have one."""


NO_VALUES: Final = MemoryValues()
_CLASSES: Final[tuple[KubeClass, ...]] = ("burstable", "besteffort")


class PodMemory(msgspec.Struct, frozen=True, omit_defaults=True):
    """The values of a pod's group, and of the groups of its containers by name."""

    group: MemoryValues = NO_VALUES
    containers: Mapping[str, MemoryValues] = {}


class MemoryProtection(msgspec.Struct, frozen=True):
    """The values of a node."""

    root: MemoryValues = NO_VALUES
    """The kubelet's group of all pods gets these."""
    classes: Mapping[KubeClass, MemoryValues] = {}
    """The groups of QoS classes below it get these. Guaranteed pods have no such group."""
    pods: Mapping[str, PodMemory] = {}
    """By uid, the pods that have a value."""
    reason: str = ""
    """Why pods do not get something, "" if they get everything."""


class _Wanted(msgspec.Struct, frozen=True):
    """What a pod would get on a node without end."""

    pod: ApiPod
    qos: MemoryQos
    batch: bool
    min_bytes: int
    low_bytes: int


def wanted(
    pods: Iterable[tuple[ApiPod, MemoryQos]],
    allocatable_bytes: int,
    *,
    most_bytes: int | None = None,
    page_bytes: int = 4096,
    kubelet_protects: bool = False,
    kubelet_kills_single: bool = False,
) -> MemoryProtection:
    """The values for these pods and the strategy that is in force for each. Pods that have ended
    get none.

    `allocatable_bytes`: of the node; it stands for the limit of a container without one.
    `most_bytes`: the most that pods have protected together; None for what is allocatable.
    `kubelet_protects`: the kubelet's feature gate MemoryQoS is on: it writes `memory.min` and
        `memory.high` itself, so no amount is written.
    `kubelet_kills_single`: the kubelet's singleProcessOOMKill is on: `memory.oom.group` is its own.
    """
    active = [each for each in pods if each[0].phase in (Phase.PENDING, Phase.RUNNING)]
    running = [
        _wanted(pod, _left_by_kubelet(qos, kubelet_protects, kubelet_kills_single))
        for pod, qos in active
    ]
    most = allocatable_bytes if most_bytes is None else most_bytes
    mins = _within([each.min_bytes for each in running], running, most)
    lows = _within([each.low_bytes for each in running], running, most)
    of_pods = {
        each.pod.uid: _values(each, least, low, allocatable_bytes, page_bytes)
        for each, least, low in zip(running, mins, lows, strict=True)
    }
    classes = {
        kube_class: _sums(mins, lows, [_class_of(each.pod) == kube_class for each in running])
        for kube_class in _CLASSES
    }
    reason = ""
    if kubelet_protects and any(map(_has_amounts, (qos for _, qos in active))):
        reason = "the kubelet protects or throttles memory itself (its feature gate MemoryQoS)"
    elif (total := max(_total(running, "min_bytes"), _total(running, "low_bytes"))) > most:
        reason = f"pods want {total} bytes protected, and the node has {most}: each gets a part"
    return MemoryProtection(
        _sums(mins, lows, [True] * len(running)),
        {name: values for name, values in classes.items() if values != NO_VALUES},
        {uid: values for uid, values in of_pods.items() if values != PodMemory()},
        reason,
    )


def _left_by_kubelet(qos: MemoryQos, protects: bool, kills_single: bool) -> MemoryQos:
    if protects:
        qos = MemoryQos(oom_kill_group=qos.oom_kill_group, wmark_ratio=qos.wmark_ratio)
    return msgspec.structs.replace(qos, oom_kill_group=0) if kills_single else qos


def _has_amounts(qos: MemoryQos) -> bool:
    return bool(qos.min_limit_percent or qos.low_limit_percent or qos.throttling_percent)


def _total(pods: Iterable[_Wanted], field: str) -> int:
    return sum(getattr(each, field) for each in pods)


def _class_of(pod: ApiPod) -> KubeClass:
    return pod.kube_class or kube_class_of(pod)


def _wanted(pod: ApiPod, qos: MemoryQos) -> _Wanted:
    batch = pod.labels.get(QOS_LABEL) == QoS.BE
    if batch:
        requested = sum(_amount(each.requests, batch) for each in pod.containers)
    else:
        requested = pod_requests(pod).get("memory", 0)
    return _Wanted(pod, qos, batch, *_protected(requested, qos))


def _protected(requested: int, qos: MemoryQos) -> tuple[int, int]:
    """`memory.min` and `memory.low`; 0 for none."""
    return requested * qos.min_limit_percent // 100, requested * qos.low_limit_percent // 100


def _amount(amounts: Mapping[str, int], batch: bool) -> int:
    names = BATCH_MEMORY_NAMES if batch else ("memory",)
    return next((amounts[name] for name in names if name in amounts), 0)


def _within(amounts: Sequence[int], pods: Sequence[_Wanted], most: int) -> list[int]:
    """The amounts, cut so that their sum is not above `most`: batch pods share what others leave,
    in proportion."""
    services = sum(amount for amount, pod in zip(amounts, pods, strict=True) if not pod.batch)
    batch = sum(amounts) - services
    left = max(0, most - services)
    return [
        amount
        if (room := left if pod.batch else most) >= (total := batch if pod.batch else services)
        else amount * room // total
        for amount, pod in zip(amounts, pods, strict=True)
    ]


def _values(
    wanted: _Wanted, least: int, low: int, allocatable_bytes: int, page_bytes: int
) -> PodMemory:
    pod, qos = wanted.pod, wanted.qos
    sidecars = (each for each in pod.init_containers if each.sidecar)
    containers = {}
    for container in (*pod.containers, *sidecars):
        own_least, own_low = _protected(_requested(container, wanted.batch), qos)
        own_least = _part(own_least, least, wanted.min_bytes)
        own_low = _raised(_part(own_low, low, wanted.low_bytes), own_least)
        high = None
        if qos.throttling_percent:
            high = _high(container, wanted, allocatable_bytes, page_bytes)
            # Below what is protected, a container would be throttled and never be reclaimed from.
            high = max(high, own_least, own_low // page_bytes * page_bytes)
        mark = _amount(container.limits, wanted.batch) * qos.wmark_ratio // 100
        values = MemoryValues(
            own_least or None,
            own_low or None,
            high,
            bool(qos.oom_kill_group),
            # The kernel reclaims from the group itself also what is protected.
            max(mark, own_least, own_low) if mark and wanted.batch else None,
        )
        if values != NO_VALUES:
            containers[container.name] = values
    low = _raised(low, least)
    group = MemoryValues(least or None, low or None, None, bool(qos.oom_kill_group))
    return PodMemory(group, containers)


def _raised(low: int, least: int) -> int:
    """What is protected against all reclaim is protected where it can be avoided, too."""
    return max(low, least) if low else 0


def _requested(container: ApiContainer, batch: bool) -> int:
    return _amount(container.requests if batch else container.counted, batch)


def _part(amount: int, given: int, asked: int) -> int:
    """The amount of a container, cut as that of its pod is."""
    return amount if given == asked else amount * given // asked


def _high(container: ApiContainer, wanted: _Wanted, allocatable_bytes: int, page_bytes: int) -> int:
    requested = _requested(container, wanted.batch)
    limit = _amount(container.limits, wanted.batch) or allocatable_bytes
    above = max(0, limit - requested) * wanted.qos.throttling_percent // 100
    return (requested + above) // page_bytes * page_bytes


RECLAIMED_BYTES: Final = 32 << 20
"""The most that a container loses for one write, which waits until the kernel has it."""


def lowered(high_bytes: int, present_bytes: int | None, used_bytes: int) -> int:
    """The next `memory.high` on the way to this one. The kernel reclaims what is used above it
    before the write returns, and delays all processes of the container that want more.

    `present_bytes`: the present value; None for no limit."""
    most = used_bytes if present_bytes is None else min(present_bytes, used_bytes)
    return max(high_bytes, most - RECLAIMED_BYTES)


def reclaimed(values: MemoryValues, used_bytes: int) -> int:
    """The bytes that a container with this use loses now."""
    if values.mark_bytes is None:
        return 0
    return min(max(0, used_bytes - values.mark_bytes), RECLAIMED_BYTES)


def _sums(mins: Sequence[int], lows: Sequence[int], chosen: Sequence[bool]) -> MemoryValues:
    least, low = (
        sum(amount for amount, each in zip(amounts, chosen, strict=True) if each)
        for amounts in (mins, lows)
    )
    return MemoryValues(least or None, low or None)
