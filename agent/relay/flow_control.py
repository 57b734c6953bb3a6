"""Flow control and order of one relayed connection (RFC 9113, sections 5.2 and 6.9).

`Lane` is one direction: slices of received bytes, with frames of the relay between them. `Credit`
counts the bytes of the connection's windows. `Uplink` sends the frames that can't pass to the
upstream at once, in the order that HTTP/2 needs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from agent.relay.streams import HeldStream
from agent.rpc import frames

Sink = Callable[[bytes | bytearray | memoryview], None]
"""Takes bytes to send; it must not keep the object after it returns."""


class Lane:
    """One direction of a connection. A frame of the relay is never inserted into another frame or a
    header block: it waits for the next boundary.

    `rest`: the bytes of the current frame that have not passed yet. `in_block`: a header block
    continues. `torn`: the first bytes of a frame were sent, and its length is unknown. `opaque`:
    frames are no longer tracked, and every byte passes. `waiting`: inserted frames that wait for a
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
        """Adds a frame of the relay after everything in the lane."""
        (self.chunks if self.at_boundary else self.waiting).append(frame)

    def reached_boundary(self) -> None:
        """Adds the frames that waited for a boundary."""
        if self.waiting:
            self.chunks += self.waiting
            self.waiting.clear()

    def flush(self) -> None:
        """Sends the content of the lane in one piece."""
        if self.waiting and self.at_boundary:
            self.reached_boundary()
        chunks = self.chunks
        if chunks:
            self._sink(chunks[0] if len(chunks) == 1 else b"".join(chunks))
            chunks.clear()


class Credit:
    """The connection's window.

    The window that the client sees is the upstream's real window, less the bytes that the relay has
    taken over from the client and not sent yet, plus `excess`: the bytes that the client may send
    although the upstream has given no credit for them. A frame that is taken over from the client
    lowers `excess`; bytes that are committed to the upstream raise it. While it is above zero, the
    relay keeps the upstream's credit up to this difference. When it is below zero, the client gets
    the difference at once.

    `window`: the bytes that the upstream accepts now; `initial`: its window for a new stream;
    `frame_bytes`: the largest frame payload that it has ever allowed."""

    __slots__ = ("excess", "frame_bytes", "initial", "offers", "window")

    def __init__(self) -> None:
        self.window = frames.DEFAULT_WINDOW
        self.excess = 0
        self.initial = frames.DEFAULT_WINDOW
        self.frame_bytes = frames.DEFAULT_MAX_FRAME
        self.offers: deque[int | None] = deque()
        """The initial windows in the upstream's SETTINGS that the client has not acknowledged.

        A value applies when the client's ACK passes, not when the SETTINGS pass: the upstream uses
        the old value until it sees the ACK.
        """

    def credited(self, credit: int) -> int:
        """The upstream gave credit. Returns the part that goes to the client."""
        self.window += credit
        kept = min(credit, self.excess)
        self.excess -= kept
        return credit - kept

    def acknowledged(self) -> int:
        """The client's ACK passes. Returns by how much every stream's window changes."""
        offer = self.offers.popleft() if self.offers else None
        if offer is None:
            return 0
        change = offer - self.initial
        self.initial = offer
        return change

    def settle(self) -> int:
        """Returns the credit to give to the client when `excess` is below zero."""
        due, self.excess = -self.excess, 0
        return due


class _Share:
    """The numbers of one stream's entries in the queue: header blocks, DATA frames (with the bytes
    of their payloads) and others."""

    __slots__ = ("blocks", "data", "data_bytes", "rest")

    def __init__(self) -> None:
        self.blocks = 0
        self.data = 0
        self.data_bytes = 0
        self.rest = 0


