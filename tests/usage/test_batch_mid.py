"""Batch and mid resources beside the vectors of Koordinator's manager (tests/conformance)."""

from __future__ import annotations

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


def test_reserved_is_the_larger_amount() -> None:
    capacity, allocatable = {"cpu": 8000, "memory": 100}, {"cpu": 7500, "memory": 100}
    assert reserved(capacity, allocatable, NodeReservation()) == {"cpu": 500, "memory": 0}
    by_number = NodeReservation({"cpu": 1, "memory": 30}, "0-2")
    assert reserved(capacity, allocatable, by_number) == {"cpu": 3000, "memory": 30}
    with pytest.raises(AnnotationError, match=r"resources\.memory"):
        reserved(capacity, allocatable, NodeReservation({"memory": "x"}))
