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
_TOLD_TOGETHER: Final = 64
_MOST_CALLS: Final = 4_096
"""Of one connection; what is beyond is not timed."""


class Meter:
    """`in_flight`: calls under way by method, all that was ever called.

    Calls that have ended are observed many at a time: a caller waits for each of them.
    """

    def __init__(self, observe: Observe | None = None) -> None:
        self.in_flight: dict[bytes, int] = {}
        self._observe = observe or _ignore
        self._ended: list[tuple[bytes, float, float]] = []

    def ended(self, path: bytes, seconds: float, share_seconds: float) -> None:
        """To be told by and by."""
        self.in_flight[path] -= 1
        self._ended.append((path, seconds, share_seconds))
        if len(self._ended) >= _TOLD_TOGETHER:
            self.tell()

    def tell(self) -> None:
        """Every call that has ended is observed."""
        for call in self._ended:
            self._observe(*call)
        self._ended.clear()

    def name(self, path: bytes) -> bytes:
        """The path under which the method is counted."""
        if path in self.in_flight:
            return path
        if len(self.in_flight) >= _MOST_METHODS:
            path = OTHERS
        self.in_flight.setdefault(path, 0)
        return path


class Timing:
    """The calls of one connection; what is told of an unknown stream is ignored.

    When bytes come their time is put into `arrived`; what is in them into `opened` (stream and path
    of HEADERS) and `ended` (streams whose reply is complete, or that were reset); and when all that
    has left, `settle` is called.
    """

    __slots__ = ("_leaving", "_meter", "_open", "_staying", "arrived", "ended", "opened")

    def __init__(self, meter: Meter) -> None:
        self.arrived = 0.0
        self.opened: list[tuple[int, bytes]] = []
        self.ended: list[int] = []
        self._meter = meter
        self._open: dict[int, tuple[bytes, float, float]] = {}  # path, start, our share so far
        self._staying: dict[int, float] = {}
        self._leaving: list[tuple[int, float]] = []

    def whole(self, number: int) -> None:
        """The request stays here and is complete now."""
        self._staying[number] = self.arrived

    def left(self, number: int) -> None:
        """A request that had stayed goes."""
        since = self._staying.pop(number, None)
        if since is not None:
            self._leaving.append((number, since))

    def settle(self) -> None:
        """All that was told has left."""
        now = perf_counter()
        if self.opened:
            self._begin(now)
        if self._leaving:
            for number, since in self._leaving:
                if number in self._open:
                    path, started, share = self._open[number]
                    self._open[number] = path, started, share + now - since
            self._leaving.clear()
        if self.ended:
            self._end(now)

    def close(self) -> None:
        """The connection is over, or followed no longer: what is under way is never observed."""
        for path, _, _ in self._open.values():
            self._meter.in_flight[path] -= 1
        for remembered in (self._open, self._staying, self.opened, self.ended, self._leaving):
            remembered.clear()

    def _begin(self, now: float) -> None:
        under_way, counts, arrived = self._open, self._meter.in_flight, self.arrived
        for number, path in self.opened:
            if len(under_way) < _MOST_CALLS and number not in under_way:
                if path not in counts:
                    path = self._meter.name(path)
                counts[path] += 1
                share = 0.0 if number in self._staying else now - arrived
                under_way[number] = path, arrived, share
        self.opened.clear()

    def _end(self, now: float) -> None:
        for number in self.ended:
            since = self._staying.pop(number, self.arrived) if self._staying else self.arrived
            if number in self._open:
                path, started, share = self._open.pop(number)
                self._meter.ended(path, now - started, share + now - since)
        self.ended.clear()


def _ignore(path: bytes, seconds: float, share_seconds: float) -> None:
    pass
