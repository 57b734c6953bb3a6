"""What a feature of evictions looks at, in sentences: the present amount and its thresholds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from agent.allocate.colocation.eviction import EvictionFeature, EvictionMoment
from agent.allocate.colocation.eviction_pod import BATCH_CPU, requested_by_low_priority
from agent.model.quantities import amount

_NOT_KNOWN: Final = "the present value is not known"


def level(feature: EvictionFeature, moment: EvictionMoment) -> str:
    """The sentence for one feature."""
    match feature:
        case EvictionFeature.BE_CPU:
            return _satisfaction(moment)
        case EvictionFeature.CPU_ALLOCATABLE | EvictionFeature.MEMORY_ALLOCATABLE:
            return _allocatable(feature, moment)
        case EvictionFeature.CPU_PRESSURE | EvictionFeature.MEMORY_PRESSURE:
            return _pressure(feature, moment)
    return _usage(feature, moment)


def _satisfaction(moment: EvictionMoment) -> str:
    threshold = moment.threshold
    lower = threshold.cpu_evict_be_satisfaction_lower_percent
    upper = threshold.cpu_evict_be_satisfaction_upper_percent
    if lower is None or upper is None:
        return _unset("cpuEvictBESatisfactionLowerPercent", "cpuEvictBESatisfactionUpperPercent")
    evicts = f"up to {lower} % evicts, until {upper} %"
    if threshold.cpu_evict_policy == "evictByAllocatable" and BATCH_CPU in moment.withdrawn:
        return f"nobody offers {BATCH_CPU}, so that no pod leaves ({evicts})"
    if not moment.batch:
        return f"{_NOT_KNOWN} ({evicts})"
    last = moment.batch[-1]
    limit, requested, used = (
        amount("cpu", int(each)) for each in (last.limit_milli, last.request_milli, last.used_milli)
    )
    return f"BE pods have {limit} of the {requested} CPUs that they request, use {used}; {evicts}"


def _usage(feature: EvictionFeature, moment: EvictionMoment) -> str:
    threshold, of_memory = moment.threshold, feature is not EvictionFeature.CPU
    most, lower = threshold.cpu_evict_threshold_percent, threshold.cpu_evict_lower_percent
    used, name = moment.used_cpu_milli, "cpu"
    if of_memory:
        most, lower = (
            threshold.memory_evict_threshold_percent,
            threshold.memory_evict_lower_percent,
        )
        used, name = moment.used_memory_bytes, "memory"
    if most is None:
        return _unset("cpuEvictThresholdPercent")
    agreed = feature is not EvictionFeature.BE_MEMORY
    if agreed and threshold.evict_enabled_priority_threshold is None:
        return _unset("evictEnabledPriorityThreshold")
    evicts = f"from {most} % it evicts, until less than {most - 2 if lower is None else lower} %"
    capacity = moment.capacity.get(name, 0)
    if used is None or not capacity:
        return f"{_NOT_KNOWN} ({evicts})"
    return f"{used * 100 // capacity} % of the node's {_WORDS[name]} is in use; {evicts}"


_WORDS: Final[Mapping[str, str]] = {"cpu": "CPU", "memory": "memory"}


def _allocatable(feature: EvictionFeature, moment: EvictionMoment) -> str:
    threshold, name = moment.threshold, "memory"
    most = threshold.memory_allocatable_evict_threshold_percent
    lower = threshold.memory_allocatable_evict_lower_percent
    if feature is EvictionFeature.CPU_ALLOCATABLE:
        name = "cpu"
        most = threshold.cpu_allocatable_evict_threshold_percent
        lower = threshold.cpu_allocatable_evict_lower_percent
    priority = threshold.allocatable_evict_priority_threshold
    if most is None or lower is None or priority is None:
        return _unset(
            f"{name}AllocatableEvictThresholdPercent",
            f"{name}AllocatableEvictLowerPercent",
            "allocatableEvictPriorityThreshold",
        )
    parts = []
    for resource, total in sorted(requested_by_low_priority(moment.pods, name, priority).items()):
        offered = moment.allocatable.get(resource, 0)
        if resource in moment.withdrawn:
            parts.append(f"nobody offers {resource}, so that no pod leaves for it")
        else:
            parts.append(
                f"{amount(resource, total)} of {amount(resource, offered)} {resource} is requested"
            )
    present = ", ".join(parts) or "no pod up to the priority requests any"
    return f"{present}; above {most} % it evicts, until {lower} %"


def _pressure(feature: EvictionFeature, moment: EvictionMoment) -> str:
    pressure = moment.pressures.get(feature)
    if pressure is None:
        return "the pressure of pods (PSI) is not known"
    return (
        f"the pod that waits most, of those that are not BE, waits {pressure.percent:.1f} % of the "
        f"time; from {pressure.threshold_percent} % it evicts, until less than "
        f"{pressure.lower_percent} %"
    )


def _unset(*names: str) -> str:
    return f"idle: the strategy needs {' and '.join(names)}"
