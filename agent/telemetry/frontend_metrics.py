"""Metrics of the frontends (proxy, NRI plugin, Koordinator's hook server) in the Prometheus text
format: the format, the metrics that every frontend has under its own prefix, and their page.

They do not use prometheus-client, whose import takes a process from 9 to 23 MB (docs/decisions.md).
"""

from __future__ import annotations

import logging
import os
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate

import msgspec

from agent.hooks.agent_client import Notifier, SnapshotFile
from agent.hooks.requests import Outcomes
from agent.host.loop import Loop
from agent.http.listener import PageListener
from agent.http.peers import NodeAddresses
from agent.http.requests import Reply
from agent.http.routes import METRICS, Route, text_reply

log = logging.getLogger(__name__)


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
    """The text of a scrape."""
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


_FAILURE_LABELS = ("hook", "qos", "reason")


class Counts(msgspec.Struct, frozen=True):
    """Makes the metrics of one frontend. `prefix` begins their names, as `topolet_proxy`."""

    prefix: str

    def counter(self, name: str, text: str, value: float) -> Metric:
        return self.counters(name, text, {(): value})

    def counters(
        self,
        name: str,
        text: str,
        values: Mapping[tuple[str, ...], float],
        labels: tuple[str, ...] = (),
    ) -> Metric:
        """`values` are by the values of the labels."""
        return Metric(f"{self.prefix}_{name}_total", "counter", text, values, labels)

    def gauge(self, name: str, text: str, value: float) -> Metric:
        return Metric(f"{self.prefix}_{name}", "gauge", text, {(): value})

    def shared(
        self, outcomes: Outcomes, notifier: Notifier, snapshots: SnapshotFile
    ) -> list[Metric]:
        """The outcomes of failure policies, the notifications, the snapshot, and the memory of the
        process."""
        snapshot = snapshots.current()
        return [
            self.counters(
                "failed_open",
                "Calls that continued although their hook failed, by reason.",
                outcomes.failed_open,
                _FAILURE_LABELS,
            ),
            self.counters(
                "failed",
                "Calls that failed because their hook failed, by reason.",
                outcomes.failed,
                _FAILURE_LABELS,
            ),
            self.counter("rings", "Datagrams to the agent.", notifier.sent),
            self.counter("rings_undelivered", "Datagrams not delivered.", notifier.undelivered),
            self.counter("snapshot_unreadable", "Invalid snapshots ignored.", snapshots.unreadable),
            self.gauge(
                "snapshot_generation",
                "Generation of the snapshot in force, 0 for none.",
                snapshot.generation if snapshot else 0,
            ),
            Metric(
                "process_resident_memory_bytes",
                "gauge",
                "Resident memory size in bytes.",
                {(): _resident_bytes()},
            ),
        ]


def _resident_bytes() -> int:
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def serve_pages(
    loop: Loop, address: tuple[str, int] | None, node: NodeAddresses, page: Callable[[], str]
) -> PageListener | None:
    """Returns None without an address, and for a port in use: the process does its work without
    metrics too."""
    if address is None:
        return None
    routes = {
        "/metrics": Route("GET", lambda _: Reply(200, page().encode(), METRICS)),
        "/healthz": Route("GET", lambda _: text_reply(200, "ok")),
    }
    try:
        return PageListener(loop, address, routes, node)
    except OSError as error:
        log.warning("no metrics on %s port %d: %s", *address, error)
        return None
