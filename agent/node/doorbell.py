"""The agent's end of the doorbell: a datagram socket that the proxy rings."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket

from agent.model import doorbell
from agent.model.doorbell import Ring

LARGEST_BYTES = 1 << 18
MOST_RINGS = 1024
"""Of one wait: who rings without end must not keep the agent from looking."""

log = logging.getLogger(__name__)


class Doorbell:
    """Replaces a socket that an earlier agent left. `wake` may be called from a signal handler."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        self._socket.bind(path)
        os.chmod(path, 0o600)
        self._inode = os.stat(path).st_ino
        self._woken, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._rings = select.poll()
        self._rings.register(self._socket, select.POLLIN)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._poll.register(self._woken, select.POLLIN)

    def wait(self, timeout_seconds: float, rest_seconds: float = 0.0) -> list[Ring]:
        """Every ring that has come, after at least one came, `wake` was called or time is up; for
        the first `rest_seconds` only a ring counts."""
        if not self._rings.poll(rest_seconds * 1000):
            self._poll.poll(max(timeout_seconds - rest_seconds, 0) * 1000)
        with contextlib.suppress(BlockingIOError):
            os.read(self._woken, 4096)
        rings: list[Ring] = []
        for _ in range(MOST_RINGS):
            try:
                datagram = self._socket.recv(LARGEST_BYTES)
            except BlockingIOError:
                break
            try:
                rings.append(doorbell.decode(datagram))
            except doorbell.DoorbellError as error:
                log.warning("%s", error)
        return rings

    def also_wake_on(self, descriptor: int) -> None:
        """A wait ends too when this descriptor has something to read; who owns it reads it."""
        self._poll.register(descriptor, select.POLLIN)

    def lost(self) -> bool:
        """Whether nobody can ring here any more: the socket's name is gone, or another's."""
        try:
            return os.stat(self._path).st_ino != self._inode
        except OSError:
            return True

    def wake(self) -> None:
        """Ends a wait."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._waker, b".")

    def close(self) -> None:
        """Removes the socket: a ring then fails at once."""
        self._socket.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)
        os.close(self._woken)
        os.close(self._waker)
