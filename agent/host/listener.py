"""Listening unix sockets. A new one appears whole, replaces a dead one, and has one owner at a
time. An inherited one belongs to the service manager (sd_listen_fds(3)): it exists before the
process and stays after it, so that clients wait in between."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import MutableMapping
from typing import Final

from agent.host.locks import Lock, LockedError

_BACKLOG: Final = 128
_MAX_PATH_BYTES: Final = 107


class ListenError(Exception):
    """The socket can't be had; the message names its path and why."""


class Listener:
    """Listens at `path`: bound under another name in its folder and renamed, so that clients find
    the old socket or the new one and never one that refuses. `PATH.lock` is held in between; a
    killed process leaves both files, and the next one takes them over."""

    def __init__(self, path: str, mode: int = 0o600) -> None:
        """Raises ListenError."""
        self.path = path
        temporary = os.path.join(os.path.dirname(path), f".{os.getpid()}.sock")
        for each in (path, temporary):
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
                raise ListenError(f"{path}: exists and is no socket")
        except FileNotFoundError:
            pass
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            self.socket.bind(temporary)
            os.chmod(temporary, mode)
            self.socket.listen(_BACKLOG)
            self._inode = os.lstat(temporary).st_ino
            os.rename(temporary, path)
        except OSError as error:
            self.socket.close()
            self._lock.release()
            raise ListenError(f"{path}: {error.strerror}") from None
        self.socket.setblocking(False)

    def close(self) -> None:
        """Stops listening; removes the socket, if it is still ours, and the lock."""
        self.socket.close()
        with contextlib.suppress(FileNotFoundError):
            if os.lstat(self.path).st_ino == self._inode:
                os.unlink(self.path)
        self._lock.release()


_FIRST: Final = 3


class ActivationError(Exception):
    """The service manager gave something else than one listening unix stream socket."""


def inherited(environment: MutableMapping[str, str]) -> socket.socket | None:
    """The socket that this process inherited, None without one; removes the variables about it,
    which are not for children. Raises ActivationError."""
    given = {name: environment.pop(name, "") for name in ("LISTEN_PID", "LISTEN_FDS")}
    environment.pop("LISTEN_FDNAMES", None)
    if given["LISTEN_PID"] != str(os.getpid()) or given["LISTEN_FDS"] in ("", "0"):
        return None
    if given["LISTEN_FDS"] != "1":
        raise ActivationError(f"LISTEN_FDS={given['LISTEN_FDS']}: one socket is served, no more")
    try:
        it = socket.socket(fileno=_FIRST)
    except OSError as error:
        raise ActivationError(f"descriptor {_FIRST} is no socket: {error.strerror}") from None
    listens = it.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    if it.family != socket.AF_UNIX or it.type != socket.SOCK_STREAM or not listens:
        it.detach()
        raise ActivationError(f"descriptor {_FIRST} is no listening unix stream socket")
    it.setblocking(False)
    os.set_inheritable(_FIRST, False)
    return it
