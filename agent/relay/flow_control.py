"""Flow control and order of one relayed connection (RFC 9113, sections 5.2 and 6.9).

`Lane` is one direction: slices of received bytes, and between them frames of the relay. `Credit` is
the account of the connection's windows. `Uplink` sends to the upstream what can't pass at once, in
the order that HTTP/2 needs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from agent.relay.streams import HeldStream
from agent.rpc import frames

Sink = Callable[[bytes | bytearray | memoryview], None]
"""Takes bytes to send; it must not keep the object after it returns."""


class Lane:
    """A frame of the relay never goes inside another frame or a header block: it waits for the next
    boundary.

    `rest`: bytes of the current frame that are still to pass; `in_block`: a header block
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


class Credit:
    """The client's picture of the connection window is the upstream's real window, less what the
    relay has taken over from the client and not sent yet, plus `excess`: bytes that the client may
    send though the upstream has given no credit for them. Taking a frame from the client lowers it,
    committing bytes to the upstream raises it. Above zero, credit that the upstream gives is kept
    until the debt is paid; below zero, the client is given the difference at once.

    `window`: what the upstream accepts now; `initial`: what it gives a new stream;
    `frame_bytes`: the largest payload of a frame that it has ever accepted."""

    __slots__ = ("excess", "frame_bytes", "initial", "offers", "window")

    def __init__(self) -> None:
        self.window = frames.DEFAULT_WINDOW
        self.excess = 0
        self.initial = frames.DEFAULT_WINDOW
        self.frame_bytes = frames.DEFAULT_MAX_FRAME
        self.offers: deque[int | None] = deque()
        """The upstream's SETTINGS that the client has not acknowledged: their initial window.

        One applies when the client's ACK goes up, not when the SETTINGS come down: the upstream
        counts by the old value until it sees the ACK.
        """

    def granted(self, credit: int) -> int:
        """The upstream gave credit; returns how much of it the client is to have."""
        self.window += credit
        kept = min(credit, self.excess)
        self.excess -= kept
        return credit - kept

    def acknowledged(self) -> int:
        """The client's ACK goes up; returns by how much every stream's window changes."""
        offer = self.offers.popleft() if self.offers else None
        if offer is None:
            return 0
        change = offer - self.initial
        self.initial = offer
        return change

    def settle(self) -> int:
        """The credit that the client is to have now that `excess` is below zero."""
        due, self.excess = -self.excess, 0
        return due


class _Share:
    """What the queue holds of one stream: header blocks, DATA frames and their payload, others."""

    __slots__ = ("blocks", "data", "data_bytes", "rest")

    def __init__(self) -> None:
        self.blocks = 0
        self.data = 0
        self.data_bytes = 0
        self.rest = 0


class Uplink:
    """Most frames pass as slices of the receive buffer and never come here. Two kinds do:

    - Messages that were taken over leave from their streams' own buffers (`sending`), each as far
      as the connection's and its stream's windows allow: none waits for another stream's window.
    - A DATA frame of another stream for which the client has our credit but the upstream gave none
      waits in `queue`, in order. Behind it waits everything that must not overtake it: DATA, the
      client's SETTINGS ACK (windows count by the old value before it), and a header block of a
      stream with DATA waiting (trailers). Header blocks share one compression state, so behind a
      waiting block or ACK everything that opens or fills a stream waits too.

    No work for one frame walks the queue: a client can make it long, and reset all streams in it.
    DATA of a stream that has ended stays in it as a husk, which is dropped at the front, or when
    most of the queue is husks. `sent` is called for a stream when its buffer has run empty."""

    __slots__ = (
        "_barriers",
        "_credit",
        "_husks",
        "_over",
        "_sent",
        "_shares",
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
        self._husks = 0
        self._over: set[int] = set()  # streams whose DATA frames in the queue are husks
        self._shares: dict[int, _Share] = {}
        self._credit = credit
        self._streams = streams
        self._sent = sent

    def delays_block(self, number: int) -> bool:
        """A header block of this stream must wait."""
        return number in self.sending or (
            bool(self.queue) and (self._barriers > 0 or number in self._shares)
        )

    def delays_reset(self, number: int) -> bool:
        """The stream's HEADERS have not gone up yet."""
        share = self._shares.get(number)
        return share is not None and share.blocks > 0

    def put(self, kind: int, number: int, raw: bytes) -> None:
        """Whole frames that wait their turn; `kind` is that of the first."""
        if kind == frames.DATA and number in self._over:
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
        """The client's SETTINGS ACK goes up now."""
        if change := self._credit.acknowledged():
            for stream in self._streams.values():
                stream.window += change

    def reset(self, number: int) -> None:
        """An RST_STREAM of the relay, after the stream's HEADERS."""
        raw = frames.rst_stream(number, frames.CANCEL)
        if self.delays_reset(number):
            self.put(frames.RST_STREAM, number, raw)
        else:
            self.lane.insert(raw)

    def send(self, stream: HeldStream, committed: int) -> None:
        """`committed` more bytes of the stream's body, or its end, are to go to the upstream."""
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
        self._husks += share.data
        self._over.add(number)
        share.data = share.data_bytes = 0
        self._forget_empty(number, share)
        if 2 * max(self._husks, len(self._over)) > len(self.queue):
            live = [each for each in self.queue if not self._is_husk(each)]
            self.queue.clear()
            self.queue.extend(live)
            self._husks = 0
            self._over.clear()

    def pump(self) -> None:
        """Sends what the windows allow, between frames. Committed bytes leave here only, so the
        windows are current."""
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

    def _is_husk(self, entry: tuple[int, int, bytes]) -> bool:
        return entry[0] == frames.DATA and entry[1] in self._over

    def _forget_empty(self, number: int, share: _Share) -> None:
        if not (share.data or share.blocks or share.rest):
            del self._shares[number]

    def _is_blocked(self) -> bool:
        kind, number, raw = self.queue[0]
        if kind == frames.DATA:
            return len(raw) - frames.HEAD_BYTES > self._credit.window
        return kind == frames.HEADERS and number in self.sending and self.sending[number].announced

    def _advance(self) -> None:
        while self.queue:
            if self._husks and self._is_husk(self.queue[0]):
                self.queue.popleft()
                self._husks -= 1
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
                stream.announced = True
            self.lane.insert(raw)
        if self.queue:
            self._split_first()
        elif self._over:
            self._over.clear()

    def _split_first(self) -> None:
        """Sends what the window takes of a DATA frame: the upstream may wait for just that."""
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
        if not stream.announced:
            return
        while not stream.is_sent:
            frame = stream.next_frame(self._credit.window)
            if frame is None:
                return
            self._credit.window -= len(frame) - frames.HEAD_BYTES
            self.lane.insert(frame)
        del self.sending[stream.id]
        self._sent(stream)
