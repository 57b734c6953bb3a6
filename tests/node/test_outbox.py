from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from agent.kube.cluster import SPREAD_SECONDS
from agent.kube.errors import (
    ForbiddenError,
    ServerError,
    StoreError,
    TooManyRequestsError,
    UnreachableError,
)
from agent.model.nrt.resource_topology import NodeTopology
from agent.node.node_resource_topology import DeviceReport, Report
from agent.node.outbox import Outbox, ReportPace
from agent.telemetry.metrics import AgentMetrics
from tests.waiting import eventually

PACE = ReportPace(settle_seconds=1, max_seconds=10, recheck_seconds=300)


def report(name: str) -> Report:
    return Report(NodeTopology(name), {}, {}, DeviceReport())


class Server:
    """Accepts reports, or fails."""

    def __init__(self) -> None:
        self.delivered: list[str] = []
        self.failing: StoreError | None = None
        self.attempts = 0

    def __call__(self, sent: Report) -> bool:
        self.attempts += 1
        if self.failing is not None:
            raise self.failing
        self.delivered.append(sent.topology.name)
        return True


class Changed(threading.Condition):
    """`waiting`: a thread waits, and no notification has ended its wait."""

    waiting = False

    def wait(self, timeout: float | None = None) -> bool:
        self.waiting = True
        try:
            return super().wait(timeout)
        finally:
            self.waiting = False

    def notify(self, n: int = 1) -> None:
        self.waiting = False
        super().notify(n)


class Clock:
    """A clock that the test advances between the steps of the outbox: `advance` returns when the
    outbox has done every step that was due."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.changed = Changed()

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        eventually("the outbox waits", lambda: self.changed.waiting)
        with self.changed:
            self.now += seconds
            self.changed.notify()
        eventually("the outbox waits again", lambda: self.changed.waiting)


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def outbox(server: Server, clock: Clock) -> Iterator[Outbox]:
    outbox = Outbox(server, AgentMetrics(), PACE, clock, changed=clock.changed)
    outbox.start()
    yield outbox
    outbox.close()
    assert not [each for each in threading.enumerate() if each.name == "reports"]


def test_a_burst_of_reports_is_sent_once_with_the_newest(
    outbox: Outbox, server: Server, clock: Clock
) -> None:
    for number in range(100):
        outbox.put(report(str(number)))
    assert server.delivered == []
    clock.advance(1)
    assert server.delivered == ["99"]


def test_continuous_reports_are_sent_at_intervals(
    outbox: Outbox, server: Server, clock: Clock
) -> None:
    for number in range(40):
        outbox.put(report(str(number)))
        clock.advance(0.5)
        if number == 20:
            assert len(server.delivered) == 1
    assert len(server.delivered) <= 2


def test_stored_objects_are_checked_periodically(
    outbox: Outbox, server: Server, clock: Clock
) -> None:
    outbox.put(report("a"))
    clock.advance(1)
    assert server.attempts == 1
    clock.advance(299)
    assert server.attempts == 1
    clock.advance(2)
    assert server.attempts == 2


@pytest.mark.parametrize(
    "failure",
    [
        ServerError("PATCH /x: 500 broken"),
        ForbiddenError("PATCH /x: 403 no role", "patch", "nodes/status"),
        StoreError("no"),
    ],
)
def test_a_failure_is_logged_once_and_retried_with_backoff(
    outbox: Outbox,
    server: Server,
    clock: Clock,
    failure: StoreError,
    caplog: pytest.LogCaptureFixture,
) -> None:
    server.failing = failure
    outbox.put(report("a"))
    clock.advance(1)
    assert server.attempts == 1
    for _ in range(20):
        clock.advance(0.5)
    assert server.attempts <= 5
    assert str(failure) in (outbox.problem.text or "")
    records = [each for each in caplog.records if each.levelname == "ERROR"]
    assert len(records) == 1
    server.failing = None
    outbox.put(report("b"))
    clock.advance(100)
    assert server.delivered == ["b"]
    assert outbox.problem.text is None


def test_a_report_is_sent_soon_after_the_server_answers_any_request(
    outbox: Outbox, server: Server, clock: Clock
) -> None:
    server.failing = UnreachableError("PATCH /x: nobody answers")
    outbox.put(report("a"))
    for _ in range(10):
        clock.advance(60)
    server.failing = None
    attempts = server.attempts
    outbox.server_available()
    clock.advance(SPREAD_SECONDS)
    assert (server.delivered, server.attempts) == (["a"], attempts + 1)


def test_an_answering_server_does_not_shorten_the_settling_time(
    outbox: Outbox, server: Server, clock: Clock
) -> None:
    outbox.put(report("a"))
    outbox.server_available()
    clock.advance(0.5)
    assert server.attempts == 0
    clock.advance(0.5)
    assert server.delivered == ["a"]


def test_retry_after_is_observed(outbox: Outbox, server: Server, clock: Clock) -> None:
    server.failing = TooManyRequestsError("PATCH /x: 429", 60.0)
    outbox.put(report("a"))
    clock.advance(1)
    assert server.attempts == 1
    clock.advance(59)
    outbox.put(report("b"))
    clock.advance(0)
    assert server.attempts == 1
    clock.advance(5)
    assert server.attempts == 2


def test_nothing_is_sent_after_the_end(server: Server, clock: Clock) -> None:
    outbox = Outbox(server, AgentMetrics(), PACE, clock)
    outbox.start()
    outbox.put(report("a"))
    outbox.close()
    clock.now += 100
    assert server.attempts == 0


def test_the_first_step_is_retried_until_it_succeeds_with_its_own_backoff(
    server: Server, clock: Clock
) -> None:
    attempts = 0

    def first() -> None:
        nonlocal attempts
        attempts += 1
        raise StoreError("not yet")

    outbox = Outbox(server, AgentMetrics(), PACE, clock, first)
    outbox.start()
    outbox.start()
    eventually("tried once", lambda: attempts == 1)
    for number in range(20):
        outbox.put(report(str(number)))
    clock.now += 100
    assert attempts <= 2
    outbox.close()
    assert (server.attempts, outbox.problem.text) == (0, "not yet")
