"""A lock on a file: one process of a kind on a node."""

from __future__ import annotations

import contextlib
import fcntl
import os


class LockedError(RuntimeError):
    """Somebody else holds the lock; the message names the file and the holder's pid."""


class Lock:
    """Held from construction until `release` or the end of the process, however it ends."""

    def __init__(self, path: str) -> None:
        """Raises LockedError, or OSError when the file can't be opened."""
        self._path = path
        while True:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.read(self._descriptor, 32).decode(errors="replace").strip()
                os.close(self._descriptor)
                raise LockedError(f"{path} is locked by process {holder or 'unknown'}") from None
            if self._still_there():
                break
            os.close(self._descriptor)
        os.ftruncate(self._descriptor, 0)
        os.write(self._descriptor, f"{os.getpid()}\n".encode())

    def release(self) -> None:
        """Removes the file and lets another process have it."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)
        os.close(self._descriptor)

    def _still_there(self) -> bool:
        """A holder that released just now has removed the file that we opened."""
        try:
            return os.fstat(self._descriptor).st_ino == os.stat(self._path).st_ino
        except FileNotFoundError:
            return False


class SharedLock:
    """A lock that holders of one kind share, or that one holder has exclusively; the file stays."""

    def __init__(self, path: str, holder: str, *, alone: bool) -> None:
        """`holder`: the name that others see. Raises LockedError, or OSError when the file can't be
        opened."""
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(
                self._descriptor, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB
            )
        except BlockingIOError:
            other = os.pread(self._descriptor, 256, 0).decode(errors="replace").strip()
            os.close(self._descriptor)
            raise LockedError(f"{path} is held by {other or 'another process'}") from None
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{holder} (process {os.getpid()})\n".encode(), 0)

    def release(self) -> None:
        os.close(self._descriptor)
