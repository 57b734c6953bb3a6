"""The relay of one client connection, with its walks over the frames: `Upward` from the client to
the upstream, `Downward` back. Frames pass unchanged, and hooked requests go to the gate.

No I/O: the owner passes received bytes to `from_client` and `from_upstream`, and two sinks take the
bytes to send. One walk over the frames serves two cases:

- While no stream is taken over and no credit is owed, all received bytes leave as one slice of the
receive buffer; the walk reads frame heads and does not wait for DATA.

- HEADERS of a hooked method pass at once (the connection's compression state does not change); its
  DATA is held until the gate has decided. Then the slice is cut where the relay inserts frames or
  removes frames of the client. Other streams keep passing.

See `calls` for hooked calls, `flow_control` for windows and order.

When bytes are not HTTP/2, or header blocks can't be decoded or exceed the limit: a connection
without held bytes becomes opaque (every further byte passes verbatim, unhooked, and the endpoints
decide, as without a relay), otherwise RelayError is raised and the connection must be closed. In
addition to its part of the budget, a connection keeps in memory one unfinished frame that is needed
as a whole (header blocks up to their limit; held DATA up to the upstream's frame size, 16 KiB in
practice), and the bytes that wait for the upstream's credit, at most those that were held before.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Final

from agent.relay.calls import AskAgain, HookedCalls
from agent.relay.flow_control import Credit, Lane, Sink
from agent.relay.gate import Gate, OnHookError, RelayStats
from agent.relay.meter import Meter, Timing
from agent.relay.streams import HeldStream, MemoryBudget
from agent.rpc import frames
from agent.rpc.frames import (
    CONTINUATION,
    DATA,
    HEADERS,
    RST_STREAM,
    SETTINGS,
    STREAM_MASK,
    WINDOW_UPDATE,
    unpack_head,
)
from agent.rpc.headers import HeaderError, PathReader
from agent.rpc.held_calls import HeldCalls

_HEAD: Final = frames.HEAD_BYTES
_MAX_BLOCK_FRAMES: Final = 64
_UNUSUAL: Final = frames.END_HEADERS | frames.PADDED | frames.HAS_PRIORITY
_UP_BLOCKS: Final = (HEADERS, CONTINUATION)
_DOWN_BLOCKS: Final = (HEADERS, CONTINUATION, frames.PUSH_PROMISE)
_MAX_SETTINGS_BYTES: Final = 6 * 1_024


class Upward:
    """From the client to the upstream: puts frames that pass into the lane, and gives the others to
    the hooked calls and their uplink."""

    def __init__(
        self,
        calls: HookedCalls,
        lane: Lane,
        credit: Credit,
        methods: frozenset[bytes],
        block_bytes: int,
        lose_track: Callable[[Exception], None],
    ) -> None:
        self.paths = PathReader()
        self._read_path = self.paths.read
        self._calls = calls
        self._streams = calls.streams
        self._uplink = calls.uplink
        self._queue = calls.uplink.queue
        self._lane = lane
        self._credit = credit
        self._timing = calls.timing
        self._noted = calls.timing.noted
        self._methods = methods
        self._block_bytes = block_bytes
        self._lose_track = lose_track
        self._preface = True  # the client has not sent it yet
        self._kept = bytearray()  # an unfinished frame that has not passed
        self._needed = 0

    def feed(self, data: memoryview) -> bool:
        """Takes bytes of the client. True when all of them may pass unchanged: then the lane has
        none of them, otherwise it has the bytes to send. `lose_track` is called once for bytes that
        can't be tracked."""
        lane, credit, streams, queue = self._lane, self._credit, self._streams, self._queue
        whole = True
        if self._kept:
            whole = False
            self._kept += data
            if len(self._kept) < self._needed and not lane.opaque:
                return False
            data, self._kept = memoryview(self._kept), bytearray()
        size = end = len(data)
        start = at = 0
        if lane.opaque:
            at = size
        elif lane.rest:
            at = min(lane.rest, size)
            lane.rest -= at
            if not lane.rest and (lane.waiting or queue or streams):
                lane.chunks.append(data[:at])
                start = at
                lane.reached_boundary()
                self._uplink.pump()
        try:
            if self._preface and not lane.opaque:
                at = self._read_preface(data)
                if not at:
                    self._keep(data, len(frames.PREFACE))
                    return False
            while size - at >= _HEAD:
                word, flags, number = unpack_head(data, at)
                kind = word & 0xFF
                length = word >> 8
                number &= STREAM_MASK
                end = at + _HEAD + length
                if kind == DATA:
                    if (streams or queue or credit.excess > 0) and self._is_taken(number, length):
                        if end > size:
                            if length > credit.frame_bytes:
                                raise frames.FrameError(f"DATA of {length} bytes")
                            break
                        if start < at:
                            lane.chunks.append(data[start:at])
                        self._take(number, data[at:end])
                        start = at = end
                        continue
                    credit.window -= length
                elif kind in _UP_BLOCKS:
                    block: bytes | None
                    if flags & _UNUSUAL == frames.END_HEADERS and kind == HEADERS and end <= size:
                        block = data[at + _HEAD : end].tobytes()
                    else:
                        end, block = self._block(data, at, size)
                        if block is None:
                            break
                    path = self._read_path(block)
                    waits = (streams or queue) and self._handle_block(number, data[at:end])
                    if waits:
                        if start < at:
                            lane.chunks.append(data[start:at])
                        start = end
                    if path in self._methods and number not in streams:
                        if start < end:
                            lane.chunks.append(data[start:end])
                        start = end
                        ended = bool(flags & frames.END_STREAM)
                        self._timing.begin_hooked(number, path or b"")
                        self._calls.begin(number, path or b"", headers_sent=not waits, ended=ended)
                    elif path is not None:
                        self._noted.append((number, path))
                elif kind == RST_STREAM or (kind == SETTINGS and flags & frames.ACK):
                    if length > 4:
                        raise frames.FrameError(f"frame of kind {kind}: {length} bytes")
                    if end > size:
                        break
                    if self._handle_control(kind, number, data[at:end]):
                        if start < at:
                            lane.chunks.append(data[start:at])
                        start = end
                if end > size:
                    lane.rest = end - size
                    at = size
                    break
                at = end
        except (frames.FrameError, HeaderError) as error:
            self._lose_track(error)
            at = size
        if whole and at == size and not (start or lane.chunks):
            return True
        if start < at:
            lane.chunks.append(data[start:at] if start or at < size else data)
        if at < size:
            self._keep(data[at:], end - at if size - at >= _HEAD else _HEAD)
        return False

    def _keep(self, rest: memoryview, needed: int) -> None:
        """Keeps the rest, and reads it again only when `needed` bytes have arrived."""
        self._kept = bytearray(rest)
        self._needed = needed

    def _read_preface(self, data: memoryview) -> int:
        """The offset of the first frame, after the client's preface; 0 while the preface is
        incomplete."""
        part = bytes(data[: len(frames.PREFACE)])
        if not frames.PREFACE.startswith(part):
            raise frames.FrameError("client does not speak HTTP/2")
        if len(part) < len(frames.PREFACE):
            return 0
        self._preface = False
        return len(part)

    def _is_taken(self, number: int, length: int) -> bool:
        """Whether a DATA frame of the client is held."""
        if self._queue or number in self._streams:
            return True
        # A frame beyond the client's own window passes: the upstream refuses it.
        window = self._credit.window
        return window < length <= window + self._credit.excess

    def _take(self, number: int, frame: memoryview) -> None:
        stream = self._streams.get(number)
        if stream is None:
            self._uplink.put(DATA, number, bytes(frame))
        else:
            self._calls.data(stream, frame[4], frame[_HEAD:])

    def _block(self, data: memoryview, at: int, size: int) -> tuple[int, bytes | None]:
        """(end, header block) of HEADERS and its CONTINUATIONs; the block is None while it is
        incomplete."""
        length, kind, flags, number = frames.read_head(data, at)
        if kind != HEADERS:
            raise frames.FrameError("CONTINUATION without HEADERS")
        begin, block = at, b""
        for _ in range(_MAX_BLOCK_FRAMES):
            end = at + _HEAD + length
            if end - begin > self._block_bytes:
                raise frames.FrameError(f"header block of more than {end - begin} bytes")
            if end > size:
                return end, None
            block += frames.content(kind, flags, data[at + _HEAD : end])
            if flags & frames.END_HEADERS:
                return end, block
            if size - end < _HEAD:
                return end + _HEAD, None
            at = end
            length, kind, flags, following = frames.read_head(data, at)
            if kind != CONTINUATION or following != number:
                raise frames.FrameError("a header block is interrupted")
        raise frames.FrameError(f"header block of more than {_MAX_BLOCK_FRAMES} frames")

    def _handle_block(self, number: int, block: memoryview) -> bool:
        """Handles a header block of the client. Returns whether it was queued."""
        calls, uplink = self._calls, self._uplink
        if number in calls.streams:
            calls.trailers(calls.streams[number])
        waits = bool((uplink.queue or uplink.sending) and uplink.delays_block(number))
        if waits:
            uplink.put(HEADERS, number, bytes(block))
        return waits

    def _handle_control(self, kind: int, number: int, frame: memoryview) -> bool:
        """Handles RST_STREAM or a SETTINGS ACK of the client. Returns whether it was queued."""
        calls, uplink = self._calls, self._uplink
        if kind == RST_STREAM:
            self._noted.append((number, None))
            if number in calls.streams:
                calls.reset_by_client(calls.streams[number])
            elif uplink.queue:
                uplink.drop(number)
            waits = uplink.delays_reset(number)
        else:
            waits = bool(uplink.queue)
            if not waits:
                uplink.acknowledge()
        if waits:
            uplink.put(kind, number, bytes(frame))
        return waits


