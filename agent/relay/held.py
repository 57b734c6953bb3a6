"""A stream whose request the relay has taken over from the client, wholly or for a while."""

from __future__ import annotations

import enum
from typing import NamedTuple

from agent.relay.gate import Call
from agent.relay.tap import ReplyTap
from agent.rpc import frames


class RelayLimits(NamedTuple):
    """What a relay's requests may cost. A call beyond `body_bytes` or `streams` can't be hooked."""

    body_bytes: int = 16 << 20
    """Of one request message, packed or not. A kubelet's client and containerd's server have the
    same limit (kubelet: maxMsgSize in cri-client/pkg/remote_runtime.go; containerd:
    DefaultMaxRecvMsgSize in defaults/defaults.go)."""
    held_bytes: int = 40 << 20
    """Of all requests of all connections that are half received, held or not sent yet, with the
    content of packed ones; more than twice `body_bytes`: one packed request may need as much."""
    share_bytes: int = 1 << 17
    """What each connection has for small requests, however much others hold."""
    waiting_bytes: int = 8 << 20
    """Of what clients have sent of requests that wait for room; one more is refused."""
    wait_seconds: float = 10.0
    """How long a request waits for room before it is refused."""
    streams: int = 4_096
    """Hooked calls under way."""
    reply_bytes: int = 1 << 16
    """Of a reply's message, for Gate.reply."""
    block_bytes: int = 1 << 16
    """Of a header block with its frames' heads; beyond it the connection is not followed."""


class Stage(enum.Enum):
    """The stage of a stream that the relay has taken over."""

    COLLECTING = enum.auto()
    """The client is still sending its message, or the message waits for room."""
    HELD = enum.auto()
    """The message is whole and the gate answered Wait."""
    SENDING = enum.auto()
    """On its way to the upstream, as its windows allow; the client has ended its side."""
    SENT = enum.auto()
    """Only the reply is watched."""
    LOOSE = enum.auto()
    """Unhooked: received bytes pass, after those that were collected, until the windows agree
    again."""
    ENDED = enum.auto()
    """The upstream ended the call early: what the client still sends is dropped."""


class HeldStream:
    """`body`: the collected bytes and, from SENDING and LOOSE on, those left to send; empty for a
    held call whose bytes are all in `message`. `size_bytes`: of the whole message with its prefix,
    0 while unknown; `needs_bytes`: its reservation. `window`: the upstream's for this stream.
    `owed`: credit that the client did not get for its bytes, `kept`: credit of the upstream for
    this stream that the client did not get; in LOOSE, `debt`: credit of ours that the upstream has
    not matched. `announced`: the stream's HEADERS were sent. `done`: the client has ended its side;
    `ends`: with the END_STREAM that closes `body`."""

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
        "needs_bytes",
        "owed",
        "path",
        "reserved_bytes",
        "share_bytes",
        "size_bytes",
        "stage",
        "tap",
        "waiting_bytes",
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
        self.size_bytes = 0
        self.needs_bytes = 0
        self.reserved_bytes = 0
        self.share_bytes = 0
        self.waiting_bytes = 0
        self.owed = 0
        self.kept = 0
        self.debt = 0
        self.call: Call | None = None
        self.message = b""
        self.tap: ReplyTap | None = None

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
