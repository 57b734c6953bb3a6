"""A stream whose request the relay has taken over from the client, and the memory for such streams.

One budget serves all connections of a relay. A request reserves its whole size when its length is
known, before its bytes arrive. So partially received requests never wait for each other: each one
with a reservation can be completed. A compressed request reserves its decompressed size when it is
complete. A request without a reservation waits, in the order of arrival, and its client gets no
credit for it (RFC 9113, section 5.2): it can't send more than its first window.

The first message of the reply is read while its frames pass, without delaying them (`ReplyTap`).
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from agent.relay.gate import Call
from agent.rpc import frames, grpc
from agent.rpc.held_calls import HeldCalls


class RelayLimits(NamedTuple):
    """The limits of a relay. A call beyond `body_bytes` or `streams` can't be hooked."""

    body_bytes: int = 16 << 20
    """The largest request message, compressed or not. A kubelet's client and containerd's server
    have the same limit (kubelet: maxMsgSize in cri-client/pkg/remote_runtime.go; containerd:
    DefaultMaxRecvMsgSize in defaults/defaults.go)."""
    held_bytes: int = 40 << 20
    """The memory for the requests of all connections that are partially received, held or not sent
    yet, with their decompressed content. It is more than twice `body_bytes`, which one compressed
    request may need."""
    share_bytes: int = 1 << 17
    """The memory for small requests that each connection has in addition."""
    waiting_bytes: int = 8 << 20
    """The most received bytes of all requests that wait for memory; beyond it, requests are
    refused."""
    wait_seconds: float = 10.0
    """How long a request waits for memory before it is refused."""
    streams: int = 4_096
    """The most hooked calls in progress on one connection."""
    reply_bytes: int = 1 << 16
    """The largest message of a reply that Gate.reply gets."""
    block_bytes: int = 1 << 16
    """The largest header block, with the heads of its frames; beyond it, the connection is not
    tracked."""


class Stage(enum.Enum):
    """The stage of a stream that the relay has taken over."""

    COLLECTING = enum.auto()
    """The client is still sending its message, or the message waits for memory."""
    HELD = enum.auto()
    """The message is whole and the gate answered Wait."""
    SENDING = enum.auto()
    """The message is being sent to the upstream, as its windows allow; the client has ended its
    side."""
    SENT = enum.auto()
    """Only the reply is watched."""
    PASSING = enum.auto()
    """Not hooked: received bytes pass, after the collected ones, until the windows agree again."""
    ENDED = enum.auto()
    """The upstream ended the call early: bytes that the client still sends are dropped."""


class ReplyTap:
    """Reads the first message of a reply. It gets every DATA frame of the stream: its head, then
    its payload in any pieces."""

    __slots__ = ("_data", "_left", "_limit", "_padded", "_wanted", "given_up")

    def __init__(self, limit_bytes: int) -> None:
        self.given_up = False
        self._limit = limit_bytes
        self._data = bytearray()
        self._wanted = -1
        self._left = 0
        self._padded = False

    def begin(self, flags: int, length: int) -> None:
        """The head of a DATA frame."""
        self._left = length
        self._padded = bool(flags & frames.PADDED)

    def piece(self, payload: memoryview) -> None:
        """Payload of the frame, as it arrives."""
        if not len(payload):
            return
        if self._padded:
            self._padded = False
            self._left -= 1 + payload[0]
            payload = payload[1:]
        content = payload[: max(self._left, 0)]
        self._left -= len(content)
        if self._wanted < 0:
            self._data += content
            self._read_prefix()
        elif len(self._data) < self._wanted:
            self._data += content[: self._wanted - len(self._data)]

    def message(self) -> bytes | None:
        """The first message, decompressed; None when it is incomplete or was given up."""
        if self.given_up or self._wanted < 0 or len(self._data) < self._wanted:
            return None
        message = bytes(self._data[grpc.PREFIX_BYTES : self._wanted])
        if not self._data[0]:
            return message
        try:
            return grpc.gunzip(message, self._limit)
        except grpc.MessageError:
            self.given_up = True
            return None

    def _read_prefix(self) -> None:
        try:
            prefix = grpc.read_prefix(self._data)
        except grpc.MessageError:
            self._give_up()
            return
        if prefix is None:
            return
        if prefix[1] > self._limit:
            self._give_up()
            return
        self._wanted = grpc.PREFIX_BYTES + prefix[1]
        del self._data[self._wanted :]

    def _give_up(self) -> None:
        self.given_up = True
        self._wanted = 0
        self._data.clear()