class Downward:
    """From the upstream to the client: records the upstream's credit and settings, and copies the
    replies to hooked calls into their taps."""

    def __init__(
        self,
        calls: HookedCalls,
        lane: Lane,
        credit: Credit,
        paths: PathReader,
        lose_track: Callable[[Exception], None],
    ) -> None:
        self._calls = calls
        self._streams = calls.streams
        self._lane = lane
        self._credit = credit
        self._noted = calls.timing.noted
        self._paths = paths
        self._lose_track = lose_track
        self.begun = False
        """The upstream's SETTINGS, which are its first frame, have passed."""
        self._kept = b""  # an unfinished frame that has not passed
        self._torn_bytes = 0  # bytes of it that were sent already
        self._tapped: HeldStream | None = None  # the stream whose DATA frame is passing
        self._tapped_ends = False

    def feed(self, data: memoryview, was_sent: bool) -> None:
        """Takes bytes of the upstream. With `was_sent` they were sent to the client unchanged, and
        are only tracked; otherwise the lane gets the bytes to send. `lose_track` is called for
        bytes that can't be tracked."""
        lane, credit, streams = self._lane, self._credit, self._streams
        start = at = 0
        if self._kept:
            start, self._torn_bytes, lane.torn = self._torn_bytes, 0, False
            data, self._kept = memoryview(self._kept + data), b""  # small: SETTINGS at most
        size = len(data)
        if was_sent:
            start = size
        if lane.opaque:
            at = size
        elif lane.rest:
            at = min(lane.rest, size)
            lane.rest -= at
            if self._tapped is not None:
                self._tap_more(self._tapped, data[:at])
            if lane.waiting and lane.at_boundary:
                lane.chunks.append(data[:at])
                start = at
                lane.reached_boundary()
        try:
            while size - at >= _HEAD:
                word, flags, number = unpack_head(data, at)
                kind, length = word & 0xFF, word >> 8
                end = at + _HEAD + length
                if not (kind or flags or streams):  # DATA of a reply
                    at = end
                    continue
                number &= STREAM_MASK
                if kind == DATA:
                    if flags & frames.END_STREAM:
                        self._noted.append((number, None))
                    if number in streams:
                        self._tap(streams[number], flags, length, data[at + _HEAD : end])
                elif kind == WINDOW_UPDATE:
                    if length != 4:
                        raise frames.FrameError(f"WINDOW_UPDATE of {length} bytes")
                    if end > size:
                        break
                    credit_bytes = frames.read_uint(data[at + 9 : end], kind)
                    passed = credit_bytes
                    if at < start:  # it was sent, or a part of it
                        self._record_credit(number, credit_bytes)
                    elif not number:
                        if credit.excess > 0:
                            passed = credit.credited(credit_bytes)
                        else:
                            credit.window += credit_bytes
                    elif number in streams:
                        passed = self._calls.credited(streams[number], credit_bytes)
                    if passed != credit_bytes:
                        if start < at:
                            lane.chunks.append(data[start:at])
                        if passed:
                            lane.chunks.append(frames.window_update(number, passed))
                        start = end
                elif kind in _DOWN_BLOCKS:
                    lane.in_block = not flags & frames.END_HEADERS
                    if kind == HEADERS and flags & frames.END_STREAM:
                        self._noted.append((number, None))
                        if number in streams:
                            self._calls.ended_by_upstream(streams[number], reset=False)
                elif kind == RST_STREAM:
                    self._noted.append((number, None))
                    if number in streams:
                        self._calls.ended_by_upstream(streams[number], reset=True)
                elif kind == SETTINGS and not flags & frames.ACK:
                    if length > _MAX_SETTINGS_BYTES:
                        raise frames.FrameError(f"SETTINGS of {length} bytes")
                    if end > size:
                        break
                    self._offer(data[at + 9 : end])
                at = end
        except frames.FrameError as error:
            self._lose_track(error)
            at = size
        if at > size:
            lane.rest = at - size
            at = size
        if start < at:
            lane.chunks.append(data[start:at] if start or at < size else data)
        if at < size:
            self._kept = bytes(data[at:])
            if start > at:
                self._torn_bytes = start - at
                lane.torn = True

    @property
    def holds_back(self) -> bool:
        """Some bytes of an unfinished frame were not sent."""
        return len(self._kept) > self._torn_bytes

    def _record_credit(self, number: int, credit: int) -> None:
        """Records a WINDOW_UPDATE that goes to the client."""
        if not number:
            self._credit.window += credit
        elif number in self._streams:
            self._streams[number].window += credit

    def _offer(self, payload: memoryview) -> None:
        """Records SETTINGS of the upstream."""
        self.begun = True
        initial = None
        for key, value in frames.read_settings(payload):
            if key == frames.INITIAL_WINDOW_SIZE:
                initial = value
            elif key == frames.HEADER_TABLE_SIZE:
                self._paths.offer(value)
            elif key == frames.MAX_FRAME_SIZE:
                self._credit.frame_bytes = max(self._credit.frame_bytes, value)
        self._credit.offers.append(initial)

    def _tap(self, stream: HeldStream, flags: int, length: int, payload: memoryview) -> None:
        """A DATA frame of the upstream, possibly only its beginning."""
        if stream.tap is not None:
            stream.tap.begin(flags, length)
        self._tapped = stream
        self._tapped_ends = bool(flags & frames.END_STREAM)
        self._tap_more(stream, payload, last=len(payload) == length)

    def _tap_more(self, stream: HeldStream, payload: memoryview, last: bool | None = None) -> None:
        if stream.tap is not None:
            stream.tap.piece(payload)
        if not self._lane.rest if last is None else last:
            self._tapped = None
            if self._tapped_ends and stream.id in self._streams:
                self._calls.ended_by_upstream(self._streams[stream.id], reset=False)


