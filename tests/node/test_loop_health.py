import logging

import pytest

from agent.node.loop import Health


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("agent.node.loop.time.monotonic", clock)
    return clock


def test_ready_after_the_first_successful_pass_until_one_fails_or_is_missing(clock: Clock) -> None:
    health = Health()
    assert (health.ready().status, health.ready().body) == (503, b"no pass has ended yet\n")
    health.begin()
    health.end("")
    assert health.ready().status == 200
    health.end("the runtime does not answer")
    assert (health.ready().status, health.ready().body) == (503, b"the runtime does not answer\n")
    health.end("")
    clock.now += 4.9
    assert health.ready().status == 200
    clock.now += 0.2
    assert health.ready().body == b"the snapshot is 5 s old\n"


def test_alive_while_passes_begin_even_if_they_fail(clock: Clock) -> None:
    health = Health()
    for _ in range(100):
        clock.now += 10
        health.begin()
        health.end("bad")
    assert health.alive().status == 200
    clock.now += 20.1
    assert (health.alive().status, health.alive().body) == (503, b"no pass for 20 s\n")


def test_a_lasting_failure_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    health = Health()
    for error in ("disk full", "disk full", "", "disk full", "other"):
        health.end(error)
    lines = [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR]
    assert lines == ["disk full", "disk full", "other"]


def test_the_pause_before_a_full_pass_does_not_count_as_late(clock: Clock) -> None:
    health = Health()
    health.begin()
    health.end("")
    health.rest(10)
    clock.now += 14.9
    assert health.ready().status == 200
    clock.now += 0.2
    assert health.ready().status == 503
    assert health.alive().status == 200
    clock.now += 15
    assert health.alive().status == 503
