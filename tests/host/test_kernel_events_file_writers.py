"""fanotify of the real kernel, on a file; tests/cluster has the files of a cgroup."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.host.kernel_events import first_writer


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
