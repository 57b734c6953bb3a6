"""The datagram socket on which the frontends notify the agent."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket

from agent.model.notifications import Notification, NotificationError, decode

LARGEST_BYTES = 1 << 18
MOST_NOTIFICATIONS = 1024
MOST_BYTES = 1 << 20
"""Of one wait: endless notifications neither keep the agent from its work nor fill its memory."""

log = logging.getLogger(__name__)


class NotificationSocket:
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
        self._notified = select.poll()
        self._notified.register(self._socket, select.POLLIN)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._poll.register(self._woken, select.POLLIN)

    def wait(self, timeout_seconds: float, rest_seconds: float = 0.0) -> list[Notification]:
        """The notifications that have come, once there is one, `wake` was called or the time is up;
        for the first `rest_seconds` only a notification ends the wait."""
        if not self._notified.poll(rest_seconds * 1000):
            self._poll.poll(max(timeout_seconds - rest_seconds, 0) * 1000)
        with contextlib.suppress(BlockingIOError):
            os.read(self._woken, 4096)
        received: list[Notification] = []
        received_bytes = 0
        for _ in range(MOST_NOTIFICATIONS):
            if received_bytes >= MOST_BYTES:
                break
            try:
                datagram = self._socket.recv(LARGEST_BYTES)
            except BlockingIOError:
                break
            received_bytes += len(datagram)
            try:
                received.append(decode(datagram))
            except NotificationError as error:
                log.warning("%s", error)
        return received

    def also_wake_on(self, descriptor: int) -> None:
        """A wait also ends when this descriptor is readable; its owner reads it."""
        self._poll.register(descriptor, select.POLLIN)

    def lost(self) -> bool:
        """Whether the socket's name is gone, or another's: no notification arrives any more."""
        try:
            return os.stat(self._path).st_ino != self._inode
        except OSError:
            return True

    def wake(self) -> None:
        """Ends a wait."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._waker, b".")

    def close(self) -> None:
        """Removes the socket: a notification then fails at once."""
        self._socket.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)
        os.close(self._woken)
        os.close(self._waker)
