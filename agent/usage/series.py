"""A series of samples in a ring, and its aggregation by the rule of koordlet (Koordinator:
pkg/koordlet/metriccache, aggregateFunctions): unweighted, over all samples of a window."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from typing import Final

import msgspec


class Aggregate(msgspec.Struct, frozen=True):
    """The aggregation of at least one sample."""

    average: float
    p50: float
    p90: float
    p95: float
    p99: float
    last: float
    """The value of the newest sample."""
    count: int
    span_seconds: float
    """From the oldest sample to the newest one."""


def aggregate(times: Sequence[float], values: Sequence[float]) -> Aggregate | None:
    """The aggregation of samples in any order; None without samples. `times` are in seconds. Of
    several newest samples the first one counts."""
    if not values:
        return None
    ascending, count = sorted(values), len(values)
    newest = max(times)
    p50, p90, p95, p99 = (ascending[_index(count, share)] for share in _SHARES)
    return Aggregate(
        sum(values) / count,
        p50,
        p90,
        p95,
        p99,
        values[times.index(newest)],
        count,
        newest - min(times),
    )


_SHARES: Final = (0.5, 0.9, 0.95, 0.99)


def _index(count: int, share: float) -> int:
    """The index of a percentile in the ascending samples. koordlet multiplies in single precision
    and cuts the fraction off: the p90 of 10 samples is the ninth."""
    return max(int(_single(_single(count) * _single(share))) - 1, 0)


def _single(number: float) -> float:
    rounded: float = _FLOAT.unpack(_FLOAT.pack(number))[0]
    return rounded


_FLOAT: Final = struct.Struct("f")


class SampleRing:
    """The last samples of one quantity, in the order of their times."""

    __slots__ = ("_limit", "_next", "_times", "_values")

    def __init__(self, limit: int) -> None:
        """`limit`: how many samples it keeps; a sample takes 16 bytes."""
        self._limit = limit
        self._next = 0
        self._times = array("d")
        self._values = array("d")

    @property
    def last(self) -> float | None:
        """The value of the newest sample; None without samples."""
        return self._values[self._next - 1] if self._values else None

    def add(self, at: float, value: float) -> None:
        """Adds a sample, in the place of the oldest one if the ring is full. `at`: seconds."""
        if len(self._times) < self._limit:
            self._times.append(at)
            self._values.append(value)
        else:
            self._times[self._next], self._values[self._next] = at, value
        self._next = (self._next + 1) % self._limit

    def since(self, at: float) -> Aggregate | None:
        """The aggregation of the samples after that time; None without any."""
        chosen = [place for place, time in enumerate(self._times) if time > at]
        return aggregate(
            [self._times[place] for place in chosen], [self._values[place] for place in chosen]
        )
