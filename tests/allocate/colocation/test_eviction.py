from __future__ import annotations

from typing import Any, Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocate.colocation.eviction import (
    BatchCpu,
    EvictionFeature,
    EvictionMoment,
    EvictionSettings,
    EvictionState,
    EvictionVictim,
    PressureLimit,
    decide,
    tasks,
    victims,
)
from agent.allocate.colocation.eviction_pod import BATCH_CPU, USED_CPU, USED_MEMORY, EvictionPod
from agent.model.node_slo import ResourceThreshold
from agent.model.pod.qos import PriorityClass

GIB: Final = 1 << 30
MEMORY: Final = ResourceThreshold(
    enable=True,
    memory_evict_threshold_percent=80,
    memory_evict_lower_percent=60,
    evict_enabled_priority_threshold=7999,
)


def pod(
    uid: str, *, priority: int = 5500, used_gib: int | None = None, **other: Any
) -> EvictionPod:
    frees = other.pop("frees", {})
    if used_gib is not None:
        frees = frees | {USED_MEMORY: used_gib * GIB}
    kind = other.pop("priority_class", PriorityClass.BATCH)
    return EvictionPod(
        uid, f"default/{uid}", kind, True, priority, priority, agreed=True, frees=frees, **other
    )


def moment(*pods: EvictionPod, used_gib: int = 90, **other: Any) -> EvictionMoment:
    return EvictionMoment(
        other.pop("threshold", MEMORY),
        pods,
        {"memory": 100 * GIB, "cpu": 10_000},
        used_memory_bytes=used_gib * GIB,
        **other,
    )


def leave(node: EvictionMoment, *features: EvictionFeature) -> list[str]:
    return [each.uid for each in victims(tasks(node, features), node.pods)]


def test_pods_leave_by_priority_until_enough_is_free() -> None:
    node = moment(
        pod("a", used_gib=15),
        pod("b", used_gib=20),
        pod("c", priority=5000, used_gib=12),
        pod("d", used_gib=15, priority=9500),
    )
    assert leave(node, EvictionFeature.BE_MEMORY) == ["c", "b"]
    assert leave(node, EvictionFeature.MEMORY) == ["c", "b"]


def test_the_reason_says_why_this_pod() -> None:
    node = moment(pod("a", used_gib=2))
    (victim,) = victims(tasks(node, [EvictionFeature.MEMORY]), node.pods)
    assert victim == EvictionVictim(
        "a",
        "default/a",
        EvictionFeature.MEMORY,
        "90 % of the node's memory is in use, and 80 % evicts. The pod is next by its eviction "
        "priority 0 and priority 5500, and frees 2Gi of memory in use, where 30Gi is too much.",
    )


def test_no_pod_leaves_in_vain() -> None:
    """koordlet evicts free and batch pods while mid pods request too much."""
    threshold = ResourceThreshold(
        enable=True,
        cpu_allocatable_evict_threshold_percent=110,
        cpu_allocatable_evict_lower_percent=100,
        allocatable_evict_priority_threshold=7999,
    )
    mid_cpu = "kubernetes.io/mid-cpu"
    mid = PriorityClass.MID
    node = moment(
        pod("free", priority=3500, frees={"cpu": 9_000, USED_CPU: 1}, priority_class="koord-free"),
        pod("batch", frees={BATCH_CPU: 900, USED_CPU: 1}),
        pod("mid", priority=7500, frees={mid_cpu: 1_500, USED_CPU: 1}, priority_class=mid),
        pod("ended", priority=7000, frees={mid_cpu: 9_000}, priority_class=mid, running=False),
        threshold=threshold,
        allocatable={"cpu": 10_000, BATCH_CPU: 1_000, mid_cpu: 1_000},
    )
    assert leave(node, EvictionFeature.CPU_ALLOCATABLE) == ["mid"]
    (task,) = tasks(node, [EvictionFeature.CPU_ALLOCATABLE])
    assert task.wanted == {mid_cpu: 500}


def test_batch_pods_leave_only_if_they_want_more_than_they_get() -> None:
    """koordlet does not ask what they use while they may use less than one core."""
    threshold = ResourceThreshold(
        enable=True,
        cpu_evict_be_satisfaction_lower_percent=50,
        cpu_evict_be_satisfaction_upper_percent=80,
    )
    pods = (pod("a", frees={BATCH_CPU: 500, USED_CPU: 100}), pod("b", frees={BATCH_CPU: 500}))
    features = [EvictionFeature.BE_CPU]

    def left(used_milli: float) -> list[str]:
        batch = (BatchCpu(1000, 400, used_milli),) * 2
        return leave(moment(*pods, threshold=threshold, batch=batch), *features)

    assert left(399) == ["a"]
    assert left(40) == []


