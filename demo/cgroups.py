"""Cgroups that a kubelet would make and remove, where no kubelet runs.

A demo locks the folder of its top cgroup in cgroupfs. The kernel releases the lock when the process
ends, even when it is killed, and another demo may then remove what it left.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
from collections.abc import Iterator

MOUNTS = pathlib.Path("/sys/fs/cgroup")


class CgroupInUseError(OSError):
    """Another process holds the cgroup; the text names it."""


class OwnCgroup:
    """The cgroup `root` of every hierarchy, which this process owns from `claim` to `remove`."""

    def __init__(self, prefix: str, suffix: str) -> None:
        self.root = f"/{prefix}-{suffix}"
        self._prefix = prefix
        self._lock: int | None = None

    def claim(self) -> None:
        """Also removes what ended processes left under this prefix. Raises CgroupInUseError."""
        with _guard():
            while self._lock is None:
                self._lock = _locked(self.root)
            for group in _left(self._prefix) - {self.root}:
                with contextlib.suppress(CgroupInUseError):
                    if (lock := _locked(group)) is not None:
                        remove_cgroups(group)
                        os.close(lock)

    def remove(self) -> None:
        """Removes the cgroups in it that have no processes, and gives it back."""
        with _guard():  # nobody locks a folder that is just going
            remove_cgroups(self.root)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def remove_cgroups(group: str) -> None:
    """Removes an empty cgroup with all below it, in every hierarchy."""
    for top in _folders(group):
        for path, _, _ in os.walk(top, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(path)


def exists(group: str) -> bool:
    """Whether any hierarchy has this cgroup."""
    return bool(_folders(group))


def _folders(group: str) -> list[pathlib.Path]:
    places = [MOUNTS / mount / group.lstrip("/") for mount in ("", *os.listdir(MOUNTS))]
    return [place for place in places if place.is_dir()]


def _left(prefix: str) -> set[str]:
    return {f"/{path.name}" for top in _roots() for path in top.glob(f"{prefix}-*")}


def _roots() -> list[pathlib.Path]:
    """The folders of all hierarchies, in the same order in every process."""
    if (MOUNTS / "cgroup.procs").exists():
        return [MOUNTS]
    return sorted(top for top in MOUNTS.iterdir() if (top / "cgroup.procs").exists())


def _first_root() -> pathlib.Path:
    """The folder of the hierarchy that has the locks."""
    roots = _roots()
    if not roots:
        raise FileNotFoundError(f"no cgroup hierarchy below {MOUNTS}")
    return roots[0]


@contextlib.contextmanager
def _guard() -> Iterator[None]:
    """One process at a time claims: a cgroup that is made and not yet locked is not a left one."""
    root = os.open(_first_root(), os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(root, fcntl.LOCK_EX)
        yield
    finally:
        os.close(root)


def _locked(group: str) -> int | None:
    """Locks the cgroup's folder in the first hierarchy and returns its descriptor, or None where
    another process removed the folder meanwhile. Raises CgroupInUseError."""
    folder = _first_root() / group.lstrip("/")
    folder.mkdir(exist_ok=True)
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.stat(folder).st_ino == os.fstat(lock).st_ino:
            return lock
    except BlockingIOError:
        os.close(lock)
        raise CgroupInUseError(f"cgroup {group} is another process's") from None
    except FileNotFoundError:
        pass
    os.close(lock)
    return None
