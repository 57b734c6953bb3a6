from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.kube.schedule import CAP_SECONDS, Backoff, spread

chances = st.floats(0, 1, exclude_max=True)


@given(st.lists(chances, min_size=20, max_size=20), st.none() | st.just(0.0) | st.just(1.0))
def test_at_most_five_attempts_in_ten_seconds(
    random_values: list[float], retry_after: float | None
) -> None:
    backoff = Backoff(itertools.cycle(random_values).__next__)
    delays = [backoff.next(retry_after) for _ in range(12)]
    attempts = list(itertools.accumulate(delays, initial=0.0))
    for first in range(len(attempts) - 5):
        assert attempts[first + 5] - attempts[first] > 10
    assert max(delays) <= CAP_SECONDS * 2


@pytest.mark.parametrize(
    ("random_value", "delays"), [(0.0, [0.5, 1, 2]), (0.999, [1.499, 2.998, 5.996])]
)
def test_delays_are_random_within_a_step_and_steps_double(
    random_value: float, delays: list[float]
) -> None:
    backoff = Backoff(lambda: random_value)
    assert [backoff.next() for _ in delays] == pytest.approx(delays)
    backoff.reset()
    assert backoff.next() == pytest.approx(delays[0])


@given(chances, st.floats(0, 300))
def test_retry_after_is_respected(random_value: float, seconds: float) -> None:
    backoff = Backoff(lambda: random_value)
    assert all(backoff.next(seconds) >= seconds for _ in range(10))


@pytest.mark.parametrize("seconds", [1e9, float("inf")])
def test_retry_after_is_limited(seconds: float) -> None:
    assert Backoff(lambda: 0.5).next(seconds) < 310
    assert Backoff(lambda: 0.5).next(-seconds) < 2


def test_nodes_are_spread_over_the_window_and_the_delay_of_a_node_is_constant() -> None:
    moments = [spread(f"node-{number}", 10.0) for number in range(1000)]
    assert moments == [spread(f"node-{number}", 10.0) for number in range(1000)]
    each_second = [sum(int(moment) == second for moment in moments) for second in range(10)]
    assert sum(each_second) == 1000
    assert min(each_second) > 60
    assert spread("n", 0.0) == 0.0
