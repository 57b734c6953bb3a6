"""What goes from the client to the upstream, and in which order when it can't go at once.

Most frames pass as slices of the receive buffer and never come here. Two things do:

- Messages that were taken over leave from their streams' own buffers (`sending`), each as far as
  the connection's and its stream's windows allow: none waits for another stream's window.
- A DATA frame of another stream for which the client has our credit but the upstream gave none
  waits in `queue`, in order, and behind it what must not overtake it: DATA, the client's SETTINGS
  ACK (windows count by the old value before it), and a header block of a stream with DATA waiting
  (trailers). Header blocks share one compression state, so behind a waiting block or ACK
  everything that opens or fills a stream waits too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from agent.rpc import frames
from agent.runtime.credit import Credit
from agent.runtime.held import HeldStream
from agent.runtime.lane import Lane


class Uplink:
    """`sent` is called for a stream when its buffer has run empty."""

    __slots__ = (
        "_barriers",
        "_credit",
        "_sent",
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
        self._credit = credit
        self._streams = streams
        self._sent = sent

    def delays_block(self, number: int) -> bool:
        """A header block of this stream must wait."""
        return number in self.sending or (
            bool(self.queue) and (self._barriers > 0 or self._is_queued(number))
        )

    def delays_reset(self, number: int) -> bool:
        """The stream's HEADERS have not gone up yet."""
        return any(kind == frames.HEADERS and of == number for kind, of, _ in self.queue)

    def put(self, kind: int, number: int, raw: bytes) -> None:
        """Whole frames that wait their turn; `kind` is that of the first."""
        self.queue.append((kind, number, raw))
        self.queued_bytes += len(raw)
        self._barriers += kind != frames.DATA

    def acknowledge(self) -> None:
        """The client's SETTINGS ACK goes up now."""
        if change := self._credit.acknowledged():
            for stream in self._streams.values():
                stream.window += change

    def reset(self, number: int) -> None:
        """RST_STREAM of ours, behind the HEADERS it belongs to."""
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
        """The stream is over: what it still had to send is forgotten."""
        stream = self.sending.pop(number, None)
        if stream is not None:
            self._credit.excess -= len(stream.body)
            stream.body.clear()
        if self.queue and self._is_queued(number):
            waiting = list(self.queue)
            self.queue.clear()
            self.queued_bytes = self._barriers = 0
            for kind, of, raw in waiting:
                if kind == frames.DATA and of == number:
                    self._credit.excess -= len(raw) - frames.HEAD_BYTES
                else:
                    self.put(kind, of, raw)

    def pump(self) -> None:
        """Sends what windows allow, if no frame is under way.

        What was committed leaves here only, so windows are those of the moment it leaves.
        """
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

    def _is_queued(self, number: int) -> bool:
        return any(of == number for _, of, _ in self.queue)

    def _is_blocked(self) -> bool:
        kind, number, raw = self.queue[0]
        if kind == frames.DATA:
            return len(raw) - frames.HEAD_BYTES > self._credit.window
        return kind == frames.HEADERS and number in self.sending and self.sending[number].announced

    def _advance(self) -> None:
        while self.queue and not self._is_blocked():
            kind, number, raw = self.queue.popleft()
            self.queued_bytes -= len(raw)
            if kind == frames.DATA:
                self._credit.window -= len(raw) - frames.HEAD_BYTES
            else:
                self._barriers -= 1
            if kind == frames.SETTINGS:
                self.acknowledge()
            elif kind == frames.HEADERS and (stream := self._streams.get(number)):
                stream.announced = True
            self.lane.insert(raw)
        if self.queue:
            self._split_first()

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
