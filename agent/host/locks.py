"""Locks on files: one process of a kind on a node, and one kind of frontend.

The frontends are relays, an NRI plugin or Koordinator's hook server. Two kinds at once would change
the same requests. Relays share the lock: one drains while the next serves. Plugins do not: two
plugins that set one field make every creation fail (NRI: pkg/api/owners.go, Conflict).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import time
from typing import Final, NamedTuple

AGENT_LOCK: Final = "agent.lock"
"""In the state folder: the agent, or a restore, holds it."""
FRONTEND_LOCK: Final = "door.lock"
"""In the state folder: the frontends hold it, and during a restore `topolet restore` does."""
_POLL_SECONDS: Final = 0.05
_FLOCK: Final = struct.Struct("hhqqi4x")
"""struct flock of fcntl(2)."""


class LockedError(RuntimeError):
    """Another process holds the lock; the message names the file and the holder's pid."""


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
                holder = os.read(self._descriptor, 64).decode(errors="replace").split()
                os.close(self._descriptor)
                raise LockedError(f"{path} is locked by {_holder(holder)}") from None
            if self._still_there():
                break
            os.close(self._descriptor)
        os.ftruncate(self._descriptor, 0)
        os.write(self._descriptor, f"{os.getpid()} {_pid_namespace()}\n".encode())

    def release(self) -> None:
        """Removes the file and unlocks it."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)
        os.close(self._descriptor)

    def _still_there(self) -> bool:
        """Whether the opened file still exists: a holder that just released it removed it."""
        try:
            return os.fstat(self._descriptor).st_ino == os.stat(self._path).st_ino
        except FileNotFoundError:
            return False


def _pid_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _holder(words: list[str]) -> str:
    """Describes the holder by the words in a lock's file: a pid, which is valid in the holder's PID
    namespace, and the name of that namespace."""
    match words:
        case [pid, namespace] if namespace != _pid_namespace():
            return f"process {pid} of another container, or of the host ({namespace})"
        case [pid, *_]:
            return f"process {pid}"
    return "an unknown process"


class SharedLock:
    """A lock that several holders share, or that one holder has exclusively; the file stays, and is
    empty after holders that released it.

    `holder`: its name in the errors of other processes.

    Raises LockedError, or OSError when the file can't be opened."""

    def __init__(self, path: str, holder: str, *, exclusive: bool) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(
                self._descriptor, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB
            )
        except BlockingIOError:
            other = os.pread(self._descriptor, 256, 0).decode(errors="replace").strip()
            os.close(self._descriptor)
            raise LockedError(f"{path} is held by {other or 'another process'}") from None
        self.was_cut_off = os.fstat(self._descriptor).st_size > 0
        """Whether a holder before was killed, or cut off its calls. True while another lives."""
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{holder} (process {os.getpid()})\n".encode(), 0)

    def session(self) -> FrontendSession:
        """A new session of this holder, which ends with the lock. Raises OSError."""
        byte = int.from_bytes(os.urandom(8), "big") >> 2
        session = FrontendSession(os.fstat(self._descriptor).st_ino, byte)
        wanted = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, session.byte, 1, 0)
        fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, wanted)
        return session

    def has_others(self) -> bool:
        """Whether the session of another holder lives. Raises OSError."""
        query = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        blocking = _FLOCK.unpack(fcntl.fcntl(self._descriptor, fcntl.F_OFD_GETLK, query))
        return bool(blocking[0] != fcntl.F_UNLCK)

    def release(self, *, cut_off: bool = False) -> None:
        """`cut_off`: calls of this holder are in progress."""
        if not cut_off and not self.has_others():
            os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)


class FrontendSession(NamedTuple):
    """The life of a frontend's process: it holds a lock on one byte of the file, which the kernel
    releases however the process ends. A process in another PID namespace can query it too."""

    inode: int
    byte: int


def has_ended(state_dir: str, session: FrontendSession) -> bool:
    """Whether the session's process has ended. False if that is not known, because the file was
    replaced or can't be read."""
    try:
        descriptor = os.open(os.path.join(state_dir, FRONTEND_LOCK), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if os.fstat(descriptor).st_ino != session.inode:
            return False
        query = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, session.byte, 1, 0)
        found = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, query))
    except (OSError, struct.error):
        return False
    finally:
        os.close(descriptor)
    return bool(found[0] == fcntl.F_UNLCK)


def lock_for_relay(state_dir: str) -> SharedLock:
    """Relays share the lock. Raises LockedError while a plugin or a hook server holds it; raises
    OSError."""
    return _acquired(state_dir, "topolet proxy", exclusive=False)


def lock_for_plugin(state_dir: str, patience_seconds: float) -> SharedLock:
    """Waits up to `patience_seconds` for a plugin that is ending. Raises LockedError if another
    frontend still holds the lock then, OSError."""
    return _acquired_within(state_dir, "topolet nri", patience_seconds)


def lock_for_hook_server(state_dir: str, patience_seconds: float) -> SharedLock:
    """Waits up to `patience_seconds` for a hook server that is ending, and raises the errors of
    `lock_for_plugin`."""
    return _acquired_within(state_dir, "topolet agent's hook server", patience_seconds)


def lock_for_restore(state_dir: str) -> SharedLock:
    """Keeps plugins out during a restore: a plugin would put the agent's values into the restore's
    requests again. A relay may run, as these requests do not pass through it. Raises LockedError
    while a plugin runs, OSError."""
    return _acquired(state_dir, "topolet restore", exclusive=False)


def _acquired_within(state_dir: str, holder: str, patience_seconds: float) -> SharedLock:
    deadline = time.monotonic() + patience_seconds
    while True:
        try:
            return _acquired(state_dir, holder, exclusive=True)
        except LockedError:
            if time.monotonic() >= deadline:
                raise
        time.sleep(_POLL_SECONDS)


def _acquired(state_dir: str, holder: str, *, exclusive: bool) -> SharedLock:
    os.makedirs(state_dir, mode=0o755, exist_ok=True)
    try:
        return SharedLock(os.path.join(state_dir, FRONTEND_LOCK), holder, exclusive=exclusive)
    except LockedError as error:
        raise LockedError(
            f"{error}: only one of proxy, NRI plugin and hook server may run at a time"
        ) from None
