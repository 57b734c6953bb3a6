"""Batch and mid resources beside the vectors of Koordinator's manager (tests/conformance)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.nrt.node_annotations import NodeReservation
from agent.model.pod.annotations import AnnotationError
from agent.usage.batch_mid import (
    STEPS,
    ColocationStrategy,
    NodeLoad,
    PodLoad,
    Term,
    Zones,
    batch_of_zones,
    offered,
    reserved,
    steady,
)

GIB = 1 << 30
NODE = NodeLoad(
    {"cpu": 64_000, "memory": 256 * GIB},
    {"cpu": 1000, "memory": 4 * GIB},
    {"cpu": 2654, "memory": 2 * GIB},
    {"cpu": 20_000, "memory": 60 * GIB},
    {"cpu": 3100, "memory": 5 * GIB},
    (
        PodLoad("koord-prod", {"cpu": 20_000, "memory": 64 * GIB}, {"cpu": 9000, "memory": GIB}),
        PodLoad("koord-prod", {"cpu": 4000, "memory": GIB}, {"cpu": 10}, exclusive=True),
        PodLoad("koord-batch", used={"cpu": 7000, "memory": 50 * GIB}),
    ),
)


def test_every_term_is_named_and_the_sum_is_offered_in_steps() -> None:
    resources = {each.name: each for each in offered(NODE, ColocationStrategy(), {})}
    batch_cpu = resources["kubernetes.io/batch-cpu"]
    assert batch_cpu.offer.terms == (
        Term("capacity", 64_000),
        Term("free by strategy", -25_600),
        Term("system", -2654),
        Term("used by prod and mid pods", -13_000),
    )
    assert batch_cpu.offer.amount == 22_746
    assert batch_cpu.amount == 22_500
    assert resources["kubernetes.io/mid-cpu"].offer.terms == (
        Term("reclaimable of prod pods", 3100),
        Term("share of what is unallocated", 0),
    )
    assert resources["kubernetes.io/mid-memory"].amount == 5 * GIB


def test_fast_cpus_count_as_more_after_the_limit() -> None:
    node = msgspec.structs.replace(NODE, cpu_normalization_ratio=1.5)
    limited = ColocationStrategy(batch_cpu_threshold_percent=20, batch_memory_threshold_percent=20)
    cpu, memory, *mid = offered(node, limited, {})
    assert cpu.offer.limit == 12_800
    assert (cpu.offer.normalization, cpu.offer.amount, cpu.amount) == (6400, 19_200, 19_000)
    assert [memory, *mid] == list(offered(NODE, limited, {})[1:])


def test_third_parties_take_from_the_steady_amount() -> None:
    node = msgspec.structs.replace(NODE, third_party={"cpu": 10_000, "memory": 1 << 50})
    before = {"kubernetes.io/batch-cpu": 22_000}
    cpu, memory, mid_cpu, _ = offered(node, ColocationStrategy(), before)
    assert (cpu.amount, cpu.origin, cpu.third_party) == (12_000, 22_000, 10_000)
    assert (memory.amount, memory.third_party) == (0, 1 << 50)
    assert memory.origin == offered(NODE, ColocationStrategy(), {})[1].amount
    assert mid_cpu.third_party is None


@pytest.mark.parametrize(
    ("before", "amount", "offers"),
    [
        (None, 1700, 1500),
        (1500, 1700, 1500),
        (1500, 2499, 1500),
        (1500, 2500, 2500),
        (1500, 1499, 1000),
        (1500, 0, 0),
    ],
)
def test_an_amount_stays_within_two_steps(before: int | None, amount: int, offers: int) -> None:
    assert steady("cpu", before, amount) == offers


@given(st.lists(st.integers(0, 20_000), min_size=1), st.sampled_from(sorted(STEPS)))
def test_never_more_is_offered_than_is_there(amounts: list[int], name: str) -> None:
    scale, before = STEPS[name] // 500, None
    for amount in amounts:
        before = steady(name, before, amount * scale)
        assert before % STEPS[name] == 0
        assert 0 <= amount * scale - before < 2 * STEPS[name]


BATCH_CPU, BATCH_MEMORY = "kubernetes.io/batch-cpu", "kubernetes.io/batch-memory"
USED = {"cpu": 6001, "memory": GIB}
BOUND = PodLoad("koord-prod", {"cpu": 9000}, USED, numa_nodes=frozenset([1]))
ELSEWHERE = msgspec.structs.replace(BOUND, numa_nodes=frozenset([9]))
GREEDY = msgspec.structs.replace(BOUND, used={"cpu": 24_000, "memory": 0})
MEMORY = {"cpu": 0, "memory": GIB}
HALF = {"cpu": 32_000, "memory": 128 * GIB}


def of_zones(node: NodeLoad, strategy: ColocationStrategy | None = None) -> Zones:
    chosen = strategy or ColocationStrategy()
    return batch_of_zones(node, chosen, offered(node, chosen, {}), {})


@pytest.mark.parametrize(
    ("changes", "cpu_milli"),
    [
        # 32,000 less 40 % less half of the system's 2654 less half of the pods' 13,000.
        ({}, {0: 11_000, 1: 11_000}),
        ({"pods": (BOUND,)}, {0: 17_500, 1: 11_500}),
        ({"pods": (ELSEWHERE,)}, {0: 14_500, 1: 14_500}),
        ({"pods": (PodLoad("koord-prod", {"cpu": 12_001}),)}, {0: 11_500, 1: 11_500}),
        ({"third_party": {"cpu": 10_000}}, {0: 6000, 1: 6000}),
        ({"cpu_normalization_ratio": 1.5}, {0: 17_000, 1: 17_000}),
        # A pod that uses more of its NUMA node than there is leaves no more to the other one.
        ({"pods": (GREEDY,)}, {0: 11_500, 1: 0}),
        ({"numa_capacity": {0: HALF, 1: HALF, 2: MEMORY}}, {0: 11_000, 1: 11_000, 2: 0}),
    ],
)
def test_a_numa_node_offers_what_is_left_there(
    changes: dict[str, Any], cpu_milli: dict[int, int]
) -> None:
    node = msgspec.structs.replace(NODE, **{"numa_capacity": {0: HALF, 1: HALF}, **changes})
    assert {zone: amounts[BATCH_CPU] for zone, amounts in of_zones(node).items()} == cpu_milli


def test_huge_pages_are_reserved_where_they_are() -> None:
    """24 GiB of huge pages and 4 GiB for the kubelet are not allocatable."""
    node = NodeLoad(
        {"cpu": 0, "memory": 64 * GIB},
        {"cpu": 0, "memory": 28 * GIB},
        {"cpu": 0, "memory": 0},
        {},
        {},
        numa_capacity={0: {"memory": 8 * GIB}, 1: {"memory": 32 * GIB}},
    )
    everything = ColocationStrategy(memory_reclaim_threshold_percent=100)
    memory = {zone: amounts[BATCH_MEMORY] for zone, amounts in of_zones(node, everything).items()}
    assert memory == {0: 6 * GIB, 1: 30 * GIB}


_amounts = st.fixed_dictionaries(
    {"cpu": st.integers(0, 20_000), "memory": st.integers(0, 40 * GIB)}
)
_pods = st.builds(
    PodLoad,
    st.sampled_from(["koord-prod", "koord-mid", "koord-batch"]),
    _amounts,
    st.none() | _amounts,
    st.booleans(),
    numa_nodes=st.frozensets(st.integers(0, 3), max_size=2),
)
_loads = st.builds(
    NodeLoad,
    st.just(NODE.capacity),
    _amounts,
    _amounts,
    st.just({}),
    st.just({}),
    st.lists(_pods, max_size=4).map(tuple),
    cpu_normalization_ratio=st.floats(1, 3),
    third_party=st.none() | _amounts,
    numa_capacity=st.dictionaries(st.integers(0, 3), _amounts, max_size=4),
)


@given(st.lists(_loads, min_size=1, max_size=5), st.sampled_from(["usage", "maxUsageRequest"]))
def test_zones_never_offer_more_than_their_node(loads: list[NodeLoad], policy: Any) -> None:
    chosen = ColocationStrategy(cpu_calculate_policy=policy)
    origins: dict[str, int] = {}
    before: Zones = {}
    for load in loads:
        resources = offered(load, chosen, origins)
        before = batch_of_zones(load, chosen, resources, before)
        origins = {resource.name: resource.origin for resource in resources}
        for resource in resources[:2]:
            of_each = [amounts[resource.name] for amounts in before.values()]
            assert sum(of_each) <= resource.amount
            assert all(amount % STEPS[resource.name.rpartition("-")[2]] == 0 for amount in of_each)


def test_reserved_is_the_larger_amount() -> None:
    capacity, allocatable = {"cpu": 8000, "memory": 100}, {"cpu": 7500, "memory": 100}
    assert reserved(capacity, allocatable, NodeReservation()) == {"cpu": 500, "memory": 0}
    by_number = NodeReservation({"cpu": 1, "memory": 30}, "0-2")
    assert reserved(capacity, allocatable, by_number) == {"cpu": 3000, "memory": 30}
    with pytest.raises(AnnotationError, match=r"resources\.memory"):
        reserved(capacity, allocatable, NodeReservation({"memory": "x"}))
