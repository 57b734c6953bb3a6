"""Evictions from a node under load: which pod leaves next, and why (Koordinator:
pkg/koordlet/qosmanager/plugins/cpuevict, memoryevict; pkg/koordlet/qosmanager/helpers).

Each feature looks at one amount. When that is above a threshold for some rounds in a row, pods
leave until it is below the lower threshold: one at a time, with a pause after each, so that the
next measurement shows what has become free. Pods that are leaving already count as gone, and an
evicted pod that still exists is not evicted again, but counts when its turn comes. Other than in
koordlet, no pod leaves that frees nothing of what is wanted. Static and mirror pods stay, because a
kubelet starts them again, and so do critical pods."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cmp_to_key, partial
from typing import Final

import msgspec

from agent.allocate.colocation.eviction_pod import (
    BATCH_CPU,
    USED_CPU,
    USED_MEMORY,
    EvictionPod,
    requested_by_low_priority,
)
from agent.model.node_slo import ResourceThreshold
from agent.model.quantities import amount


class EvictionFeature(enum.StrEnum):
    """What may evict. The first six are koordlet's, in its order."""

    BE_CPU = "BECPUEvict"
    CPU_ALLOCATABLE = "CPUAllocatableEvict"
    CPU = "CPUEvict"
    BE_MEMORY = "BEMemoryEvict"
    MEMORY_ALLOCATABLE = "MemoryAllocatableEvict"
    MEMORY = "MemoryEvict"
    CPU_PRESSURE = "CPUPressureEvict"
    MEMORY_PRESSURE = "MemoryPressureEvict"


_OF_PRESSURE: Final = frozenset({EvictionFeature.CPU_PRESSURE, EvictionFeature.MEMORY_PRESSURE})
_OF_BATCH: Final = _OF_PRESSURE | {EvictionFeature.BE_CPU, EvictionFeature.BE_MEMORY}
"""The features that take BE pods. The others take pods that have agreed by a label, up to a
priority."""
_OF_ALLOCATABLE: Final = frozenset(
    {EvictionFeature.CPU_ALLOCATABLE, EvictionFeature.MEMORY_ALLOCATABLE}
)
_OF_CPU: Final = frozenset(
    {
        EvictionFeature.BE_CPU,
        EvictionFeature.CPU_ALLOCATABLE,
        EvictionFeature.CPU,
        EvictionFeature.CPU_PRESSURE,
    }
)


class BatchCpu(msgspec.Struct, frozen=True):
    """The CPU of all BE pods together."""

    request_milli: float
    limit_milli: float
    """What they may use at the moment."""
    used_milli: float


class PressureLimit(msgspec.Struct, frozen=True):
    """The part of the time in which work waits, and when it is too much."""

    percent: float
    threshold_percent: int
    lower_percent: int


class NodeAmounts(msgspec.Struct, frozen=True):
    """The node as the sampler and the API server know it."""

    capacity: Mapping[str, int]
    """CPU in milli-CPU and memory in bytes, as in `allocatable`."""
    allocatable: Mapping[str, int]
    """With the resources of mid and batch pods that the Node has."""
    used_cpu_milli: int | None
    """The average of the window; None while less than a third of it is known."""
    used_memory_bytes: int | None
    """Now, without page cache."""
    pods_cores: Mapping[str, float]
    """What pods used in the last second, by uid."""


class EvictionMoment(msgspec.Struct, frozen=True):
    """A node at one moment. None means that a value is not known: the features that need it do
    nothing."""

    threshold: ResourceThreshold
    pods: tuple[EvictionPod, ...]
    capacity: Mapping[str, int] = {}
    """CPU in milli-CPU and memory in bytes, as in `allocatable`."""
    allocatable: Mapping[str, int] = {}
    """With the resources of mid and batch pods."""
    used_cpu_milli: int | None = None
    """The average of the window."""
    used_memory_bytes: int | None = None
    batch: tuple[BatchCpu, ...] = ()
    """The average of the window and the last value; empty if they are not known."""
    pressures: Mapping[EvictionFeature, PressureLimit] = {}
    """By feature, the pressure of CPU or memory that it looks at."""
    withdrawn: frozenset[str] = frozenset()
    """The resources that nobody offers at the moment: no pod leaves for one of them. Otherwise a
    resource that is not in `allocatable` has an amount of 0."""


class EvictionTask(msgspec.Struct, frozen=True):
    """What a feature wants at a moment."""

    feature: EvictionFeature
    wanted: Mapping[str, int]
    """By resource, how much has to become free."""
    cause: str
    candidates: tuple[EvictionPod, ...]
    """Whom it may take, in this order."""