def test_no_pod_leaves_for_a_resource_that_nobody_offers() -> None:
    threshold = ResourceThreshold(
        enable=True,
        cpu_allocatable_evict_threshold_percent=110,
        cpu_allocatable_evict_lower_percent=100,
        allocatable_evict_priority_threshold=7999,
        cpu_evict_be_satisfaction_lower_percent=50,
        cpu_evict_be_satisfaction_upper_percent=80,
        cpu_evict_policy="evictByAllocatable",
    )
    features = [EvictionFeature.CPU_ALLOCATABLE, EvictionFeature.BE_CPU]
    batch = (BatchCpu(1000, 1000, 1000),) * 2
    pods = pod("a", frees={BATCH_CPU: 1000, USED_CPU: 1000})
    node = moment(pods, threshold=threshold, batch=batch, allocatable={BATCH_CPU: 0})
    assert [task.feature for task in tasks(node, features)] == features[::-1]
    withdrawn = msgspec.structs.replace(node, withdrawn=frozenset({BATCH_CPU}))
    assert tasks(withdrawn, features) == []


def test_what_leaves_already_counts() -> None:
    pods = [pod("a", used_gib=20), pod("b", used_gib=20)]
    deleted = pod("gone", used_gib=30, leaving=True)
    assert leave(moment(*pods), EvictionFeature.MEMORY) == ["a", "b"]
    assert leave(moment(*pods, deleted), EvictionFeature.MEMORY) == []
    asked = msgspec.structs.replace(pods[0], asked=True)
    assert leave(moment(asked, pods[1]), EvictionFeature.MEMORY) == ["b"]


def test_pressure_takes_one_pod_and_waits() -> None:
    feature = EvictionFeature.MEMORY_PRESSURE
    limit = PressureLimit(12.5, 10, 5)
    node = moment(
        pod("a", used_gib=1), pod("b", used_gib=2), pod("idle"), pressures={feature: limit}
    )
    (victim,) = victims(tasks(node, [feature]), node.pods)
    assert victim.uid == "b"
    assert victim.reason == (
        "Work waits for memory 12.5 % of the time, and 10 % evicts. The pod is next by its "
        "priority 5500, and frees 2Gi of memory in use."
    )


