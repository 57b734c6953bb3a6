"""The order of passes and notifications in the agent's loop."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent.hooks.agent_client import Notifier
from agent.model.linux_resources import NO_RESOURCES
from agent.model.notifications import (
    Created,
    Notification,
    SessionEnded,
    SnapshotRequest,
)
from agent.model.settings.agent import AgentSettings
from agent.node.loop import Health, PassLoop
from agent.node.notifications import NotificationSocket
from agent.node.triggers import Triggers
from agent.telemetry.metrics import AgentMetrics
from tests.waiting import eventually

CHANGE = SnapshotRequest(waits=False)
CREATED = Created("c", NO_RESOURCES)


class PassCounter:
    """A reconciler that only counts its passes."""

    again = False

    def __init__(self) -> None:
        self.passes = 0
        self.notifications: list[Notification | SessionEnded] = []

    def notified(self, notifications: Sequence[Notification | SessionEnded]) -> None:
        self.notifications += notifications

    def reconcile(self) -> None:
        self.passes += 1


class LoopTest:
    """A loop in a thread, in the cooldown after its first pass."""

    def __init__(self, folder: Path, cooldown_seconds: float) -> None:
        path = str(folder / "notifications")
        settings = AgentSettings(state_dir=str(folder), period_seconds=3600.0)
        self.reconciler = PassCounter()
        self.notifier = Notifier(path)
        self._socket = NotificationSocket(path)
        self._triggers = Triggers(self._socket, str(folder), str(folder), str(folder / "none"))
        self._triggers.cooldown = lambda *_: cooldown_seconds  # type: ignore[method-assign]
        unused: Any = SimpleNamespace(refresh=lambda: None)
        self._loop = PassLoop(
            settings,
            lambda: settings,
            self._socket,
            self._triggers,
            self.reconciler,  # type: ignore[arg-type]
            Health(),
            AgentMetrics(),
            None,
            unused,
            unused,
        )
        self._thread = threading.Thread(target=self._loop.run)
        self._thread.start()
        eventually("the first pass", lambda: self.reconciler.passes)

    def close(self) -> None:
        self._loop.stop()
        self.notifier.notify(SnapshotRequest())
        self._thread.join()
        self._triggers.close()
        self._socket.close()
        self.notifier.close()


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[LoopTest]:
    loop = LoopTest(tmp_path, 60.0)
    yield loop
    loop.close()


def test_a_waiting_call_ends_the_cooldown_and_a_change_does_not(loop: LoopTest) -> None:
    loop.notifier.notify(CHANGE)
    loop.notifier.notify(CREATED)
    eventually("both are read", lambda: len(loop.reconciler.notifications) == 2)
    assert loop.reconciler.passes == 1
    loop.notifier.notify(SnapshotRequest())
    eventually("a pass for the call", lambda: loop.reconciler.passes == 2)
    assert loop.reconciler.notifications == [CHANGE, CREATED, SnapshotRequest()]


def test_a_change_triggers_a_pass_when_the_cooldown_ends(tmp_path: Path) -> None:
    loop = LoopTest(tmp_path, 0.3)
    loop.notifier.notify(CHANGE)
    eventually("a pass for the change", lambda: loop.reconciler.passes > 1)
    assert loop.reconciler.notifications == [CHANGE]
    loop.close()


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