class EvictionVictim(msgspec.Struct, frozen=True):
    """A pod that has to leave."""

    uid: str
    title: str
    feature: EvictionFeature
    reason: str
    """A sentence about why it leaves, and why it and no other."""


class EvictionSettings(msgspec.Struct, frozen=True):
    rounds: int = 1
    """In so many rounds in a row an amount is above its threshold before a pod leaves."""
    cooling_seconds: float = 20.0
    """The pause after a pod has left."""


class EvictionState(msgspec.Struct, frozen=True):
    """What is kept from one round to the next."""

    rounds: Mapping[EvictionFeature, int] = {}
    """In how many rounds in a row a feature wanted something."""
    relieving: frozenset[EvictionFeature] = frozenset()
    """The features that want something until the amount is below the lower threshold."""
    cooling_until: float = 0.0
    """On the clock of `now_seconds`."""

    def evicted(self, settings: EvictionSettings, now_seconds: float) -> EvictionState:
        """The state after a pod has been evicted."""
        until = now_seconds + settings.cooling_seconds
        return msgspec.structs.replace(self, cooling_until=until)


def decide(
    state: EvictionState,
    moment: EvictionMoment,
    features: Collection[EvictionFeature],
    settings: EvictionSettings,
    now_seconds: float,
    refused: Collection[str] = (),
) -> tuple[EvictionState, EvictionVictim | None]:
    """The state of the next round, and the pod to evict now. After the eviction, the next state is
    `EvictionState.evicted`; after a refused one, another call has the next pod.

    `refused`: the uids of pods whose eviction was refused, as a disruption budget does."""
    wanting = tasks(moment, features, state.relieving)
    rounds = {task.feature: state.rounds.get(task.feature, 0) + 1 for task in wanting}
    ripe = [
        task
        for task in wanting
        if task.feature in state.relieving or rounds[task.feature] >= settings.rounds
    ]
    next_state = EvictionState(
        rounds, frozenset(task.feature for task in ripe), state.cooling_until
    )
    if now_seconds < state.cooling_until:
        return next_state, None
    chosen = victims(ripe, moment.pods, refused)
    return next_state, chosen[0] if chosen else None


def tasks(
    moment: EvictionMoment,
    features: Collection[EvictionFeature],
    relieving: Collection[EvictionFeature] = (),
) -> list[EvictionTask]:
    """What these features want, in the order of EvictionFeature.

    `relieving`: the features that want something until the amount is below the lower threshold."""
    if not moment.threshold.enable:
        return []
    wanting = []
    for feature in EvictionFeature:
        if feature in features:
            wanted, cause = _WANTED[feature](feature, moment, feature in relieving)
            wanted = {resource: each for resource, each in wanted.items() if each > 0}
            if wanted:
                wanting.append(EvictionTask(feature, wanted, cause, _candidates(feature, moment)))
    return wanting


def victims(
    wanting: Iterable[EvictionTask], pods: Iterable[EvictionPod], refused: Collection[str] = ()
) -> tuple[EvictionVictim, ...]:
    """The pods that free what is wanted, in the order in which they leave. What one of them frees
    counts for all tasks."""
    freed: Counter[str] = Counter()
    for pod in pods:
        if pod.leaving:
            freed.update(pod.frees)
    gone: set[str] = set()
    chosen = []
    for task in wanting:
        for pod in task.candidates:
            left = {
                resource: wanted - freed[resource]
                for resource, wanted in task.wanted.items()
                if wanted > freed[resource]
            }
            if not left:
                break
            helps = [resource for resource in left if pod.frees.get(resource, 0) > 0]
            if not helps or pod.uid in gone or (pod.uid in refused and not pod.asked):
                continue
            if not pod.asked:
                reason = _reason(task, pod, helps[0], left[helps[0]])
                chosen.append(EvictionVictim(pod.uid, pod.title, task.feature, reason))
            gone.add(pod.uid)
            freed.update(pod.frees)
    return tuple(chosen)


def _reason(task: EvictionTask, pod: EvictionPod, resource: str, wanted: int) -> str:
    order = f"priority {pod.priority if pod.spec_priority is None else pod.spec_priority}"
    if task.feature not in _OF_BATCH:
        order = f"eviction priority {pod.eviction_priority} and priority {pod.priority}"
    frees = f"{_text(resource, pod.frees[resource])} of {resource}"
    if task.feature not in _OF_PRESSURE:
        frees += f", where {_text(resource, wanted)} is too much"
    return f"{task.cause}. The pod is next by its {order}, and frees {frees}."


