"""One direction of a relayed connection: slices of received bytes, and frames of the relay. A frame
of the relay never goes inside another frame or a header block: it waits for the next boundary."""

from __future__ import annotations

from collections.abc import Callable

Sink = Callable[[bytes | bytearray | memoryview], None]
"""Takes bytes to send; it must not keep the object after it returns."""


class Lane:
    """`rest`: bytes of the current frame that are still to pass; `in_block`: a header block
    continues; `torn`: the first bytes of a frame were sent and its length is unknown. `opaque`:
    frames are not tracked any more, every byte passes. `waiting`: inserted frames that wait for a
    boundary."""

    __slots__ = ("_sink", "chunks", "in_block", "opaque", "rest", "torn", "waiting")

    def __init__(self, sink: Sink) -> None:
        self.rest = 0
        self.in_block = False
        self.torn = False
        self.opaque = False
        self.chunks: list[bytes | bytearray | memoryview] = []
        self._sink = sink
        self.waiting: list[bytes] = []

    @property
    def at_boundary(self) -> bool:
        return not (self.rest or self.in_block or self.torn)

    def insert(self, frame: bytes) -> None:
        """A frame of the relay's own, after all that has been put here so far."""
        (self.chunks if self.at_boundary else self.waiting).append(frame)

    def reached_boundary(self) -> None:
        """Puts here what waited for it."""
        if self.waiting:
            self.chunks += self.waiting
            self.waiting.clear()

    def flush(self) -> None:
        """Sends everything put here, in one piece."""
        if self.waiting and self.at_boundary:
            self.reached_boundary()
        chunks = self.chunks
        if chunks:
            self._sink(chunks[0] if len(chunks) == 1 else b"".join(chunks))
            chunks.clear()
