"""Listening unix sockets. A new socket accepts connections as soon as it is visible, replaces one
that a dead process left, and belongs to one process at a time. An inherited socket belongs to the
service manager (sd_listen_fds(3)): it outlives the process, and clients wait for the next one."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from collections.abc import MutableMapping
from typing import Final

from agent.host.locks import Lock, LockedError

_BACKLOG: Final = 128
_MAX_PATH_BYTES: Final = 107


class ListenError(Exception):
    """The socket can't be opened; the message names its path and the reason."""


class Listener:
    """Listens at `path`. The socket is bound under another name in its folder and renamed, so that
    clients find the old socket or the new one and never one that refuses. `PATH.lock` is held while
    it listens; a killed process leaves both files, and the next process takes them over."""

    def __init__(self, path: str, mode: int = 0o600) -> None:
        """Raises ListenError."""
        self.path = path
        self._mode = mode
        self._temporary = os.path.join(os.path.dirname(path), f".{os.getpid()}.sock")
        for each in (path, self._temporary):
            if len(os.fsencode(each)) > _MAX_PATH_BYTES:
                raise ListenError(f"{path}: a socket's path has at most {_MAX_PATH_BYTES} bytes")
        try:
            self._lock = Lock(f"{path}.lock")
        except LockedError as error:
            raise ListenError(f"{path}: another process serves it: {error}") from None
        except OSError as error:
            raise ListenError(f"{path}.lock: {error.strerror}") from None
        try:
            if not stat.S_ISSOCK(os.lstat(path).st_mode):
                self._lock.release()
                raise ListenError(f"{path}: exists and is not a socket")
        except FileNotFoundError:
            pass
        try:
            self.socket, self._inode = self._bound()
        except ListenError:
            self._lock.release()
            raise

    def bind_again(self) -> socket.socket:
        """Makes the socket again at its path, and returns the former one, which nobody can reach.
        Raises ListenError."""
        former = self.socket
        self.socket, self._inode = self._bound()
        return former

    def _bound(self) -> tuple[socket.socket, int]:
        """A new socket at the path, and its inode."""
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._temporary)
            os.fchmod(bound.fileno(), self._mode)  # before anybody can connect
            bound.bind(self._temporary)
            os.chmod(self._temporary, self._mode)
            bound.listen(_BACKLOG)
            inode = os.lstat(self._temporary).st_ino
            os.rename(self._temporary, self.path)
        except OSError as error:
            bound.close()
            raise ListenError(f"{self.path}: {error.strerror}") from None
        bound.setblocking(False)
        return bound, inode

    def close(self) -> None:
        """Stops listening; removes the socket, unless another one replaced it, and the lock."""
        self.socket.close()
        with contextlib.suppress(FileNotFoundError):
            if os.lstat(self.path).st_ino == self._inode:
                os.unlink(self.path)
        self._lock.release()


_FIRST: Final = 3
"""SD_LISTEN_FDS_START."""


class ActivationError(Exception):
    """The service manager passed something other than one listening unix stream socket."""


def inherited(environment: MutableMapping[str, str]) -> socket.socket | None:
    """The socket that this process inherited, None without one. Removes its variables from the
    environment: children must not inherit them. Raises ActivationError."""
    given = {name: environment.pop(name, "") for name in ("LISTEN_PID", "LISTEN_FDS")}
    environment.pop("LISTEN_FDNAMES", None)
    if given["LISTEN_PID"] != str(os.getpid()) or given["LISTEN_FDS"] in ("", "0"):
        return None
    if given["LISTEN_FDS"] != "1":
        raise ActivationError(f"LISTEN_FDS={given['LISTEN_FDS']}: only one socket is supported")
    try:
        found = socket.socket(fileno=_FIRST)
    except OSError as error:
        raise ActivationError(f"descriptor {_FIRST} is not a socket: {error.strerror}") from None
    listens = found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    if found.family != socket.AF_UNIX or found.type != socket.SOCK_STREAM or not listens:
        found.detach()
        raise ActivationError(f"descriptor {_FIRST} is not a listening unix stream socket")
    found.setblocking(False)
    os.set_inheritable(_FIRST, False)
    return found


def receives_datagrams(path: str) -> bool:
    """Whether a process has this datagram socket open, also one that does not read it: with a full
    queue. True also if the caller may not connect to it, and so can't know."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as probe:
        return probe.connect_ex(path) not in (errno.ENOENT, errno.ECONNREFUSED)