def _text(resource: str, value: int) -> str:
    if resource == USED_CPU:
        return amount("cpu", value)
    mebibyte = 1 << 20
    whole = "memory" in resource and value >= mebibyte
    return amount(resource, value // mebibyte * mebibyte if whole else value)


def may_take(feature: EvictionFeature, pod: EvictionPod, threshold: ResourceThreshold) -> bool:
    """Whether the feature may ever take the pod, as its labels, annotations and priority are."""
    if pod.spared or not (pod.allowed is None or feature in pod.allowed):
        return False
    if feature in _OF_BATCH:
        return pod.batch
    most = (
        threshold.allocatable_evict_priority_threshold
        if feature in _OF_ALLOCATABLE
        else threshold.evict_enabled_priority_threshold
    )
    return pod.agreed and most is not None and pod.priority <= most


def _candidates(feature: EvictionFeature, moment: EvictionMoment) -> tuple[EvictionPod, ...]:
    of_batch = feature in _OF_BATCH
    chosen = (
        pod
        for pod in moment.pods
        if pod.running
        and not pod.leaving
        and may_take(feature, pod, moment.threshold)
        and (of_batch or _used(feature, pod) is not None)
    )
    if of_batch:
        return tuple(sorted(chosen, key=cmp_to_key(partial(_compared, feature))))
    return tuple(sorted(chosen, key=lambda pod: _order(feature, pod)))


def _used(feature: EvictionFeature, pod: EvictionPod) -> int | None:
    return pod.used_cpu_milli if feature in _OF_CPU else pod.used_memory_bytes


def _compared(feature: EvictionFeature, one: EvictionPod, other: EvictionPod) -> int:
    """Below 0 if the one leaves first. Priorities count if both pods have one, as they do where an
    API server has admitted them."""
    first, second = one.spec_priority, other.spec_priority
    if first is not None and second is not None and first != second:
        return first - second
    shares = [_share(feature, pod) for pod in (one, other)]
    if shares[0] != shares[1]:
        return -1 if shares[0] > shares[1] else 1
    if feature in _OF_CPU or one.title == other.title:
        return 0
    return -1 if one.title > other.title else 1


def _share(feature: EvictionFeature, pod: EvictionPod) -> float:
    """What the pod uses, of CPU that it requests for BECPUEvict."""
    used = _used(feature, pod) or 0
    if feature is not EvictionFeature.BE_CPU:
        return used
    requested = pod.frees.get(BATCH_CPU)
    return used / requested if requested else 0


def _order(feature: EvictionFeature, pod: EvictionPod) -> tuple[int, ...]:
    size = _used(feature, pod) or 0
    if feature in _OF_ALLOCATABLE:
        size = pod.frees.get(pod.resource("cpu" if feature in _OF_CPU else "memory"), 0)
    return pod.eviction_priority, pod.priority, pod.sub_priority, -size


_Wanted = tuple[dict[str, int], str]
"""By resource, how much has to become free, and the cause."""
_NOTHING: Final[_Wanted] = ({}, "")


def _batch_cpu(_: EvictionFeature, moment: EvictionMoment, relieving: bool) -> _Wanted:
    threshold = moment.threshold
    lower = threshold.cpu_evict_be_satisfaction_lower_percent
    upper = threshold.cpu_evict_be_satisfaction_upper_percent
    if lower is None or upper is None or not 0 < lower <= min(60, upper) or upper >= 100:
        return _NOTHING
    batch = moment.batch
    if threshold.cpu_evict_policy == "evictByAllocatable":
        offered = moment.allocatable.get(BATCH_CPU)
        if offered is None or BATCH_CPU in moment.withdrawn:
            return _NOTHING
        batch = tuple(msgspec.structs.replace(each, limit_milli=max(1, offered)) for each in batch)
    least_used = threshold.cpu_evict_be_usage_threshold_percent
    missing = [
        _missing(each, upper if relieving else lower, upper, _percent_or(least_used, 90))
        for each in batch
    ]
    if not missing:
        return _NOTHING
    last = batch[-1]
    cause = (
        f"BE pods have {amount('cpu', int(last.limit_milli))} of the "
        f"{amount('cpu', int(last.request_milli))} CPUs that they request, and use "
        f"{amount('cpu', int(last.used_milli))}"
    )
    return {BATCH_CPU: min(missing)}, cause


def _percent_or(percent: int | None, default: int) -> int:
    return default if percent is None else percent


def _missing(batch: BatchCpu, satisfied: int, upper: int, least_used: int) -> int:
    """The requests that have to go so that the others are satisfied to the upper percent."""
    if batch.request_milli <= 0 or batch.limit_milli <= 0:
        return 0
    if batch.used_milli / batch.limit_milli < least_used / 100:
        return 0
    satisfaction = batch.limit_milli / batch.request_milli
    if satisfaction > satisfied / 100:
        return 0
    return int(batch.request_milli * (upper / 100 - satisfaction))


def _used_cpu(_: EvictionFeature, moment: EvictionMoment, relieving: bool) -> _Wanted:
    threshold = moment.threshold
    percents = threshold.cpu_evict_threshold_percent, threshold.cpu_evict_lower_percent
    if threshold.evict_enabled_priority_threshold is None:
        return _NOTHING
    used, capacity = moment.used_cpu_milli, moment.capacity.get("cpu", 0)
    return _usage(USED_CPU, used, capacity, percents, relieving)


def _used_memory(feature: EvictionFeature, moment: EvictionMoment, relieving: bool) -> _Wanted:
    threshold = moment.threshold
    percents = threshold.memory_evict_threshold_percent, threshold.memory_evict_lower_percent
    if feature not in _OF_BATCH and threshold.evict_enabled_priority_threshold is None:
        return _NOTHING
    used, capacity = moment.used_memory_bytes, moment.capacity.get("memory", 0)
    return _usage(USED_MEMORY, used, capacity, percents, relieving)


def _usage(
    resource: str,
    used: int | None,
    capacity: int,
    percents: tuple[int | None, int | None],
    relieving: bool,
) -> _Wanted:
    """`percents`: the threshold and the lower threshold."""
    threshold, lower = percents
    if used is None or capacity <= 0 or threshold is None:
        return _NOTHING
    lower = _percent_or(lower, threshold - 2)
    percent = used * 100 // capacity
    if lower >= threshold or percent < (lower if relieving else threshold):
        return _NOTHING
    cause = f"{percent} % of the node's {resource.removesuffix(' in use')} is in use"
    return {resource: capacity * (percent - lower) // 100}, f"{cause}, and {threshold} % evicts"


def _requested(feature: EvictionFeature, moment: EvictionMoment, relieving: bool) -> _Wanted:
    threshold, name = moment.threshold, "memory"
    most = threshold.memory_allocatable_evict_threshold_percent
    lower = threshold.memory_allocatable_evict_lower_percent
    if feature in _OF_CPU:
        name = "cpu"
        most = threshold.cpu_allocatable_evict_threshold_percent
        lower = threshold.cpu_allocatable_evict_lower_percent
    priority = threshold.allocatable_evict_priority_threshold
    if most is None or lower is None or priority is None or lower >= most:
        return _NOTHING
    requested = requested_by_low_priority(moment.pods, name, priority)
    wanted, causes = {}, []
    for resource, total in sorted(requested.items()):
        offered = moment.allocatable.get(resource, 0)
        within = offered > 0 and total / offered <= (lower if relieving else most) / 100
        if within or resource in moment.withdrawn:
            continue
        wanted[resource] = int(total - lower / 100 * offered) if offered > 0 else total
        causes.append(
            f"{_text(resource, total)} of {resource} (the node offers {_text(resource, offered)})"
        )
    return wanted, f"Pods request {', '.join(causes)}"


def _waiting(feature: EvictionFeature, moment: EvictionMoment, relieving: bool) -> _Wanted:
    """Nobody knows how much would have to become free, so any pod that uses something counts."""
    pressure = moment.pressures.get(feature)
    if pressure is None:
        return _NOTHING
    if pressure.percent < (pressure.lower_percent if relieving else pressure.threshold_percent):
        return _NOTHING
    name, resource = ("CPU", USED_CPU) if feature in _OF_CPU else ("memory", USED_MEMORY)
    return {resource: 1}, (
        f"Work waits for {name} {pressure.percent:.1f} % of the time, and "
        f"{pressure.threshold_percent} % evicts"
    )


_WANTED: Final[
    Mapping[EvictionFeature, Callable[[EvictionFeature, EvictionMoment, bool], _Wanted]]
] = {
    EvictionFeature.BE_CPU: _batch_cpu,
    EvictionFeature.CPU_ALLOCATABLE: _requested,
    EvictionFeature.CPU: _used_cpu,
    EvictionFeature.BE_MEMORY: _used_memory,
    EvictionFeature.MEMORY_ALLOCATABLE: _requested,
    EvictionFeature.MEMORY: _used_memory,
    EvictionFeature.CPU_PRESSURE: _waiting,
    EvictionFeature.MEMORY_PRESSURE: _waiting,
}
