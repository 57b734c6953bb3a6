"""The declarations of metrics, which all processes use and docs/monitoring.md lists, and their text
in the Prometheus text format (version 0.0.4).

prometheus-client is not used: its import takes a process from 9 to 23 MB (docs/decisions.md)."""

from __future__ import annotations

import os
import resource
import threading
import time
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Final, TypeAlias

import msgspec

from agent import VERSION


class Series(msgspec.Struct, frozen=True):
    """One metric."""

    name: str
    kind: str
    """counter, gauge, histogram or summary, as the Prometheus text format names it."""
    text: str
    labels: tuple[str, ...] = ()
    """The names of its labels, in the order of their values."""


class Declarations:
    """The metrics of one process, in the order of their declaration. Their names begin with the
    prefix, such as `topolet_proxy`."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self._all: list[Series] = []

    @property
    def all(self) -> tuple[Series, ...]:
        return tuple(self._all)

    def counter(self, name: str, text: str, *labels: str) -> Series:
        """`name` without `_total`."""
        return self._add(f"{name}_total", "counter", text, labels)

    def gauge(self, name: str, text: str, *labels: str) -> Series:
        return self._add(name, "gauge", text, labels)

    def histogram(self, name: str, text: str, *labels: str) -> Series:
        return self._add(name, "histogram", text, labels)

    def summary(self, name: str, text: str, *labels: str) -> Series:
        return self._add(name, "summary", text, labels)

    def _add(self, name: str, kind: str, text: str, labels: tuple[str, ...]) -> Series:
        made = Series(f"{self.prefix}_{name}", kind, text, labels)
        self._all.append(made)
        return made


BUILD_INFO: Final = Series(
    "topolet_build_info",
    "gauge",
    "1, with the version of Topolet and its process.",
    ("version", "process"),
)


def build_labels(process: str) -> tuple[str, str]:
    """The values of the labels of BUILD_INFO for the process of a subcommand."""
    return VERSION, process


Labels: TypeAlias = tuple[str, ...]
"""The values of the labels of a series, in the order of their names."""


class Metric(msgspec.Struct, frozen=True):
    """The values of one metric, by labels; by () without labels."""

    series: Series
    values: Mapping[Labels, float]

    def lines(self) -> list[str]:
        return [
            _sample(self.series.name, self.series.labels, values, number)
            for values, number in sorted(self.values.items())
        ]


class Numbers:
    """The values of one metric, which any thread counts or sets. Without labels the metric has the
    value 0 at the start."""

    def __init__(self, series: Series) -> None:
        self._series = series
        self._lock = threading.Lock()
        self._values: dict[Labels, float] = {} if series.labels else {(): 0}

    def inc(self, *labels: str) -> None:
        """Adds 1 to the value with these values of the labels."""
        with self._lock:
            self._values[labels] = self._values.get(labels, 0) + 1

    def set(self, number: float, *labels: str) -> None:
        with self._lock:
            self._values[labels] = number

    def replace(self, values: Mapping[Labels, float]) -> None:
        """Drops all other values."""
        with self._lock:
            self._values = dict(values)

    @property
    def metric(self) -> Metric:
        with self._lock:
            return Metric(self._series, dict(self._values))


class Histogram:
    """Counts of observations up to each of the bounds, which ascend, and above them."""

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

    def lines(self, name: str, labels: Labels, values: Labels) -> list[str]:
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
    """One metric whose values are histograms, by the values of the labels."""

    series: Series
    values: Mapping[Labels, Histogram]

    def lines(self) -> list[str]:
        return [
            line
            for values, histogram in sorted(self.values.items())
            for line in histogram.lines(self.series.name, self.series.labels, values)
        ]


class Summary(msgspec.Struct, frozen=True):
    """The number and the sum of all observations of a metric without labels."""

    series: Series
    count: int
    sum: float

    def lines(self) -> list[str]:
        name = self.series.name
        return [
            _sample(f"{name}_sum", (), (), self.sum),
            _sample(f"{name}_count", (), (), self.count),
        ]


def single(series: Series, value: float) -> Metric:
    """A metric without labels."""
    return Metric(series, {(): value})


def render(metrics: Iterable[Metric | Histograms | Summary]) -> str:
    lines = []
    for metric in metrics:
        series = metric.series
        lines += [f"# HELP {series.name} {series.text}", f"# TYPE {series.name} {series.kind}"]
        lines += metric.lines()
    return "\n".join(lines) + "\n"


def _sample(name: str, labels: Sequence[str], values: Sequence[str], number: float) -> str:
    pairs = ",".join(
        f'{label}="{_escaped(value)}"' for label, value in sorted(zip(labels, values, strict=True))
    )
    return f"{name}{{{pairs}}} {number!r}" if pairs else f"{name} {number!r}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


_PROCESS_SERIES: Final = (
    Series("process_cpu_seconds_total", "counter", "User and system CPU time in seconds."),
    Series("process_start_time_seconds", "gauge", "Start of the process, in seconds since 1970."),
    Series("process_virtual_memory_bytes", "gauge", "Virtual memory size in bytes."),
    Series("process_resident_memory_bytes", "gauge", "Resident memory size in bytes."),
    Series("process_open_fds", "gauge", "Number of open file descriptors."),
    Series("process_max_fds", "gauge", "Maximum number of open file descriptors."),
)
_START_FIELD: Final = 19
"""The index of the start time in /proc/PID/stat behind the name, in ticks after the machine's boot
(proc_pid_stat(5)); virtual bytes and resident pages follow."""


def process_metrics() -> list[Metric]:
    """The metrics of this process that every Prometheus client exports."""
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    ticks, virtual_bytes, resident_pages = map(int, fields[_START_FIELD : _START_FIELD + 3])
    age_seconds = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    numbers = (
        time.process_time(),
        time.time() - age_seconds,
        virtual_bytes,
        resident_pages * os.sysconf("SC_PAGE_SIZE"),
        len(os.listdir("/proc/self/fd")),
        resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    )
    return list(map(single, _PROCESS_SERIES, numbers))
