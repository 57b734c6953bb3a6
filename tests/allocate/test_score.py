from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocate.score import spread, utilization_score, weights_that_count
from agent.model.cpu.policies import NODE_STRATEGIES, Strategy

MOST = Strategy.MOST_ALLOCATED
LEAST = Strategy.LEAST_ALLOCATED
BALANCED = Strategy.BALANCED_ALLOCATION
EVEN = {"cpu": 1, "memory": 1}


@pytest.mark.parametrize(
    ("strategy", "weights", "used", "points"),
    [
        (LEAST, EVEN, {"cpu": 30, "memory": 100}, (70 + 50) // 2),
        (MOST, EVEN, {"cpu": 30, "memory": 100}, (30 + 50) // 2),
        (LEAST, {"cpu": 3, "memory": 1}, {"cpu": 30, "memory": 100}, (210 + 50) // 4),
        (LEAST, EVEN, {"cpu": 101, "memory": 0}, 50),
        (MOST, EVEN, {"cpu": 101, "memory": 0}, 50),
        (LEAST, {"cpu": 1, "disk": 1}, {"cpu": 30, "disk": 5}, 70),
        (MOST, {"cpu": 1, "disk": 1}, {"cpu": 30, "disk": 5}, 30),
        (MOST, {"disk": 1}, {"disk": 5}, 0),
        (BALANCED, EVEN, {"cpu": 30, "memory": 60}, 100),
        (BALANCED, EVEN, {"cpu": 0, "memory": 200}, 50),
        (BALANCED, EVEN, {"cpu": 20, "memory": 80}, 90),
        (BALANCED, {"cpu": 1, "memory": 3}, {"cpu": 0, "memory": 200}, 56),
        (BALANCED, EVEN, {"cpu": 500, "memory": 200}, 100),
        (BALANCED, {"cpu": 1, "disk": 1}, {"cpu": 70, "disk": 5}, 100),
        (BALANCED, {"disk": 1}, {"disk": 5}, 0),
        (LEAST, {}, {"cpu": 1}, 0),
    ],
)
def test_points(
    strategy: Strategy, weights: dict[str, int], used: dict[str, int], points: int
) -> None:
    assert utilization_score(strategy, weights, {"cpu": 100, "memory": 200}, used) == points


amounts = st.dictionaries(st.sampled_from(["cpu", "memory", "disk"]), st.integers(0, 1 << 50))
weight_maps = st.dictionaries(st.sampled_from(["cpu", "memory", "disk"]), st.integers(1, 100))


@given(st.sampled_from(NODE_STRATEGIES), weight_maps, amounts, amounts)
def test_points_are_0_to_100(
    strategy: Strategy, weights: dict[str, int], capacity: dict[str, int], used: dict[str, int]
) -> None:
    assert 0 <= utilization_score(strategy, weights, capacity, used) <= 100


@given(
    weight_maps, amounts, amounts, st.sampled_from(["cpu", "memory", "disk"]), st.integers(0, 1000)
)
def test_more_use_never_lowers_most_allocated_and_never_raises_least_allocated(
    weights: dict[str, int], capacity: dict[str, int], used: dict[str, int], name: str, more: int
) -> None:
    then = {**used, name: used.get(name, 0) + more}
    assert utilization_score(MOST, weights, capacity, then) >= utilization_score(
        MOST, weights, capacity, used
    )
    assert utilization_score(LEAST, weights, capacity, then) <= utilization_score(
        LEAST, weights, capacity, used
    )


def test_no_amounts_have_no_spread() -> None:
    assert spread({}) == 0
    assert spread({0.5: 0}) == 0


def test_other_resources_count_if_a_pod_requests_them() -> None:
    weights = {"cpu": 1, "memory": 2, "a.b/card": 3, "a.b/port": 4}
    assert weights_that_count(weights, {"cpu": 1, "a.b/port": 1}) == {
        "cpu": 1,
        "memory": 2,
        "a.b/port": 4,
    }
