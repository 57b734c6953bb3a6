"""One direction of a relayed connection: slices of what arrived, and frames of the relay's own.

A frame of ours never lands inside another frame or a header block: it waits for the next boundary.
"""

from __future__ import annotations

from collections.abc import Callable

Sink = Callable[[bytes | bytearray | memoryview], None]
"""Takes bytes to send; it must not keep the object after it returns."""


class Lane:
    """`rest`: bytes of a frame under way that are still to pass; `in_block`: headers go on.

    `opaque`: frames are followed no longer, everything passes.
    """

    __slots__ = ("_waiting", "chunks", "in_block", "opaque", "rest", "sink")

    def __init__(self, sink: Sink) -> None:
        self.rest = 0
        self.in_block = False
        self.opaque = False
        self.chunks: list[bytes | bytearray | memoryview] = []
        self.sink = sink
        self._waiting: list[bytes] = []

    @property
    def at_boundary(self) -> bool:
        return not self.rest and not self.in_block

    def insert(self, frame: bytes) -> None:
        """A frame of the relay's own, after all that has been put here so far."""
        (self.chunks if self.at_boundary else self._waiting).append(frame)

    def reached_boundary(self) -> None:
        """Puts here what waited for it."""
        if self._waiting:
            self.chunks += self._waiting
            self._waiting.clear()

    @property
    def is_waited_for(self) -> bool:
        return bool(self._waiting)

    def flush(self) -> None:
        """Sends everything put here, in one piece."""
        if self._waiting and self.at_boundary:
            self.reached_boundary()
        chunks = self.chunks
        if chunks:
            self.sink(chunks[0] if len(chunks) == 1 else b"".join(chunks))
            chunks.clear()
