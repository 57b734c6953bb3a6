"""The walks over the frames of one connection: `Upward` from the client to the upstream, `Downward`
back.

Each gets the bytes of one receive, reads the heads of the frames in them, and passes them on as
slices of the buffer. It removes the frames of hooked calls, and records credit and settings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from agent.relay.calls import HookedCalls
from agent.relay.flow_control import Credit, Lane
from agent.relay.streams import HeldStream
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
                        self._calls.begin(number, path or b"", announced=not waits, ended=ended)
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
