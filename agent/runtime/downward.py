"""Upstream to client: the walk over the frames of one connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from agent.rpc import frames
from agent.rpc.frames import DATA, HEADERS, RST_STREAM, SETTINGS, WINDOW_UPDATE, read_stream
from agent.rpc.headers import PathReader
from agent.runtime.credit import Credit
from agent.runtime.held import HeldStream
from agent.runtime.hooked import HookedCalls
from agent.runtime.lane import Lane

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
        self._lane = lane
        self._credit = credit
        self._paths = paths
        self._lose_track = lose_track
        self._kept = b""  # an unfinished frame that has not passed
        self._tapped: HeldStream | None = None  # whose DATA frame is passing
        self._tapped_ends = False

    def feed(self, data: memoryview) -> None:
        """Takes what the upstream sent; `lose_track` is called for what can't be followed."""
        if self._kept:
            data, self._kept = memoryview(self._kept + data), b""  # small: SETTINGS at most
        lane, credit, streams = self._lane, self._credit, self._calls.streams
        size = len(data)
        at = size if lane.opaque else min(lane.rest, size)
        start = 0
        if lane.rest:
            lane.rest -= at
            if self._tapped is not None:
                self._tap_more(self._tapped, data[:at])
            if lane.is_waited_for and lane.at_boundary:
                lane.chunks.append(data[:at])
                start = at
                lane.reached_boundary()
        try:
            while size - at >= _HEAD:
                kind = data[at + 3]
                length = data[at] << 16 | data[at + 1] << 8 | data[at + 2]
                end = at + _HEAD + length
                if kind == DATA:
                    if streams:
                        self._tap(data[at:end], length)
                elif kind == WINDOW_UPDATE:
                    if length != 4:
                        raise frames.FrameError(f"WINDOW_UPDATE of {length} bytes")
                    if end > size:
                        break
                    given = frames.read_uint(data[at + 9 : end], kind)
                    number = read_stream(data, at)
                    passed = given
                    if not number:
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
                    flags = data[at + 4]
                    lane.in_block = not flags & frames.END_HEADERS
                    if streams and kind == HEADERS and flags & frames.END_STREAM:
                        self._end(read_stream(data, at), reset=False)
                elif kind == RST_STREAM:
                    if streams:
                        self._end(read_stream(data, at), reset=True)
                elif kind == SETTINGS and not data[at + 4] & frames.ACK:
                    if length > _MAX_SETTINGS_BYTES:
                        raise frames.FrameError(f"SETTINGS of {length} bytes")
                    if end > size:
                        break
                    self._offer(data[at + 9 : end])
                if end > size:
                    lane.rest = end - size
                    at = size
                    break
                at = end
        except frames.FrameError as error:
            self._lose_track(error)
            at = size
        if start < at:
            lane.chunks.append(data[start:at] if start or at < size else data)
        if at < size:
            self._kept = bytes(data[at:])

    def _offer(self, payload: memoryview) -> None:
        """SETTINGS of the upstream."""
        initial = None
        for key, value in frames.read_settings(payload):
            if key == frames.INITIAL_WINDOW_SIZE:
                initial = value
            elif key == frames.HEADER_TABLE_SIZE:
                self._paths.offer(value)
        self._credit.offers.append(initial)

    def _tap(self, frame: memoryview, length: int) -> None:
        """A DATA frame of the upstream, as much of it as is there."""
        stream = self._calls.streams.get(read_stream(frame))
        if stream is None:
            return
        if stream.tap is not None:
            stream.tap.begin(frame[4], length)
        self._tapped = stream
        self._tapped_ends = bool(frame[4] & frames.END_STREAM)
        self._tap_more(stream, frame[_HEAD:], last=len(frame) == _HEAD + length)

    def _tap_more(self, stream: HeldStream, payload: memoryview, last: bool | None = None) -> None:
        if stream.tap is not None:
            stream.tap.piece(payload)
        if not self._lane.rest if last is None else last:
            self._tapped = None
            if self._tapped_ends:
                self._end(stream.id, reset=False)

    def _end(self, number: int, reset: bool) -> None:
        if stream := self._calls.streams.get(number):
            self._calls.ended_by_upstream(stream, reset)
