"""Device files on this machine without a driver."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Mapping

import pytest

from tests.integration import machinewide


@contextlib.contextmanager
def present(name: str, numbers: Mapping[str, tuple[int, int]]) -> Iterator[None]:
    """Character devices by path, with their folder. Skips the test if they cannot be created, for
    example because a device exists already."""
    if os.geteuid():
        pytest.skip("needs root: device files are real")

    def make() -> list[str]:
        made: list[str] = []
        for path, (major, minor) in numbers.items():
            folder = os.path.dirname(path)
            try:
                if not os.path.exists(folder):
                    os.mkdir(folder)
                    made.append(folder)
                os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(major, minor))
            except OSError as error:
                _remove(made)
                pytest.skip(f"{path}: {error}")
            made.append(path)
        return made

    with machinewide.change(name, make, _remove):
        yield


def _remove(made: list[str]) -> None:
    for path in reversed(made):
        with contextlib.suppress(FileNotFoundError):
            (os.rmdir if os.path.isdir(path) else os.unlink)(path)
