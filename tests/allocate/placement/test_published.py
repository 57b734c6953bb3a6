"""Placement policies from publications."""

from __future__ import annotations

import pytest

from agent.allocate.placement.demand import FreeAmounts, node_capacity
from agent.allocate.placement.published import Fgd, Fragmentation
from agent.model.pod_request import GPU_MILLI, PodKind

WHOLE = PodKind(8000, 1, 1, GPU_MILLI)
SMALL = PodKind(2000, 1, 1, 300)
COUNTS = {WHOLE: 3, SMALL: 1}


def amounts(gpu_milli: dict[int, int], cpu_milli: int = 64_000, model: str = "G2") -> FreeAmounts:
    capacity = node_capacity("n", 64_000, 64, len(gpu_milli), model)
    return FreeAmounts(capacity, cpu_milli, 64, gpu_milli)


@pytest.mark.parametrize(
    ("left", "cpu", "lost"),
    [
        ({0: GPU_MILLI}, 64_000, 0.0),
        ({0: 500}, 64_000, 500 * 0.75),
        ({0: 200}, 64_000, 200.0),
        ({0: 500, 1: GPU_MILLI}, 64_000, 500 * 0.75),
        ({0: GPU_MILLI}, 4_000, GPU_MILLI * 0.75),
        ({0: GPU_MILLI}, 1_000, 1000.0),
    ],
)
def test_a_fragment_is_unusable_for_typical_pods(
    left: dict[int, int], cpu: int, lost: float
) -> None:
    assert Fragmentation(COUNTS).of_node(amounts(left, cpu)) == pytest.approx(lost)


def test_gpus_of_other_models_are_fragments_for_a_pod_that_requires_a_model() -> None:
    meter = Fragmentation({PodKind(1000, 1, 1, GPU_MILLI, ("T4",)): 1, WHOLE: 1})
    assert meter.of_node(amounts({0: GPU_MILLI})) == pytest.approx(500)
    assert meter.of_node(amounts({0: GPU_MILLI}, model="T4")) == pytest.approx(0)


def test_kinds_beyond_95_percent_of_the_pods_do_not_count() -> None:
    meter = Fragmentation({WHOLE: 96, SMALL: 4})
    assert meter.of_node(amounts({0: 500})) == pytest.approx(500)


def test_fgd_chooses_the_card_with_the_smallest_increase_of_fragmentation() -> None:
    assert Fgd(COUNTS).rating(amounts({0: GPU_MILLI, 1: 700}), SMALL).cards == (1,)


def test_fgd_counts_what_the_pod_leaves_of_each_of_its_cards() -> None:
    """Of 2 x 700 thousandths, three of four typical pods can use none: a rise of 1,050."""
    two_parts = PodKind(2000, 1, 2, 300)
    rating = Fgd(COUNTS).rating(amounts({0: GPU_MILLI, 1: GPU_MILLI}), two_parts)
    assert (rating.cards, rating.points) == ((0, 1), 25)


def test_the_cost_of_fgd_equals_its_points() -> None:
    found = Fgd(COUNTS).rating(amounts({0: GPU_MILLI}), SMALL)
    assert found.cost == -found.points