class HeldStream:
    """The state of a stream that the relay has taken over.

    `body`: the collected bytes and, from SENDING or PASSING on, the bytes left to send; empty for a
    held call whose bytes are all in `message`. `size_bytes`: the size of the whole message with its
    prefix, 0 while it is unknown. `needs_bytes`: the memory that must be reserved for the call.
    `window`: the upstream's window for this stream.

    `owed`: the bytes for which the client did not get credit yet. `kept`: the upstream's credit for
    this stream that the client did not get. `debt`: in PASSING, the credit that the relay gave
    to the client, and the upstream not yet to the relay.

    `headers_sent`: whether the relay has sent the stream's HEADERS.
    `done`: whether the client has ended its side.
    `ends`: whether the relay sends END_STREAM after `body`."""

    __slots__ = (
        "body",
        "call",
        "debt",
        "done",
        "end_sent",
        "ends",
        "headers_sent",
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
        "waiting_since",
        "window",
    )

    def __init__(self, number: int, path: bytes, window: int, headers_sent: bool) -> None:
        self.id = number
        self.path = path
        self.window = window
        self.headers_sent = headers_sent
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
        self.waiting_since = 0.0
        self.owed = 0
        self.kept = 0
        self.debt = 0
        self.call: Call | None = None
        self.message = b""
        self.tap: ReplyTap | None = None

    @property
    def is_sent(self) -> bool:
        """Whether nothing is left to send for now."""
        return not self.body and self.ends == self.end_sent

    def next_frame(self, window: int) -> bytes | None:
        """A DATA frame of the bytes that are left to send; None when a window has no room for
        it."""
        size = len(self.body)
        room = 0  # END_STREAM alone needs no window, and a window may be below zero
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


_SMALL_PART: Final = 4
"""A request of more than this part of a connection's share is not small."""


class MemoryBudget:
    """The memory for the requests of all connections."""

    __slots__ = ("limits", "reserved_bytes", "waiting", "waiting_bytes")

    def __init__(self, limits: RelayLimits, waiting: HeldCalls[HeldStream]) -> None:
        self.limits = limits
        self.reserved_bytes = 0
        """The memory of the requests that have a reservation."""
        self.waiting = waiting
        """The requests that wait for a reservation."""
        self.waiting_bytes = 0
        """The bytes that the relay has received of the waiting requests."""


class ConnectionBudget:
    """The budget of one connection. Each connection also has a share of its own for small requests,
    so that large ones do not delay other calls."""

    __slots__ = ("_budget", "_limits", "share_bytes")

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self._limits = budget.limits
        self.share_bytes = 0
        """The part of the share that small requests have reserved."""

    def reserve(self, stream: HeldStream, size: int) -> bool:
        """Raises the stream's reservation to `size`. Returns False if too little memory is left. A
        stream that already has a reservation does not wait behind others."""
        budget, limits = self._budget, self._limits
        more = size - stream.reserved_bytes
        if not self._has_turn(stream) or budget.reserved_bytes + more > limits.held_bytes:
            share = self.share_bytes + more
            if size > limits.share_bytes // _SMALL_PART or share > limits.share_bytes:
                return False
            self.share_bytes = share
            stream.share_bytes += more
        else:
            budget.reserved_bytes += more
        stream.reserved_bytes = size
        return True

    def _has_turn(self, stream: HeldStream) -> bool:
        waiting = self._budget.waiting
        return not waiting or stream.reserved_bytes > 0 or next(iter(waiting)) is stream

    def wait(self, stream: HeldStream, ask: Callable[[], None]) -> bool:
        """Queues a request without a reservation, and counts its received bytes. `ask` tries again
        to reserve memory for it. Returns False if the request must be refused: the waiting clients
        have sent too much, or it has waited too long."""
        budget, limits = self._budget, self._limits
        now = time.monotonic()
        if not stream.waiting_since:
            stream.waiting_since = now
            budget.waiting.hold(stream, ask)
        received_bytes = max(len(stream.body) - stream.reserved_bytes, 0)
        budget.waiting_bytes += received_bytes - stream.waiting_bytes
        stream.waiting_bytes = received_bytes
        late = now - stream.waiting_since > limits.wait_seconds
        return budget.waiting_bytes <= limits.waiting_bytes and not late

    def stop_waiting(self, stream: HeldStream) -> None:
        """The request has its reservation, or does not need one any more."""
        if stream.waiting_since:
            self._budget.waiting.release(stream)
            self._budget.waiting_bytes -= stream.waiting_bytes
            stream.waiting_bytes = 0
            stream.waiting_since = 0.0

    def release(self, stream: HeldStream) -> None:
        """The relay holds nothing for the stream any more."""
        if stream.reserved_bytes:
            self.share_bytes -= stream.share_bytes
            self._budget.reserved_bytes -= stream.reserved_bytes - stream.share_bytes
            stream.reserved_bytes = stream.share_bytes = 0
        self.stop_waiting(stream)
