"""The bytes from the client to the upstream, and their order when they can't be sent at once.

Most frames pass as slices of the receive buffer and never come here. Two things do:

- Messages that were taken over leave from their streams' own buffers (`sending`), each as far as
  the connection's and its stream's windows allow: none waits for another stream's window.
- A DATA frame of another stream for which the client has our credit but the upstream gave none
  waits in `queue`, in order, and behind it what must not overtake it: DATA, the client's SETTINGS
  ACK (windows count by the old value before it), and a header block of a stream with DATA waiting
  (trailers). Header blocks share one compression state, so behind a waiting block or ACK
  everything that opens or fills a stream waits too.

Nothing done for one frame walks the queue: a client can make it long, and reset all that is in it.
DATA of a stream that is over stays in it as a husk, which goes when it comes to the front or when
most of the queue is such."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from agent.relay.credit import Credit
from agent.relay.held import HeldStream
from agent.relay.lane import Lane
from agent.rpc import frames


class _Share:
    """What the queue holds of one stream: header blocks, DATA frames and their payload, others."""

    __slots__ = ("blocks", "data", "data_bytes", "rest")

    def __init__(self) -> None:
        self.blocks = 0
        self.data = 0
        self.data_bytes = 0
        self.rest = 0


class Uplink:
    """`sent` is called for a stream when its buffer has run empty."""

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
