"""The kernel's counters of waiting."""

from __future__ import annotations

import pytest

from agent.usage.waits import Throttling, limits_reached, stalls, throttling

V1 = "nr_periods {}\nnr_throttled 7\nthrottled_time 2500000000\nnr_bursts 0\nburst_time 0"
V2 = "usage_usec 9\nsystem_usec 1\nnr_periods {}\nnr_throttled 7\nthrottled_usec 2500000"
DEBIAN_10 = "some avg10=0.00 avg60=0.00 avg300=0.00 total=2500000"
DEBIAN_12 = f"{DEBIAN_10}\nfull avg10=0.00 avg60=1.51 avg300=0.42 total=1000\n"


@pytest.mark.parametrize(
    ("stat", "counters"),
    [
        (V1.format(10), Throttling(10, 7, 2.5)),
        (V2.format(10), Throttling(10, 7, 2.5)),
        (V1.format(0), None),
        (V2.format(0), None),
        ("usage_usec 9\nuser_usec 8\nsystem_usec 1", None),
        ("nr_periods x\nnr_throttled 7\nthrottled_usec 1", None),
        ("", None),
    ],
)
def test_throttling(stat: str, counters: Throttling | None) -> None:
    assert throttling(stat) == counters


def test_stalls_are_those_that_the_kernel_counts() -> None:
    texts = {"cpu": DEBIAN_10, "memory": DEBIAN_12, "io": "some avg10=0.00 total=x\nother total=1"}
    assert stalls(texts.__getitem__) == {
        ("cpu", "some"): 2.5,
        ("memory", "some"): 2.5,
        ("memory", "full"): 0.001,
    }
    assert stalls(lambda _: "") == {}


@pytest.mark.parametrize(
    ("events", "times"),
    [
        ("low 1\nhigh 2\nmax 30\noom 400\noom_kill 5000\noom_group_kill 60000\n", 32),
        ("low 1\nmax 30\n", None),
        ("high x\nmax 30\n", None),
        ("", None),
    ],
)
def test_limits_of_memory_that_a_group_was_at(events: str, times: int | None) -> None:
    assert limits_reached(events) == times
