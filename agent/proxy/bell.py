"""The proxy's end of the doorbell; an agent that is away is no error."""

from __future__ import annotations

import socket

from agent.model import doorbell
from agent.model.doorbell import Ring


class Bell:
    """Never blocks: a datagram that can't be delivered is dropped and counted."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self.rings = 0
        self.undelivered = 0

    def ring(self, ring: Ring) -> None:
        """Sends one datagram."""
        self.rings += 1
        try:
            self._socket.sendto(doorbell.encode(ring), self._path)
        except OSError:
            self.undelivered += 1

    def close(self) -> None:
        """Rings no more."""
        self._socket.close()
