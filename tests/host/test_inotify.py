"""On the real kernel."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.host import inotify
from agent.host.inotify import Inotify


@pytest.fixture
def queue() -> Iterator[Inotify]:
    it = Inotify()
    yield it
    it.close()


def test_what_happens_in_a_directory_comes_in_order(queue: Inotify, tmp_path: Path) -> None:
    assert queue.read() == []
    watch = queue.watch(str(tmp_path), inotify.CREATE | inotify.DELETE | inotify.MOVED_TO)
    (tmp_path / "pod é").mkdir()
    (tmp_path / "new").write_text("x")
    (tmp_path / "new").rename(tmp_path / "state")
    (tmp_path / "pod é").rmdir()
    assert [(each.watch, each.name, each.mask) for each in queue.read()] == [
        (watch, "pod é", inotify.CREATE | inotify.IS_DIRECTORY),
        (watch, "new", inotify.CREATE),
        (watch, "state", inotify.MOVED_TO),
        (watch, "pod é", inotify.DELETE | inotify.IS_DIRECTORY),
    ]
    assert queue.read() == []


def test_directory_that_goes_away_ends_its_watch(queue: Inotify, tmp_path: Path) -> None:
    folder = tmp_path / "pod"
    folder.mkdir()
    watch = queue.watch(str(folder), inotify.CREATE)
    folder.rmdir()
    assert [(each.watch, each.mask) for each in queue.read()] == [(watch, inotify.IGNORED)]


def test_what_can_not_be_watched_is_named(queue: Inotify, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FileNotFoundError, match="absent"):
        queue.watch(str(tmp_path / "absent"), inotify.CREATE)
    with pytest.raises(NotADirectoryError, match="file"):
        queue.watch(str(tmp_path / "file"), inotify.CREATE)


def test_more_than_the_queue_holds_is_told_as_overflow(queue: Inotify, tmp_path: Path) -> None:
    most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    if most > 40_000:
        pytest.skip(f"this machine queues {most} events")
    queue.watch(str(tmp_path), inotify.CREATE | inotify.DELETE)
    folder = tmp_path / "pod"
    for _ in range(most // 2 + 1):
        folder.mkdir()
        folder.rmdir()
    last = queue.read()[-1]
    assert (last.watch, last.mask) == (-1, inotify.OVERFLOW)
