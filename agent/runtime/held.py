"""A stream whose request the relay has taken over from the client, wholly or for a while."""

from __future__ import annotations

import enum
from typing import NamedTuple

from agent.rpc import frames, grpc
from agent.runtime.gate import Call
from agent.runtime.tap import ReplyTap


class Limits(NamedTuple):
    """What one connection may cost; beyond it a call passes unhooked."""

    body_bytes: int = 1 << 20
    """Of one request message, packed or not."""
    held_bytes: int = 8 << 20
    """Of all requests that the connection has half received, held or not sent yet, and of what
    packed ones among them contain."""
    all_held_bytes: int = 64 << 20
    """The same of all connections together; beyond it each still has `fair_bytes`."""
    fair_bytes: int = 1 << 16
    streams: int = 4_096
    """Hooked calls under way."""
    reply_bytes: int = 1 << 16
    """Of a reply's message, for Gate.reply."""
    block_bytes: int = 1 << 16
    """Of a header block with its frames' heads; beyond it the connection is not followed."""


class Stage(enum.Enum):
    """Where a taken-over stream stands."""

    COLLECTING = enum.auto()
    """The client is still sending its message."""
    HELD = enum.auto()
    """The message is whole and the gate answered Hold."""
    SENDING = enum.auto()
    """On its way to the upstream, as its windows allow; the client has ended its side."""
    SENT = enum.auto()
    """Only the reply is watched."""
    LOOSE = enum.auto()
    """Unhooked: what comes goes on, behind what was collected, until windows agree again."""
    ENDED = enum.auto()
    """The upstream ended the call early: what the client still sends is dropped."""


class HeldStream:
    """`body` is what was collected and, from SENDING and LOOSE on, what is left to send.

    `window` is the upstream's for this stream. `kept` counts credit of the upstream for this
    stream that the client did not get; in LOOSE, `debt` is credit of ours that the upstream has
    not matched. `announced`: the stream's HEADERS have gone up. `done`: the client has ended its
    side; `ends`: with the END_STREAM that closes `body`.
    """

    __slots__ = (
        "announced",
        "body",
        "call",
        "debt",
        "done",
        "end_sent",
        "ends",
        "id",
        "kept",
        "message",
        "path",
        "stage",
        "taken",
        "tap",
        "window",
    )

    def __init__(self, number: int, path: bytes, window: int, announced: bool) -> None:
        self.id = number
        self.path = path
        self.window = window
        self.announced = announced
        self.stage = Stage.COLLECTING
        self.body = bytearray()
        self.ends = False
        self.done = False
        self.end_sent = False
        self.taken = 0
        self.kept = 0
        self.debt = 0
        self.call: Call | None = None
        self.message = b""
        self.tap: ReplyTap | None = None

    def packed_message(self) -> tuple[bool, bytes] | None:
        """(compressed, bytes) of the body's one message; None when it is not exactly one."""
        try:
            prefix = grpc.read_prefix(self.body)
        except grpc.MessageError:
            return None
        if prefix is None or len(self.body) != grpc.PREFIX_BYTES + prefix[1]:
            return None
        return prefix[0], bytes(memoryview(self.body)[grpc.PREFIX_BYTES :])

    @property
    def is_sent(self) -> bool:
        """Nothing is left to send for now."""
        return not self.body and self.ends == self.end_sent

    def next_frame(self, window: int) -> bytes | None:
        """A DATA frame of what is left to send; None where a window has no room for it."""
        size = len(self.body)
        room = 0  # the end alone needs no window, and a shrunk one is below zero
        if size:
            room = min(size, window, self.window, frames.DEFAULT_MAX_FRAME)
            if room <= 0:
                return None
        self.end_sent = self.ends and room == size
        flags = frames.END_STREAM if self.end_sent else 0
        frame = frames.head(room, frames.DATA, flags, self.id) + self.body[:room]
        del self.body[:room]
        self.window -= room
        return frame
