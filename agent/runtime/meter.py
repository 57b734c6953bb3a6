"""How long calls take, by method: in all, and what of it is the relay's own share.

The share is what the caller would not wait for without us: from the arrival of its request here to
its leaving, and from the arrival of its reply's end to its leaving. What comes between, in either
direction, is not timed.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Final

Observe = Callable[[bytes, float, float], None]
"""Takes the method's path, the seconds of a call that has ended, and our share of them."""

OTHERS: Final = b"other"
_MOST_METHODS: Final = 128
"""Names come from the client: what is beyond is counted as one."""
_MOST_CALLS: Final = 4_096
"""Of one connection; what is beyond is not timed."""


class Meter:
    """`in_flight`: calls under way by method, all that was ever called."""

    def __init__(self, observe: Observe | None = None) -> None:
        self.in_flight: dict[bytes, int] = {}
        self.observe = observe or _ignore

    def name(self, path: bytes) -> bytes:
        """The path under which the method is counted."""
        if path in self.in_flight:
            return path
        if len(self.in_flight) >= _MOST_METHODS:
            path = OTHERS
        self.in_flight.setdefault(path, 0)
        return path


class _Timed:
    """`since`: when what is on its way now arrived here, 0 while nothing is."""

    __slots__ = ("path", "share", "since", "started")

    def __init__(self, path: bytes, now: float) -> None:
        self.path = path
        self.started = self.since = now
        self.share = 0.0


class Timing:
    """The calls of one connection. What is told of an unknown stream is ignored."""

    __slots__ = ("_arrived", "_ended", "_leaving", "_meter", "_open")

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._open: dict[int, _Timed] = {}
        self._leaving: list[_Timed] = []
        self._ended: list[_Timed] = []
        self._arrived = 0.0

    def arrived(self) -> None:
        """Bytes are here, and what is told next of opened, whole or ended calls is in them."""
        self._arrived = perf_counter()

    def opened(self, number: int, path: bytes) -> None:
        """HEADERS of a call, which leave at once."""
        if len(self._open) < _MOST_CALLS and number not in self._open:
            path = self._meter.name(path)
            self._meter.in_flight[path] += 1
            self._open[number] = timed = _Timed(path, self._arrived)
            self._leaving.append(timed)

    def whole(self, number: int) -> None:
        """The request stayed here and is complete now."""
        if timed := self._open.get(number):
            timed.since = self._arrived

    def left(self, number: int) -> None:
        """A request that had stayed goes."""
        if timed := self._open.get(number):
            self._leaving.append(timed)

    def ended(self, number: int) -> None:
        """The last of the reply, which leaves at once; or one of ours, in its place."""
        if timed := self._open.pop(number, None):
            timed.since = timed.since or self._arrived
            self._ended.append(timed)

    def settle(self) -> None:
        """All that was told has left."""
        if not (self._leaving or self._ended):
            return
        now = perf_counter()
        for timed in self._ended:
            timed.share += now - timed.since
            self._meter.in_flight[timed.path] -= 1
            self._meter.observe(timed.path, now - timed.started, timed.share)
        self._ended.clear()
        for timed in self._leaving:
            if timed.since:
                timed.share += now - timed.since
                timed.since = 0.0
        self._leaving.clear()

    def close(self) -> None:
        """The connection is over, or followed no longer: what is under way is never observed."""
        for timed in self._open.values():
            self._meter.in_flight[timed.path] -= 1
        self._open.clear()


def _ignore(path: bytes, seconds: float, share_seconds: float) -> None:
    pass
