from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from agent.hooks.agent_client import MAX_KEPT, Notifier, SnapshotFile
from agent.host import files
from agent.model import snapshot as snapshots
from agent.model.linux_resources import NO_RESOURCES, LinuxResources
from agent.model.notifications import (
    Created,
    Notification,
    SnapshotRequest,
    decode,
)
from agent.model.snapshot import Snapshot
from tests.hooks.snapshots import BOOT, EMPTY, OWNED


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "snapshot.json"


def write(path: Path, content: Snapshot | bytes) -> None:
    raw = content if isinstance(content, bytes) else snapshots.encode(content)
    files.replace(str(path), raw, durable=False)


def test_snapshot_is_absent_written_replaced_and_removed(path: Path) -> None:
    file = SnapshotFile(str(path), BOOT)
    assert file.current() is None
    write(path, EMPTY)
    assert file.current() == EMPTY
    write(path, OWNED)
    assert file.current() == OWNED
    path.unlink()
    assert file.current() is None
    write(path, OWNED)
    assert file.current() == OWNED
    assert file.unreadable == 0


def test_unchanged_file_is_not_read_again(path: Path) -> None:
    file = SnapshotFile(str(path), BOOT)
    write(path, OWNED)
    assert file.current() is file.current()


@pytest.mark.parametrize(
    "damaged",
    [b"", b"\0" * 400, b'{"boot_id":"\xff"}', b"[" * 100_000, snapshots.encode(OWNED)[:99]],
    ids=["empty", "zeros", "no UTF-8", "deep", "cut"],
)
def test_damaged_file_leaves_the_last_snapshot_in_force_and_is_reported_once(
    path: Path, damaged: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    file = SnapshotFile(str(path), BOOT)
    write(path, OWNED)
    assert file.current() == OWNED
    write(path, damaged)
    for _ in range(3):
        assert file.current() == OWNED
    assert file.unreadable == 1
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    write(path, EMPTY)
    assert file.current() == EMPTY


def test_file_damaged_from_the_start_gives_no_snapshot(path: Path) -> None:
    write(path, b"{")
    assert SnapshotFile(str(path), BOOT).current() is None


def test_snapshot_of_another_boot_is_ignored_even_with_one_in_force(path: Path) -> None:
    file = SnapshotFile(str(path), BOOT)
    write(path, OWNED)
    assert file.current() == OWNED
    write(path, msgspec.structs.replace(OWNED, boot_id="another"))
    assert file.current() is None


def test_too_large_a_file_leaves_the_last_snapshot_in_force_and_is_reported_once(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(snapshots, "MAX_BYTES", len(snapshots.encode(EMPTY)))
    file = SnapshotFile(str(path), BOOT)
    write(path, EMPTY)
    assert file.current() == EMPTY
    write(path, OWNED)
    assert file.current() == file.current() == EMPTY
    assert file.unreadable == len(caplog.records) == 1


def test_file_that_cannot_be_opened_is_read_later(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = SnapshotFile(str(path), BOOT)
    write(path, EMPTY)
    assert file.current() == EMPTY
    write(path, OWNED)
    with monkeypatch.context() as patch:
        patch.setattr("builtins.open", no_descriptor_left())
        assert file.current() == EMPTY
        assert file.current() == EMPTY
    assert file.current() == OWNED
    assert file.unreadable == 2
    assert len(caplog.records) == 1


def no_descriptor_left() -> Callable[..., object]:
    def refuse(*_: object, **__: object) -> object:
        raise OSError(24, "Too many open files")

    return refuse


@pytest.fixture
def notifier(tmp_path: Path) -> Iterator[Notifier]:
    notifier = Notifier(str(tmp_path / "notifications.sock"))
    yield notifier
    notifier.close()


def received_by_started_agent(
    path: Path, notifier: Notifier, last: Notification
) -> list[Notification]:
    """The notifications that an agent receives if it starts just before the last one is sent."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as receiver:
        receiver.bind(str(path))
        notifier.notify(last)
        received = []
        while True:
            try:
                received.append(decode(receiver.recv(1 << 16)))
            except BlockingIOError:
                path.unlink()
                return received


def test_creations_are_reported_once_when_the_agent_returns(
    notifier: Notifier, tmp_path: Path
) -> None:
    for notification in (
        Created("c1", LinuxResources("0-1")),
        SnapshotRequest(),
        Created("c2", NO_RESOURCES),
    ):
        notifier.notify(notification)
    path = tmp_path / "notifications.sock"
    assert received_by_started_agent(path, notifier, SnapshotRequest()) == [
        SnapshotRequest(),
        Created("c1", LinuxResources("0-1")),
        Created("c2", NO_RESOURCES),
    ]
    assert received_by_started_agent(path, notifier, SnapshotRequest()) == [SnapshotRequest()]
    assert (notifier.sent, notifier.undelivered) == (5, 3)


def test_absent_agent_costs_bounded_memory(notifier: Notifier, tmp_path: Path) -> None:
    for number in range(MAX_KEPT + 5):
        notifier.notify(Created(f"c{number}", NO_RESOURCES))
    received_all: list[Notification] = []
    while (
        received := received_by_started_agent(
            tmp_path / "notifications.sock", notifier, SnapshotRequest()
        )
    ) != [SnapshotRequest()]:
        received_all += [
            notification for notification in received if notification != SnapshotRequest()
        ]
    assert received_all == [
        Created(f"c{number}", NO_RESOURCES) for number in range(5, MAX_KEPT + 5)
    ]