class Uplink:
    """Sends the client's frames to the upstream. Most pass as slices of the receive buffer and are
    not queued here. Two kinds are:

    - Messages that were taken over leave from the buffers of their streams (`sending`), as far as
      the windows of the connection and the stream allow. A stream never waits for the window of
      another stream.
    - A DATA frame of another stream, for which the relay gave credit but the upstream did not,
      waits in `queue`, in order. Everything that must not overtake it waits behind it: DATA, the
      client's SETTINGS ACK (the old windows apply before it), and a header block of a stream whose
      DATA waits (trailers). Header blocks share one compression state, so everything that opens or
      fills a stream waits behind a queued block or ACK too.

    Handling one frame never walks the queue: a client can make it long, and reset all streams in
    it. DATA of a stream that has ended becomes stale and is dropped at the front, or when most of
    the queue is stale. `sent` is called for a stream when its buffer has become empty."""

    __slots__ = (
        "_barriers",
        "_credit",
        "_ended_streams",
        "_sent",
        "_shares",
        "_stale_frames",
        "_streams",
        "lane",
        "queue",
        "queued_bytes",
        "sending",
    )

    def __init__(
        self,
        lane: Lane,
        credit: Credit,
        streams: dict[int, HeldStream],
        sent: Callable[[HeldStream], None],
    ) -> None:
        self.lane = lane
        self.queue: deque[tuple[int, int, bytes]] = deque()  # kind, stream, frames
        self.queued_bytes = 0
        self.sending: dict[int, HeldStream] = {}
        self._barriers = 0
        self._stale_frames = 0
        self._ended_streams: set[int] = set()  # streams whose DATA frames in the queue are stale
        self._shares: dict[int, _Share] = {}
        self._credit = credit
        self._streams = streams
        self._sent = sent

    def delays_block(self, number: int) -> bool:
        """Whether a header block of this stream must wait."""
        return number in self.sending or (
            bool(self.queue) and (self._barriers > 0 or number in self._shares)
        )

    def delays_reset(self, number: int) -> bool:
        """Whether an RST_STREAM must wait, because the stream's HEADERS have not passed yet."""
        share = self._shares.get(number)
        return share is not None and share.blocks > 0

    def put(self, kind: int, number: int, raw: bytes) -> None:
        """Queues whole frames. `kind`: of the first frame."""
        if kind == frames.DATA and number in self._ended_streams:
            self._credit.excess -= len(raw) - frames.HEAD_BYTES
            return
        self.queue.append((kind, number, raw))
        self.queued_bytes += len(raw)
        self._barriers += kind != frames.DATA
        share = self._shares.setdefault(number, _Share())
        if kind == frames.DATA:
            share.data += 1
            share.data_bytes += len(raw) - frames.HEAD_BYTES
        elif kind == frames.HEADERS:
            share.blocks += 1
        else:
            share.rest += 1

    def acknowledge(self) -> None:
        """The client's SETTINGS ACK passes now."""
        if change := self._credit.acknowledged():
            for stream in self._streams.values():
                stream.window += change

    def reset(self, number: int) -> None:
        """Sends an RST_STREAM of the relay, after the stream's HEADERS."""
        raw = frames.rst_stream(number, frames.CANCEL)
        if self.delays_reset(number):
            self.put(frames.RST_STREAM, number, raw)
        else:
            self.lane.insert(raw)

    def send(self, stream: HeldStream, committed: int) -> None:
        """Commits `committed` more bytes of the stream's body, or its end, to the upstream."""
        self._credit.excess += committed
        self.sending[stream.id] = stream

    def drop(self, number: int) -> None:
        """The stream has ended: its unsent bytes are dropped."""
        stream = self.sending.pop(number, None)
        if stream is not None:
            self._credit.excess -= len(stream.body)
            stream.body.clear()
        share = self._shares.get(number)
        if share is None or not share.data:
            return
        self._credit.excess -= share.data_bytes
        self.queued_bytes -= share.data_bytes + share.data * frames.HEAD_BYTES
        self._stale_frames += share.data
        self._ended_streams.add(number)
        share.data = share.data_bytes = 0
        self._forget_empty(number, share)
        if 2 * max(self._stale_frames, len(self._ended_streams)) > len(self.queue):
            live = [each for each in self.queue if not self._is_stale(each)]
            self.queue.clear()
            self.queue.extend(live)
            self._stale_frames = 0
            self._ended_streams.clear()

    def pump(self) -> None:
        """Sends as much as the windows allow, between frames. Committed bytes leave only here, so
        the windows are current."""
        if not self.lane.at_boundary:
            return
        while True:
            self._advance()
            blocked_on_data = bool(self.queue) and self.queue[0][0] == frames.DATA
            if not blocked_on_data:
                for stream in list(self.sending.values()):
                    self._send_from(stream)
            if blocked_on_data or not self.queue or self._is_blocked():
                return

    def _is_stale(self, entry: tuple[int, int, bytes]) -> bool:
        return entry[0] == frames.DATA and entry[1] in self._ended_streams

    def _forget_empty(self, number: int, share: _Share) -> None:
        if not (share.data or share.blocks or share.rest):
            del self._shares[number]

    def _is_blocked(self) -> bool:
        kind, number, raw = self.queue[0]
        if kind == frames.DATA:
            return len(raw) - frames.HEAD_BYTES > self._credit.window
        return (
            kind == frames.HEADERS and number in self.sending and self.sending[number].headers_sent
        )

    def _advance(self) -> None:
        while self.queue:
            if self._stale_frames and self._is_stale(self.queue[0]):
                self.queue.popleft()
                self._stale_frames -= 1
                continue
            if self._is_blocked():
                break
            kind, number, raw = self.queue.popleft()
            self.queued_bytes -= len(raw)
            share = self._shares[number]
            if kind == frames.DATA:
                self._credit.window -= len(raw) - frames.HEAD_BYTES
                share.data -= 1
                share.data_bytes -= len(raw) - frames.HEAD_BYTES
            else:
                self._barriers -= 1
                share.blocks -= kind == frames.HEADERS
                share.rest -= kind != frames.HEADERS
            self._forget_empty(number, share)
            if kind == frames.SETTINGS:
                self.acknowledge()
            elif kind == frames.HEADERS and (stream := self._streams.get(number)):
                stream.headers_sent = True
            self.lane.insert(raw)
        if self.queue:
            self._split_first()
        elif self._ended_streams:
            self._ended_streams.clear()

    def _split_first(self) -> None:
        """Sends the part of a DATA frame that the window allows: the upstream may wait for it."""
        kind, number, raw = self.queue[0]
        window = self._credit.window
        if kind != frames.DATA or raw[4] & frames.PADDED or window <= 0:
            return
        cut = frames.HEAD_BYTES + window
        part, rest = raw[frames.HEAD_BYTES : cut], raw[cut:]
        self.lane.insert(frames.frame(frames.DATA, raw[4] & ~frames.END_STREAM, number, part))
        self.queue[0] = kind, number, frames.frame(frames.DATA, raw[4], number, rest)
        self.queued_bytes -= window
        self._shares[number].data_bytes -= window
        self._credit.window = 0

    def _send_from(self, stream: HeldStream) -> None:
        if not stream.headers_sent:
            return
        while not stream.is_sent:
            frame = stream.next_frame(self._credit.window)
            if frame is None:
                return
            self._credit.window -= len(frame) - frames.HEAD_BYTES
            self.lane.insert(frame)
        del self.sending[stream.id]
        self._sent(stream)
