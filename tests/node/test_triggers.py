from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.model.settings.agent import AgentSettings
from agent.node.notifications import NotificationSocket
from agent.node.triggers import FIRST_PAUSE_SECONDS, Trigger, Triggers
from tests.cri.event_stream import Runtime, serving
from tests.waiting import eventually

SETTINGS = AgentSettings(period_seconds=10)
NOW = 1000.0


@pytest.fixture
def triggers(tmp_path: Path) -> Iterator[Triggers]:
    """The triggers without a runtime."""
    socket = NotificationSocket(str(tmp_path / "notifications.sock"))
    triggers = Triggers(socket, str(tmp_path), str(tmp_path), str(tmp_path / "runtime.sock"))
    yield triggers
    triggers.close()
    socket.close()


@pytest.fixture
def streaming(tmp_path: Path) -> Iterator[Triggers]:
    """The triggers with a runtime that streams its events."""
    runtime = Runtime()
    runtime.queue.put(b"")
    with serving(tmp_path / "runtime.sock", runtime):
        socket = NotificationSocket(str(tmp_path / "notifications.sock"))
        streaming = Triggers(socket, str(tmp_path), str(tmp_path), str(tmp_path / "runtime.sock"))
        eventually("an event", lambda: streaming.cooldown(0.0) > FIRST_PAUSE_SECONDS)
        yield streaming
        streaming.close()
        socket.close()


@pytest.mark.parametrize(
    ("runtime", "pass_seconds", "seconds"),
    [
        ("triggers", 0.001, 0.02),
        ("triggers", 0.05, 0.05),
        ("streaming", 0.001, 0.1),
        ("streaming", 0.05, 0.1),
        ("streaming", 0.2, 0.2),
        ("streaming", 10.0, 0.5),
    ],
)
def test_cooldown_is_as_long_as_the_pass_within_bounds(
    request: pytest.FixtureRequest, runtime: str, pass_seconds: float, seconds: float
) -> None:
    triggers: Triggers = request.getfixturevalue(runtime)
    assert triggers.cooldown(pass_seconds) == seconds


def test_while_a_frontend_notifies_other_events_wait_longer(streaming: Triggers) -> None:
    streaming.pause(SETTINGS, True, {Trigger.NOTIFICATION}, NOW)
    assert streaming.cooldown(0.001) == 0.25
    streaming.pause(SETTINGS, True, {Trigger.TREE}, NOW + 4.9)
    assert streaming.cooldown(0.001) == 0.25
    streaming.pause(SETTINGS, True, {Trigger.TREE}, NOW + 5)
    assert streaming.cooldown(0.001) == 0.1


def test_without_an_event_a_full_pass_is_due_after_its_period(triggers: Triggers) -> None:
    assert triggers.pause(SETTINGS, True, {Trigger.CLOCK}, NOW) == 10.0
    assert triggers.pause(SETTINGS, False, {Trigger.CLOCK}, NOW) == 0.5
    assert triggers.pause(SETTINGS, True, {Trigger.TREE}, NOW) == FIRST_PAUSE_SECONDS
    assert triggers.pause(SETTINGS, True, {Trigger.CLOCK}, NOW + 60) == 10.0
