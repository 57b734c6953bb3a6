"""Metrics of the proxy in the Prometheus text format.

Not prometheus-client: importing it takes a process from 9 to 23 MB (docs/decisions.md).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate

import msgspec


class Metric(msgspec.Struct, frozen=True):
    """`values`: by the values of `labels`, in their order; by () without labels."""

    name: str
    kind: str
    text: str
    values: Mapping[tuple[str, ...], float]
    labels: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        return [
            _sample(self.name, self.labels, values, number)
            for values, number in sorted(self.values.items())
        ]


class Histogram:
    """Counts of observations up to each of `bounds`, which rise, and beyond them."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    @property
    def count(self) -> int:
        return sum(self._counts)

    def lines(self, name: str, labels: tuple[str, ...], values: tuple[str, ...]) -> list[str]:
        """The samples of one series."""
        bounds = (*(f"{bound:g}" for bound in self._bounds), "+Inf")
        buckets = [
            _sample(f"{name}_bucket", (*labels, "le"), (*values, bound), number)
            for bound, number in zip(bounds, accumulate(self._counts), strict=True)
        ]
        return [
            *buckets,
            _sample(f"{name}_sum", labels, values, self._sum),
            _sample(f"{name}_count", labels, values, self.count),
        ]


class Histograms(msgspec.Struct, frozen=True):
    """One metric whose series are histograms, by the values of `labels`."""

    name: str
    text: str
    series: Mapping[tuple[str, ...], Histogram]
    labels: tuple[str, ...]
    kind: str = "histogram"

    def lines(self) -> list[str]:
        return [
            line
            for values, histogram in sorted(self.series.items())
            for line in histogram.lines(self.name, self.labels, values)
        ]


def render(metrics: Sequence[Metric | Histograms]) -> str:
    """The page that a scrape gets."""
    lines = []
    for metric in metrics:
        lines += [f"# HELP {metric.name} {metric.text}", f"# TYPE {metric.name} {metric.kind}"]
        lines += metric.lines()
    return "\n".join(lines) + "\n"


def _sample(name: str, labels: Sequence[str], values: Sequence[str], number: float) -> str:
    pairs = ",".join(
        f'{label}="{_escaped(value)}"' for label, value in zip(labels, values, strict=True)
    )
    return f"{name}{{{pairs}}} {number!r}" if pairs else f"{name} {number!r}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
