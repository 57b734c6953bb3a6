"""The present amounts of evictions in sentences."""

from __future__ import annotations

import msgspec
import pytest

from agent.allocate.colocation.eviction import (
    BatchCpu,
    EvictionFeature,
    EvictionMoment,
    PressureLimit,
)
from agent.allocate.colocation.eviction_levels import level
from agent.allocate.colocation.eviction_pod import BATCH_CPU, EvictionPod
from agent.model.node_slo import ResourceThreshold
from agent.model.pod.qos import PriorityClass

GIB = 1 << 30
ALL = ResourceThreshold(
    enable=True,
    memory_evict_threshold_percent=80,
    cpu_evict_threshold_percent=70,
    cpu_evict_lower_percent=60,
    evict_enabled_priority_threshold=5999,
    cpu_evict_be_satisfaction_lower_percent=50,
    cpu_evict_be_satisfaction_upper_percent=80,
    cpu_allocatable_evict_threshold_percent=110,
    cpu_allocatable_evict_lower_percent=100,
    allocatable_evict_priority_threshold=5999,
)
POD = EvictionPod("a", "ns/a", PriorityClass.BATCH, True, 5500, 5500, frees={BATCH_CPU: 3000})
NODE = EvictionMoment(
    ALL,
    (POD,),
    {"cpu": 10_000, "memory": 100 * GIB},
    {BATCH_CPU: 2000},
    7500,
    33 * GIB,
    (BatchCpu(3000, 2000, 1900),),
    {EvictionFeature.CPU_PRESSURE: PressureLimit(12.25, 40, 20)},
)
NOTHING = EvictionMoment(ResourceThreshold(enable=True), ())


@pytest.mark.parametrize(
    ("feature", "text", "without_settings"),
    [
        (
            "BECPUEvict",
            "BE pods have 2 of the 3 CPUs that they request, use 1900m; up to 50 % evicts, until "
            "80 %",
            "cpuEvictBESatisfactionLowerPercent and cpuEvictBESatisfactionUpperPercent",
        ),
        (
            "CPUEvict",
            "75 % of the node's CPU is in use; from 70 % it evicts, until less than 60 %",
            "cpuEvictThresholdPercent",
        ),
        (
            "MemoryEvict",
            "33 % of the node's memory is in use; from 80 % it evicts, until less than 78 %",
            "evictEnabledPriorityThreshold",
        ),
        (
            "CPUAllocatableEvict",
            f"3000 of 2000 {BATCH_CPU} is requested; above 110 % it evicts, until 100 %",
            "cpuAllocatableEvictThresholdPercent and cpuAllocatableEvictLowerPercent and "
            "allocatableEvictPriorityThreshold",
        ),
    ],
)
def test_the_level_and_what_it_needs(feature: str, text: str, without_settings: str) -> None:
    assert level(EvictionFeature(feature), NODE) == text
    idle = level(EvictionFeature(feature), NOTHING)
    assert idle == f"idle: the strategy needs {without_settings}"


def test_what_is_not_known_and_what_nobody_offers() -> None:
    of_pods = msgspec.structs.replace(
        NODE, withdrawn=frozenset({BATCH_CPU}), used_memory_bytes=None, batch=()
    )
    assert level(EvictionFeature.CPU_ALLOCATABLE, of_pods).startswith(
        f"nobody offers {BATCH_CPU}, so that no pod leaves for it; above"
    )
    assert level(EvictionFeature.BE_MEMORY, of_pods).startswith("the present value is not known")
    assert level(EvictionFeature.BE_CPU, of_pods).startswith("the present value is not known")
    by_allocatable = msgspec.structs.replace(ALL, cpu_evict_policy="evictByAllocatable")
    of_pods = msgspec.structs.replace(of_pods, threshold=by_allocatable)
    assert level(EvictionFeature.BE_CPU, of_pods).startswith(f"nobody offers {BATCH_CPU}")


def test_the_pressure_of_the_pod_that_waits_most() -> None:
    assert level(EvictionFeature.CPU_PRESSURE, NODE) == (
        "the pod that waits most, of those that are not BE, waits 12.2 % of the time; from 40 % it "
        "evicts, until less than 20 %"
    )
    assert "is not known" in level(EvictionFeature.MEMORY_PRESSURE, NODE)
