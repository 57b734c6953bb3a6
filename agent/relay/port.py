"""One of the two sockets of a pair."""

from __future__ import annotations

import socket

from agent.host.loop import READ, WRITE, Loop, OnReady


class Port:
    """What can't be sent at once waits in `backlog`.

    `strained`: it does not simply wait for bytes to read.
    """

    __slots__ = (
        "_loop",
        "_mask",
        "_receive",
        "_send",
        "backlog",
        "broken",
        "eof",
        "socket",
        "strained",
    )

    def __init__(self, loop: Loop, end: socket.socket) -> None:
        self.socket = end
        self._receive = end.recv_into
        self._send = end.send
        self.backlog = bytearray()
        self.eof = False
        self.broken = False
        self.strained = True
        self._loop = loop
        self._mask: int | None = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        sent = 0
        if self.strained:
            if self.broken:
                return
            if self.backlog:
                self.backlog += data
                return
        try:
            sent = self._send(data)
        except BlockingIOError:
            pass
        except OSError:
            self.broken = self.strained = True
            return
        if sent < len(data):
            self.backlog += memoryview(data)[sent:]
            self.strained = True

    def drain(self) -> None:
        """Sends of the backlog what the socket takes."""
        try:
            del self.backlog[: self.socket.send(self.backlog)]
        except BlockingIOError:
            return
        except OSError:
            self.broken = True
            self.backlog.clear()

    def read(self, buffer: memoryview) -> memoryview | None:
        """What arrived; None for nothing now. Sets `eof`."""
        try:
            size = self._receive(buffer)
        except BlockingIOError:
            return None
        except OSError:
            size = 0
        if not size:
            self.eof = self.strained = True
            return None
        return buffer[:size]

    def watch(self, reading: bool, hang_up: bool, on_ready: OnReady) -> None:
        """Waits for the relevant events; an ignored hang-up would be reported without end."""
        mask: int | None = (READ if reading else 0) | (WRITE if self.backlog else 0)
        if not mask and not hang_up:
            mask = None
        self.strained = mask != READ
        if mask == self._mask:
            return
        fd = self.socket.fileno()
        if mask is None:
            self._loop.unregister(fd)
        elif self._mask is None:
            self._loop.register(fd, mask, on_ready)
        else:
            self._loop.modify(fd, mask)
        self._mask = mask

    def close(self) -> None:
        if self._mask is not None:
            self._loop.unregister(self.socket.fileno())
            self._mask = None
        self.socket.close()