class RelayError(Exception):
    """The connection can't be tracked and can't become opaque: both ends must be closed."""


class Relay:
    """The relay of one connection. The sinks must not keep the buffers that they get. `held` has
    the calls of all connections for which the gate answered Wait; `ask_again` asks for those of
    this one, by default the method of this name. `close` is called once, at the end of the
    connection."""

    def __init__(
        self,
        gate: Gate,
        to_client: Sink,
        to_upstream: Sink,
        stats: RelayStats,
        on_hook_error: OnHookError,
        budget: MemoryBudget,
        held: HeldCalls[HeldStream],
        timing: Timing | None = None,
        ask_again: AskAgain | None = None,
    ) -> None:
        self._timing = timing = timing or Timing(Meter())
        self._to_client, self._to_upstream = to_client, to_upstream
        self._is_quiet_up = self._is_quiet_down = True
        self._stats = stats
        self._up, self._down = Lane(to_upstream), Lane(to_client)
        self._credit = Credit()
        self._calls = HookedCalls(
            gate,
            stats,
            budget,
            self._credit,
            self._up,
            self._down,
            on_hook_error,
            timing,
            held,
            ask_again or self.ask_again,
        )
        self._uplink = self._calls.uplink
        self._streams = self._calls.streams
        self._upward = Upward(
            self._calls,
            self._up,
            self._credit,
            gate.methods,
            budget.limits.block_bytes,
            self._lose_track,
        )
        self._downward = Downward(
            self._calls, self._down, self._credit, self._upward.paths, self._lose_track
        )

    @property
    def queued_bytes(self) -> int:
        """Bytes of the client that wait for the upstream's credit. The owner reads no more from the
        client while they are many."""
        return self._uplink.queued_bytes

    def from_client(self, data: memoryview) -> bool:
        """Takes received bytes. Returns whether hooked calls are in progress, or frames of the
        relay wait. Raises RelayError."""
        timing = self._timing
        timing.arrived = perf_counter()
        if self._upward.feed(data):
            if self._is_quiet_up:
                self._to_upstream(data)
                if timing.noted:
                    timing.note()
                return False
            self._up.chunks.append(data)
        return self._flush()

    def from_upstream(self, data: memoryview) -> bool:
        """Takes received bytes. Returns whether hooked calls are in progress, or frames of the
        relay wait. Raises RelayError."""
        timing = self._timing
        timing.arrived = perf_counter()
        if self._is_quiet_down:
            self._to_client(data)
            self._downward.feed(data, was_sent=True)
            if timing.noted:
                timing.note()
            return False
        self._downward.feed(data, was_sent=False)
        return self._flush()

    def ask_again(self, ask: Callable[[], None]) -> None:
        """Asks again for the answer of a held call, and sends what the answer adds. Raises
        RelayError."""
        ask()
        self._flush()

    def send_goaway(self) -> bool:
        """Asks the client to open no more streams on this connection: calls in progress continue,
        and the client closes the connection after them. Returns False if that is impossible: the
        upstream has not sent its SETTINGS yet, or frames are not tracked."""
        if not self._downward.begun or self._down.opaque:
            return False
        self._down.insert(frames.goaway(frames.STREAM_MASK, frames.NO_ERROR))
        self._flush()
        return True

    def close(self) -> None:
        """Reports the end of every call in progress to the gate."""
        self._timing.close()
        self._calls.close()

    def _lose_track(self, error: Exception) -> None:
        self._stats.malformed += 1
        waits = self._uplink.queue or self._up.waiting or self._down.waiting
        if waits or self._calls.holds_bytes() or self._credit.excess:
            raise RelayError(str(error)) from None
        self._up.opaque = self._down.opaque = True
        self.close()

    def _flush(self) -> bool:
        busy = bool(self._streams or self._uplink.queue or self._credit.excess)
        if busy:
            self._uplink.pump()
            if self._credit.excess < 0:
                self._down.insert(frames.window_update(0, self._credit.settle()))
        if self._up.chunks:
            self._up.flush()
        if self._down.chunks:
            self._down.flush()
        if self._timing.noted:
            self._timing.note()
        self._is_quiet_up = not (self._streams or self._uplink.queue or self._up.waiting)
        self._is_quiet_down = self._is_quiet_up and not (
            self._credit.excess or self._down.waiting or self._downward.holds_back
        )
        return busy
