"""A memory cgroup in which a process starts, like a container with a limit."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

_V1, _V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")


class MemoryLimit:
    """`launcher`: the words before a command that starts it in the cgroup."""

    def __init__(self, folder: Path, limit_file: str, peak_file: str) -> None:
        self.folder = folder
        self._limit_file, self._peak_file = limit_file, peak_file
        self.launcher = ("sh", "-c", f'echo $$ > {folder}/cgroup.procs && exec "$@"', "sh")

    def set(self, limit_bytes: int) -> None:
        (self.folder / self._limit_file).write_text(str(limit_bytes))

    @property
    def peak_bytes(self) -> int:
        """The highest memory usage, including the page cache."""
        return int((self.folder / self._peak_file).read_text())

    @property
    def kills(self) -> int:
        """The number of processes of the cgroup that the OOM killer has killed."""
        for name in ("memory.events", "memory.oom_control"):
            with contextlib.suppress(FileNotFoundError):
                lines = (self.folder / name).read_text().splitlines()
                return next(int(each.split()[1]) for each in lines if each.startswith("oom_kill "))
        raise AssertionError("the kernel does not count OOM kills")


@contextlib.contextmanager
def limited(limit_bytes: int) -> Iterator[MemoryLimit]:
    """A new memory cgroup. Skips the test if none can be created."""
    name = f"topolet-test-{uuid.uuid4().hex[:8]}"
    it = (
        MemoryLimit(_V1 / name, "memory.limit_in_bytes", "memory.max_usage_in_bytes")
        if _V1.is_dir()
        else MemoryLimit(_V2 / name, "memory.max", "memory.peak")
    )
    try:
        it.folder.mkdir()
        it.set(limit_bytes)
    except OSError as error:
        pytest.skip(f"needs a memory cgroup: {error}")
    try:
        yield it
    finally:
        it.folder.rmdir()
