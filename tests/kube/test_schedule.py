"""The schedule of a watch's requests, with the test's clock."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.kube.errors import (
    GoneError,
    KubeError,
    MalformedError,
    ServerError,
    TooManyRequestsError,
    UnreachableError,
)
from agent.kube.schedule import CAP_SECONDS, REQUESTS, WINDOW_SECONDS, Backoff, Schedule, spread

STEP_SECONDS = 10.0
"""The longest step."""
GONE = GoneError("410")
REFUSED = UnreachableError("refused")
BUSY = TooManyRequestsError("429")
FAILED = ServerError("500")

chances = st.floats(0, 1, exclude_max=True)
errors = st.sampled_from(
    [
        GONE,
        REFUSED,
        BUSY,
        FAILED,
        TooManyRequestsError("429", 0.0),
        TooManyRequestsError("429", 3.0),
        ServerError("503", 2.0),
        MalformedError("no JSON"),
        None,
        "progress",
        "hastened",
    ]
)


def pauses(random_value: float, *result: KubeError | str | None) -> list[float]:
    """The pause after each result."""
    schedule = Schedule(lambda: random_value, STEP_SECONDS)
    found = []
    for each in result:
        if isinstance(each, str):
            schedule.progressed()
        else:
            found.append(schedule.after(each))
    return found


@pytest.mark.parametrize(
    ("result", "least", "most"),
    [
        pytest.param([GONE], [0], [0], id="410 lists at once"),
        pytest.param([GONE, GONE, GONE], [0, 0.5, 1], [0, 1.5, 3], id="not at once again"),
        pytest.param([GONE, "progress", GONE], [0, 0], [0, 0], id="at once again after progress"),
        pytest.param([BUSY], [1], [2], id="429: a second, spread over another"),
        pytest.param([TooManyRequestsError("429", 4)], [4], [5], id="429: as long as requested"),
        pytest.param([BUSY] * 3, [1, 1, 2], [2, 3, 6], id="repeated 429"),
        pytest.param([REFUSED] * 3, [0.5, 1, 2], [1.5, 3, 6], id="refused"),
        pytest.param([FAILED] * 3, [0.5, 1, 2], [1.5, 3, 6], id="5xx"),
        pytest.param([ServerError("503", 4)], [4], [5], id="5xx with Retry-After"),
        pytest.param([None], [0.5], [1.5], id="success that ended too soon"),
        pytest.param(
            [*[REFUSED] * 6, BUSY, GONE, REFUSED],
            [0.5, 1, 2, 4, 5, 5, 1, 0, 0.5],
            [1.5, 3, 6, 12, 15, 15, 2, 0, 1.5],
            id="the pauses of several causes do not add up",
        ),
        pytest.param(
            [REFUSED, REFUSED, "progress", REFUSED],
            [0.5, 1, 0.5],
            [1.5, 3, 1.5],
            id="progress resets the steps",
        ),
    ],
)
def test_pause_after(
    result: list[KubeError | str | None], least: list[float], most: list[float]
) -> None:
    assert pauses(0.0, *result) == pytest.approx(least)
    assert pauses(1 - 1e-9, *result) == pytest.approx(most, abs=1e-6)


@given(
    st.lists(st.tuples(errors, chances, st.floats(0, 3)), min_size=10, max_size=60),
    st.sampled_from([1.0, 5.0, 10.0]),
)
def test_at_most_five_requests_in_ten_seconds(
    history: list[tuple[KubeError | str | None, float, float]], cap_seconds: float
) -> None:
    """For any results, random values and durations of requests."""
    random_values = itertools.cycle(value for _, value, _ in history)
    schedule = Schedule(lambda: next(random_values), cap_seconds)
    now, sent = 0.0, []
    for result, _, duration in history:
        now += schedule.wait(now)
        schedule.sends(now)
        sent.append(now)
        now += duration
        if result == "progress":
            schedule.progressed()
        elif result == "hastened":
            pause = schedule.after(REFUSED)
            now += 0.0 if schedule.end_early(now) else pause
        else:
            assert not isinstance(result, str)
            now += schedule.after(result)
    for first, sixth in zip(sent, sent[REQUESTS:], strict=False):
        assert sixth - first > WINDOW_SECONDS


@given(st.lists(st.tuples(errors, chances), max_size=30), chances)
def test_the_next_pause_is_short_regardless_of_earlier_errors(
    past: list[tuple[object, float]], random_value: float
) -> None:
    """At most a step and a half, unless the server requests more."""
    values = itertools.cycle([random_value, *(value for _, value in past)])
    schedule = Schedule(lambda: next(values), STEP_SECONDS)
    for result, _ in past:
        if result == "progress":
            schedule.progressed()
        elif not isinstance(result, str):
            schedule.after(result)  # type: ignore[arg-type]
    assert schedule.after(REFUSED) <= 1.5 * STEP_SECONDS
    assert schedule.after(BUSY) <= 2, "the first of its cause"


def test_answer_to_another_request_ends_a_pause_once_in_thirty_seconds() -> None:
    schedule = Schedule(lambda: 0.5, STEP_SECONDS)
    times = (100, 101, 129.9, 130, 140, 160)
    expected = [True, False, False, True, False, True]
    assert [schedule.end_early(now) for now in times] == expected


def test_backoff_is_reset_when_the_server_answers_another_request() -> None:
    schedule = Schedule(lambda: 0.5, STEP_SECONDS)
    assert [schedule.after(REFUSED) for _ in range(5)][-1] == STEP_SECONDS
    assert schedule.end_early(0)
    assert schedule.after(FAILED) == 1, "a starting server answers 503"


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
