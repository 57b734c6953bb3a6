import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.hooks.notifier import MOST_KEPT, Notifier
from agent.model.notifications import (
    Created,
    Notification,
    RequestedResources,
    SnapshotRequest,
    decode,
)


@pytest.fixture
def notifier(tmp_path: Path) -> Iterator[Notifier]:
    notifier = Notifier(str(tmp_path / "bell"))
    yield notifier
    notifier.close()


def heard(path: Path, notifier: Notifier, then: Notification) -> list[Notification]:
    """What an agent hears that comes just before one more notification."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as ear:
        ear.bind(str(path))
        notifier.notify(then)
        received = []
        while True:
            try:
                received.append(decode(ear.recv(1 << 16)))
            except BlockingIOError:
                path.unlink()
                return received


def test_creations_are_told_when_the_agent_is_back_and_once(
    notifier: Notifier, tmp_path: Path
) -> None:
    for notification in (
        Created("c1", RequestedResources("0-1")),
        SnapshotRequest(),
        Created("c2", RequestedResources()),
    ):
        notifier.notify(notification)
    path = tmp_path / "bell"
    assert heard(path, notifier, SnapshotRequest()) == [
        SnapshotRequest(),
        Created("c1", RequestedResources("0-1")),
        Created("c2", RequestedResources()),
    ]
    assert heard(path, notifier, SnapshotRequest()) == [SnapshotRequest()]
    assert (notifier.sent, notifier.undelivered) == (5, 3)


def test_agent_that_stays_away_costs_bounded_memory(notifier: Notifier, tmp_path: Path) -> None:
    for number in range(MOST_KEPT + 5):
        notifier.notify(Created(f"c{number}", RequestedResources()))
    told: list[Notification] = []
    while (received := heard(tmp_path / "bell", notifier, SnapshotRequest())) != [
        SnapshotRequest()
    ]:
        told += [notification for notification in received if notification != SnapshotRequest()]
    assert told == [
        Created(f"c{number}", RequestedResources()) for number in range(5, MOST_KEPT + 5)
    ]
