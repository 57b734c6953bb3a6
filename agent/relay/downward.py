"""Upstream to client: the walk over the frames of one connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from agent.relay.calls import HookedCalls
from agent.relay.flow_control import Credit, Lane
from agent.relay.streams import HeldStream
from agent.rpc import frames
from agent.rpc.frames import (
    DATA,
    HEADERS,
    RST_STREAM,
    SETTINGS,
    STREAM_MASK,
    WINDOW_UPDATE,
    unpack_head,
)
from agent.rpc.headers import PathReader

_HEAD: Final = frames.HEAD_BYTES
_BLOCKS: Final = (HEADERS, frames.CONTINUATION, frames.PUSH_PROMISE)
_MAX_SETTINGS_BYTES: Final = 6 * 1_024


class Downward:
    """Keeps the account of the upstream's credit and settings, and watches tapped replies."""

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
        self._torn_bytes = 0  # of it that have left all the same
        self._tapped: HeldStream | None = None  # whose DATA frame is passing
        self._tapped_ends = False

    def feed(self, data: memoryview, has_left: bool) -> None:
        """Takes bytes of the upstream. With `has_left` they were sent to the client unchanged, and
        are only tracked; otherwise the lane gets the bytes to send. `lose_track` is called for
        bytes that can't be tracked."""
        lane, credit, streams = self._lane, self._credit, self._streams
        start = at = 0
        if self._kept:
            start, self._torn_bytes, lane.torn = self._torn_bytes, 0, False
            data, self._kept = memoryview(self._kept + data), b""  # small: SETTINGS at most
        size = len(data)
        if has_left:
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
                if not (kind or flags or streams):  # DATA in the midst of a reply
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
                    given = frames.read_uint(data[at + 9 : end], kind)
                    passed = given
                    if at < start:  # it has left, or a part of it
                        self._gave(number, given)
                    elif not number:
                        if credit.excess > 0:
                            passed = credit.granted(given)
                        else:
                            credit.window += given
                    elif number in streams:
                        passed = self._calls.granted(streams[number], given)
                    if passed != given:
                        if start < at:
                            lane.chunks.append(data[start:at])
                        if passed:
                            lane.chunks.append(frames.window_update(number, passed))
                        start = end
                elif kind in _BLOCKS:
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
        """Some bytes of an unfinished frame have not left."""
        return len(self._kept) > self._torn_bytes

    def _gave(self, number: int, credit: int) -> None:
        """A WINDOW_UPDATE that the client gets."""
        if not number:
            self._credit.window += credit
        elif number in self._streams:
            self._streams[number].window += credit

    def _offer(self, payload: memoryview) -> None:
        """SETTINGS of the upstream."""
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
        """A DATA frame of the upstream, possibly its beginning only."""
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
