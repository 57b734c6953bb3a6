"""The measured times of calls, with a simulated clock."""

from __future__ import annotations

import pytest

from agent.relay import meter
from agent.relay.meter import OTHERS, Meter, Timing


class Clocked:
    """A meter with a simulated clock. `seen`: path, seconds, relay seconds of each call."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.observed: list[tuple[bytes, float, float]] = []
        monkeypatch.setattr(meter, "perf_counter", lambda: self.now)
        self.meter = Meter(lambda *call: self.observed.append(call))
        self.timing = Timing(self.meter)

    @property
    def seen(self) -> list[tuple[bytes, float, float]]:
        self.meter.settle()
        return self.observed

    def after(self, seconds: float) -> Timing:
        self.now += seconds
        return self.timing

    def arrive_after(self, seconds: float) -> None:
        self.now += seconds
        self.timing.arrived = self.now


@pytest.fixture
def clocked(monkeypatch: pytest.MonkeyPatch) -> Clocked:
    return Clocked(monkeypatch)


def test_the_time_of_a_passing_call_is_the_relays_own(clocked: Clocked) -> None:
    clocked.arrive_after(0)
    clocked.timing.noted.append((1, b"/a"))
    clocked.after(1).note()
    clocked.meter.settle()
    assert clocked.meter.in_flight == {b"/a": 1}
    clocked.arrive_after(10)
    clocked.timing.noted.append((1, None))
    clocked.after(2).note()
    assert clocked.seen == [(b"/a", 13, 3)]
    assert clocked.meter.in_flight == {b"/a": 0}


def test_the_time_of_a_held_request_includes_the_hold(clocked: Clocked) -> None:
    clocked.arrive_after(0)
    clocked.timing.begin_hooked(1, b"/a")
    clocked.arrive_after(5)  # the client sends the message later
    clocked.timing.message_complete(1)
    clocked.after(20).message_sent(1)
    clocked.arrive_after(3)
    clocked.timing.noted.append((1, None))
    clocked.after(1).note()
    assert clocked.seen == [(b"/a", 29, 21)]


def test_the_time_of_the_relays_own_answer_is_since_the_request(clocked: Clocked) -> None:
    clocked.arrive_after(0)
    clocked.timing.begin_hooked(1, b"/a")
    clocked.timing.message_complete(1)
    clocked.after(7).noted.append((1, None))
    clocked.timing.note()
    assert clocked.seen == [(b"/a", 7, 7)]


def test_an_aborted_call_is_not_in_flight_and_not_observed(clocked: Clocked) -> None:
    clocked.timing.noted.append((1, b"/a"))
    clocked.timing.noted.append((1, b"/a"))
    clocked.timing.noted.append((3, b"/a"))
    clocked.timing.noted.append((5, None))
    clocked.timing.message_sent(5)
    clocked.timing.message_complete(5)
    clocked.timing.note()
    clocked.timing.close()
    clocked.timing.note()
    assert (clocked.seen, clocked.meter.in_flight) == ([], {b"/a": 0})


def test_unknown_methods_of_a_client_cost_bounded_memory(clocked: Clocked) -> None:
    for number in range(1, 20_001, 2):
        clocked.timing.noted.append((number, b"/%d" % number))
        clocked.timing.note()
    assert len(clocked.meter.in_flight) == 129
    assert sum(clocked.meter.in_flight.values()) == 4_096
    assert clocked.meter.in_flight[OTHERS] == 4_096 - 128


def test_times_are_counted_without_a_scrape_too(clocked: Clocked) -> None:
    for number in range(1, 1_001, 2):
        clocked.timing.noted.append((number, b"/a"))
        clocked.timing.noted.append((number, None))
        clocked.timing.note()
    assert 400 < len(clocked.observed) < 500
    assert len(clocked.seen) == 500
