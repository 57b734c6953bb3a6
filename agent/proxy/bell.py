"""The proxy's end of the doorbell; an agent that is away is no error."""

from __future__ import annotations

import socket
from collections import deque

from agent.model import doorbell
from agent.model.doorbell import Created, Ring

MOST_KEPT = 1024


class Bell:
    """Never blocks: a datagram that can't be delivered is dropped and counted.

    Only what was replaced at a creation is told later, when the agent is back: nobody else knows
    what to give that container back in the end.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._kept: deque[bytes] = deque(maxlen=MOST_KEPT)
        self.rings = 0
        self.undelivered = 0

    def ring(self, ring: Ring) -> None:
        """Sends one datagram, and what was kept before it."""
        self.rings += 1
        datagram = doorbell.encode(ring)
        if self._sent(datagram):
            while self._kept and self._sent(self._kept[0]):
                self._kept.popleft()
            return
        self.undelivered += 1
        if isinstance(ring, Created):
            self._kept.append(datagram)

    def close(self) -> None:
        """Rings no more."""
        self._socket.close()

    def _sent(self, datagram: bytes) -> bool:
        try:
            self._socket.sendto(datagram, self._path)
        except OSError:
            return False
        return True
