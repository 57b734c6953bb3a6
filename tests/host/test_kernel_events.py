"""inotify, uevents and fanotify of the real kernel; tests/cluster has the files of a cgroup."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.host import kernel_events
from agent.host.kernel_events import Inotify, Uevents, first_writer, subsystem


@pytest.fixture
def queue() -> Iterator[Inotify]:
    it = Inotify()
    yield it
    it.close()


def test_events_of_a_directory_come_in_order(queue: Inotify, tmp_path: Path) -> None:
    assert queue.read() == []
    watch = queue.watch(
        str(tmp_path), kernel_events.CREATE | kernel_events.DELETE | kernel_events.MOVED_TO
    )
    (tmp_path / "pod é").mkdir()
    (tmp_path / "new").write_text("x")
    (tmp_path / "new").rename(tmp_path / "state")
    (tmp_path / "pod é").rmdir()
    assert [(each.watch, each.name, each.mask) for each in queue.read()] == [
        (watch, "pod é", kernel_events.CREATE | kernel_events.IS_DIRECTORY),
        (watch, "new", kernel_events.CREATE),
        (watch, "state", kernel_events.MOVED_TO),
        (watch, "pod é", kernel_events.DELETE | kernel_events.IS_DIRECTORY),
    ]
    assert queue.read() == []


def test_removed_directory_ends_its_watch(queue: Inotify, tmp_path: Path) -> None:
    folder = tmp_path / "pod"
    folder.mkdir()
    watch = queue.watch(str(folder), kernel_events.CREATE)
    folder.rmdir()
    assert [(each.watch, each.mask) for each in queue.read()] == [(watch, kernel_events.IGNORED)]


def test_a_path_that_cannot_be_watched_is_named(queue: Inotify, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FileNotFoundError, match="absent"):
        queue.watch(str(tmp_path / "absent"), kernel_events.CREATE)
    with pytest.raises(NotADirectoryError, match="file"):
        queue.watch(str(tmp_path / "file"), kernel_events.CREATE)


def test_too_many_events_are_reported_as_overflow(queue: Inotify, tmp_path: Path) -> None:
    most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    if most > 40_000:
        pytest.skip(f"this machine queues {most} events")
    queue.watch(str(tmp_path), kernel_events.CREATE | kernel_events.DELETE)
    folder = tmp_path / "pod"
    for _ in range(most // 2 + 1):
        folder.mkdir()
        folder.rmdir()
    last = queue.read()[-1]
    assert (last.watch, last.mask) == (-1, kernel_events.OVERFLOW)


@pytest.mark.parametrize(
    ("message", "named"),
    [
        (b"online@/devices/system/cpu/cpu1\0ACTION=online\0SUBSYSTEM=cpu\0SEQNUM=7\0", "cpu"),
        (b"add@/devices/x\0ACTION=add\0XSUBSYSTEM=cpu\0", ""),
        (b"SUBSYSTEM=cpu\0", ""),
        (b"libudev\0\xfe\xed\xca\xfeSUBSYSTEM=cpu", ""),
        (b"", ""),
        (b"a@b\0SUBSYSTEM=\xff\0", "\ufffd"),
    ],
)
def test_subsystem_of_a_message(message: bytes, named: str) -> None:
    assert subsystem(message) == named


def test_no_uevent_of_an_unknown_subsystem() -> None:
    uevents = Uevents()
    assert not uevents.read(frozenset({"no such subsystem"}))
    uevents.close()


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[tuple[str, int]]:
    """A file, and a process that keeps writing it."""
    path = tmp_path / "file"
    path.write_text("")
    loop = f"while :; do echo 1 >{path}; sleep 0.05; done"
    with subprocess.Popen(["sh", "-c", loop]) as process:
        yield str(path), process.pid
        process.kill()


def watched(paths: list[str], seconds: float, ignored: set[int]) -> int | None:
    try:
        return first_writer(paths, seconds, ignored)
    except OSError as error:
        pytest.skip(f"no fanotify here: {error}")


def test_the_first_writer_is_found(writer: tuple[str, int]) -> None:
    path, pid = writer
    descriptors = os.listdir("/proc/self/fd")
    assert watched([f"{path}.missing", path], 60.0, {os.getpid()}) == pid
    assert os.listdir("/proc/self/fd") == descriptors


def test_ignored_writers_and_other_files_are_left_out(writer: tuple[str, int]) -> None:
    path, pid = writer
    assert watched([path], 0.3, {pid}) is None
    assert watched([f"{path}.missing"], 0.1, set()) is None