def test_a_pod_leaves_after_some_rounds_and_then_there_is_a_pause() -> None:
    settings = EvictionSettings(rounds=3, cooling_seconds=20)
    features = [EvictionFeature.MEMORY]
    pods = [pod("a", used_gib=15), pod("b", used_gib=10), pod("c", used_gib=5)]
    state = EvictionState()
    left = []
    for now in range(60):
        node = moment(*pods, used_gib=90 - sum(map(int, (each[1] for each in left))))
        state, victim = decide(state, node, features, settings, now)
        if victim is not None:
            gone = next(each for each in pods if each.uid == victim.uid)
            left.append((now, (gone.used_memory_bytes or 0) // GIB))
            pods.remove(gone)
            state = state.evicted(settings, now)
    assert left == [(2, 15), (22, 10), (42, 5)], "below 80 % they go on until 60 %"
    assert not state.rounds
    assert not state.relieving


def test_a_round_below_the_threshold_starts_the_count_anew() -> None:
    settings = EvictionSettings(rounds=2)
    state = EvictionState()
    for used in (90, 70, 90):
        node = moment(pod("a", used_gib=50), used_gib=used)
        state, victim = decide(state, node, [EvictionFeature.MEMORY], settings, 0)
        assert victim is None
    assert state.rounds == {EvictionFeature.MEMORY: 1}


def test_after_a_refused_eviction_the_next_pod_is_tried() -> None:
    node = moment(pod("a", used_gib=20), pod("b", used_gib=10))
    features, settings = [EvictionFeature.MEMORY], EvictionSettings()
    _, victim = decide(EvictionState(), node, features, settings, 0, refused={"a"})
    assert victim is not None
    assert victim.uid == "b"


@pytest.mark.parametrize("change", [{"enable": False}, {"memory_evict_lower_percent": 80}])
def test_a_feature_that_is_off_or_has_no_range_wants_nothing(change: dict[str, Any]) -> None:
    threshold = msgspec.structs.replace(MEMORY, **change)
    assert tasks(moment(pod("a", used_gib=9), threshold=threshold), list(EvictionFeature)) == []


PERCENTS = st.none() | st.integers(0, 100)
THRESHOLDS = st.builds(
    ResourceThreshold,
    enable=st.just(True),
    memory_evict_threshold_percent=st.integers(0, 100),
    memory_evict_lower_percent=PERCENTS,
    memory_allocatable_evict_threshold_percent=st.integers(1, 150),
    memory_allocatable_evict_lower_percent=st.integers(1, 100),
    cpu_evict_be_satisfaction_upper_percent=PERCENTS,
    cpu_evict_be_satisfaction_lower_percent=PERCENTS,
    cpu_evict_threshold_percent=PERCENTS,
    cpu_evict_lower_percent=PERCENTS,
    cpu_allocatable_evict_threshold_percent=st.integers(1, 150),
    cpu_allocatable_evict_lower_percent=st.integers(1, 100),
    evict_enabled_priority_threshold=st.none() | st.integers(0, 1 << 31),
    allocatable_evict_priority_threshold=st.none() | st.integers(0, 7999),
)
RESOURCES: Final = ("cpu", "memory", BATCH_CPU, "kubernetes.io/mid-memory", USED_CPU, USED_MEMORY)
AMOUNTS = st.dictionaries(st.sampled_from(RESOURCES), st.integers(0, 20_000))
PODS = st.builds(
    EvictionPod,
    st.uuids().map(str),
    st.just("default/p"),
    st.sampled_from(PriorityClass).map(str),
    st.booleans(),
    st.none() | st.integers(0, 9999),
    st.integers(0, 9999),
    agreed=st.booleans(),
    allowed=st.none() | st.frozensets(st.sampled_from(EvictionFeature)),
    spared=st.sampled_from(("", "", "it is static", "it is critical")),
    running=st.booleans(),
    leaving=st.booleans(),
    asked=st.booleans(),
    frees=AMOUNTS,
)
FLOATS = st.floats(0, 20_000)
MOMENTS = st.builds(
    EvictionMoment,
    THRESHOLDS,
    st.lists(PODS, max_size=6).map(tuple),
    AMOUNTS,
    AMOUNTS,
    st.none() | st.integers(0, 20_000),
    st.none() | st.integers(0, 20_000),
    st.lists(st.builds(BatchCpu, FLOATS, FLOATS, FLOATS), max_size=2).map(tuple),
    st.dictionaries(
        st.sampled_from((EvictionFeature.CPU_PRESSURE, EvictionFeature.MEMORY_PRESSURE)),
        st.builds(PressureLimit, st.floats(0, 100), st.integers(0, 100), st.integers(0, 100)),
    ),
)


@given(MOMENTS)
def test_victims_may_leave_and_free_something_that_is_wanted(node: EvictionMoment) -> None:
    wanting = tasks(node, list(EvictionFeature))
    chosen = victims(wanting, node.pods)
    by_uid = {each.uid: each for each in node.pods}
    wanted = {task.feature: task.wanted for task in wanting}
    assert len({each.uid for each in chosen}) == len(chosen)
    for victim in chosen:
        gone = by_uid[victim.uid]
        assert not gone.spared
        assert gone.running
        assert not gone.leaving
        assert not gone.asked
        assert gone.allowed is None or victim.feature in gone.allowed
        assert any(gone.frees.get(resource, 0) for resource in wanted[victim.feature])
    assert victims(tasks(node, list(EvictionFeature)), node.pods) == chosen


@given(MOMENTS)
def test_no_pod_leaves_after_enough_is_free(node: EvictionMoment) -> None:
    """Without its last victim a feature that acts alone has less than it wants."""
    for feature in EvictionFeature:
        for task in tasks(node, [feature]):
            chosen = [each.uid for each in victims([task], node.pods)]
            counted = {*chosen[:-1], *(pod.uid for pod in node.pods if pod.leaving)}
            freed = {
                resource: sum(pod.frees.get(resource, 0) for pod in node.pods if pod.uid in counted)
                for resource in task.wanted
            }
            assert not chosen or any(freed[name] < least for name, least in task.wanted.items())
