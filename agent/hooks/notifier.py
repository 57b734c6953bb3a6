"""Notifies the agent by datagrams. An absent agent is not an error."""

from __future__ import annotations

import socket
from collections import deque

from agent.model.notifications import Created, Notification, encode

MOST_KEPT = 1024


class Notifier:
    """Never blocks: a datagram that can't be delivered is dropped and counted. Only the values that
    a creation replaced are kept and sent later: they are needed for the restore in the end."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._kept: deque[bytes] = deque(maxlen=MOST_KEPT)
        self.sent = 0
        self.undelivered = 0

    def notify(self, notification: Notification) -> None:
        """Sends one datagram, after the kept ones."""
        self.sent += 1
        datagram = encode(notification)
        if self._send(datagram):
            while self._kept and self._send(self._kept[0]):
                self._kept.popleft()
            return
        self.undelivered += 1
        if isinstance(notification, Created):
            self._kept.append(datagram)

    def close(self) -> None:
        """Closes the socket."""
        self._socket.close()

    def _send(self, datagram: bytes) -> bool:
        try:
            self._socket.sendto(datagram, self._path)
        except OSError:
            return False
        return True
