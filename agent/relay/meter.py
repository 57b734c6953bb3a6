"""The duration of calls by method, and the relay's share of it. The share is the delay that the
relay adds: from the arrival of a request until it is sent, plus from the arrival of the reply's end
until that is sent."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Final

Observe = Callable[[bytes, float, float], None]
"""Takes the method's path, the seconds of a call that has ended, and the relay's share of them."""

OTHERS: Final = b"other"
_MAX_METHODS: Final = 128
"""Clients choose the names of methods. Methods beyond this number are counted together, as
OTHERS."""
_MAX_CALLS: Final = 4_096
"""Calls of one connection that are timed; further ones are not."""
_MAX_NOTES: Final = 64


class Meter:
    """The calls of all connections. `in_flight`: by method, also of methods without a call now, the
    calls in progress at the last `settle`."""

    def __init__(self, observe: Observe | None = None) -> None:
        self.in_flight: dict[bytes, int] = {}
        self.observe = observe or _ignore
        self.timings: set[Timing] = set()

    def settle(self) -> None:
        """Counts and observes the calls in the notes of all connections."""
        for timing in self.timings:
            timing.settle()

    def name(self, path: bytes) -> bytes:
        """The path under which the method is counted."""
        if path in self.in_flight:
            return path
        if len(self.in_flight) >= _MAX_METHODS:
            path = OTHERS
        self.in_flight.setdefault(path, 0)
        return path


class Timing:
    """The calls of one connection. Unknown streams are ignored. The relay sets `arrived` to the
    time when bytes arrived, adds what they contain to `noted` (stream and path for HEADERS, stream
    and None for the end of a stream), and calls `note` when they were sent. Notes are evaluated
    later, many at once (`settle`), so that no caller waits for it."""

    __slots__ = ("_complete_at", "_meter", "_notes", "_open", "arrived", "noted")

    def __init__(self, meter: Meter) -> None:
        self.arrived = 0.0
        self.noted: list[tuple[int, bytes | None]] = []
        self._meter = meter
        self._notes: list[tuple[float, float, list[tuple[int, bytes | None]]]] = []
        self._open: dict[
            int, tuple[bytes, float, float]
        ] = {}  # path, start, the relay's share so far
        self._complete_at: dict[int, float] = {}
        meter.timings.add(self)

    def note(self) -> None:
        """The bytes of the `noted` events were sent."""
        noted = self.noted.copy()
        self._notes.append((self.arrived, perf_counter(), noted))
        self.noted.clear()
        if len(self._notes) >= _MAX_NOTES or len(noted) > _MAX_NOTES:
            self.settle()

    def begin_hooked(self, number: int, path: bytes) -> None:
        """HEADERS of a hooked call have arrived; the relay collects its message."""
        self._begin(number, path, self.arrived, 0.0)

    def message_complete(self, number: int) -> None:
        """The message of a hooked call is complete."""
        self._complete_at[number] = self.arrived

    def message_sent(self, number: int) -> None:
        """The message of a hooked call was sent."""
        since = self._complete_at.pop(number, None)
        if since is not None and number in self._open:
            path, started, share = self._open[number]
            self._open[number] = path, started, share + perf_counter() - since

    def settle(self) -> None:
        """Counts and observes the calls in the notes."""
        for arrived, now, noted in self._notes:
            for number, path in noted:
                if path is None:
                    self._end(number, arrived, now)
                else:
                    self._begin(number, path, arrived, now - arrived)
        self._notes.clear()

    def close(self) -> None:
        """The connection has ended, or is not tracked any more: calls in progress are never
        observed."""
        self.settle()
        for path, _, _ in self._open.values():
            self._meter.in_flight[path] -= 1
        self._open.clear()
        self._complete_at.clear()
        self._meter.timings.discard(self)

    def _begin(self, number: int, path: bytes, arrived: float, share: float) -> None:
        if len(self._open) < _MAX_CALLS and number not in self._open:
            path = self._meter.name(path)
            self._meter.in_flight[path] += 1
            self._open[number] = path, arrived, share

    def _end(self, number: int, arrived: float, now: float) -> None:
        since = self._complete_at.pop(number, arrived)
        if number in self._open:
            path, started, share = self._open.pop(number)
            self._meter.in_flight[path] -= 1
            self._meter.observe(path, now - started, share + now - since)


def _ignore(path: bytes, seconds: float, share_seconds: float) -> None:
    pass
