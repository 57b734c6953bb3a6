"""Metrics of the frontends (proxy, NRI plugin, Koordinator's hook server) in the Prometheus text
format: the format, the metrics that every frontend has under its own prefix, and their page.

They do not use prometheus-client, whose import takes a process from 9 to 23 MB (docs/decisions.md).
"""

from __future__ import annotations

import logging
import os
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Final

import msgspec

from agent.hooks.agent_client import Notifier, SnapshotFile
from agent.hooks.requests import Outcomes
from agent.host.loop import Loop
from agent.http.listener import PageListener
from agent.http.peers import NodeAddresses
from agent.http.requests import Reply
from agent.http.routes import METRICS, Route, readiness, text_reply
from agent.telemetry.series import BUILD_INFO, Declarations, Series, build_labels

log = logging.getLogger(__name__)


class Metric(msgspec.Struct, frozen=True):
    """`values`: by the values of the labels, in their order; by () without labels."""

    series: Series
    values: Mapping[tuple[str, ...], float]

    def lines(self) -> list[str]:
        return [
            _sample(self.series.name, self.series.labels, values, number)
            for values, number in sorted(self.values.items())
        ]


class Histogram:
    """Counts of observations up to each of `bounds`, in ascending order, and above them."""

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
    """One metric whose values are histograms, by the values of the labels."""

    series: Series
    values: Mapping[tuple[str, ...], Histogram]

    def lines(self) -> list[str]:
        return [
            line
            for values, histogram in sorted(self.values.items())
            for line in histogram.lines(self.series.name, self.series.labels, values)
        ]


def single(series: Series, value: float) -> Metric:
    """A metric without labels."""
    return Metric(series, {(): value})


def render(metrics: Sequence[Metric | Histograms]) -> str:
    """The text of a scrape."""
    lines = []
    for metric in metrics:
        series = metric.series
        lines += [f"# HELP {series.name} {series.text}", f"# TYPE {series.name} {series.kind}"]
        lines += metric.lines()
    return "\n".join(lines) + "\n"


def _sample(name: str, labels: Sequence[str], values: Sequence[str], number: float) -> str:
    pairs = ",".join(
        f'{label}="{_escaped(value)}"' for label, value in zip(labels, values, strict=True)
    )
    return f"{name}{{{pairs}}} {number!r}" if pairs else f"{name} {number!r}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class FrontendMetrics:
    """Declares and makes the metrics that each frontend has. `process`: the subcommand."""

    def __init__(self, process: str, declared: Declarations) -> None:
        self._process = process
        self.hooks = HookFailures(declared)
        self._sent = declared.counter("notifications", "Notifications sent to the agent.")
        self._undelivered = declared.counter(
            "notifications_undelivered", "Notifications that could not be delivered to the agent."
        )
        self._unreadable = declared.counter(
            "snapshot_read_errors", "Invalid snapshots that were ignored."
        )
        self._generation = declared.gauge(
            "snapshot_generation", "Number of the snapshot in force, 0 for none."
        )
        self._age = declared.gauge(
            "snapshot_age_seconds",
            "Time since the pass that wrote the snapshot in force began. It is written when "
            "something changes.",
        )

    def values(
        self, outcomes: Outcomes, notifier: Notifier, snapshots: SnapshotFile
    ) -> list[Metric]:
        """All metrics that every frontend has, and the memory of the process."""
        snapshot = snapshots.current()
        age = (time.monotonic_ns() - snapshot.listed_at) / 1e9 if snapshot else None
        return [
            *self.hooks.values(outcomes),
            single(self._sent, notifier.sent),
            single(self._undelivered, notifier.undelivered),
            single(self._unreadable, snapshots.unreadable),
            single(self._generation, snapshot.generation if snapshot else 0),
            Metric(self._age, {} if age is None else {(): age}),
            Metric(BUILD_INFO, {build_labels(self._process): 1}),
            single(_RESIDENT, _resident_bytes()),
        ]


_RESIDENT: Final = Series(
    "process_resident_memory_bytes", "gauge", "Resident memory size in bytes."
)
_FAILURE_LABELS: Final = ("hook", "qos_class", "reason")


class HookFailures:
    """The outcomes of failure policies."""

    def __init__(self, declared: Declarations) -> None:
        self._failed_open = declared.counter(
            "failed_open",
            "Calls that continued although their hook failed, by reason.",
            *_FAILURE_LABELS,
        )
        self._failed = declared.counter(
            "failed", "Calls that failed because their hook failed, by reason.", *_FAILURE_LABELS
        )

    def values(self, outcomes: Outcomes) -> list[Metric]:
        return [
            Metric(self._failed_open, dict(outcomes.failed_open)),
            Metric(self._failed, dict(outcomes.failed)),
        ]


def _resident_bytes() -> int:
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def serve_pages(
    loop: Loop,
    address: tuple[str, int] | None,
    node: NodeAddresses,
    page: Callable[[], str],
    problem: Callable[[], str],
) -> PageListener | None:
    """Serves /metrics, /healthz and /readyz. Returns None without an address, and if the port is in
    use: the process does its work without metrics too. `page`: returns the metrics; `problem`:
    returns why the process is not Ready, "" if it is."""
    if address is None:
        return None
    routes = {
        "/metrics": Route("GET", lambda _: Reply(200, page().encode(), METRICS)),
        "/healthz": Route("GET", lambda _: text_reply(200, "ok")),
        "/readyz": Route("GET", lambda _: readiness(problem())),
    }
    try:
        return PageListener(loop, address, routes, node)
    except OSError as error:
        log.warning("no metrics on %s port %d: %s", *address, error)
        return None
