"""The metrics that every frontend (proxy, NRI plugin, Koordinator's hook server) has under its own
prefix, and their page."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from agent.hooks.agent_client import Notifier, SnapshotFile
from agent.hooks.requests import Outcomes
from agent.host.loop import Loop
from agent.http.listener import PageListener
from agent.http.peers import NodeAddresses
from agent.http.requests import METRICS, Reply, Route, readiness, text_reply
from agent.telemetry.exposition import (
    BUILD_INFO,
    Declarations,
    Metric,
    build_labels,
    process_metrics,
    single,
)

log = logging.getLogger(__name__)


class FrontendMetrics:
    """Declares and makes the metrics that each frontend has. `process` is its subcommand."""

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
            *process_metrics(),
        ]


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


def serve_pages(
    loop: Loop,
    address: tuple[str, int] | None,
    node: NodeAddresses,
    page: Callable[[], str],
    problem: Callable[[], str],
) -> PageListener | None:
    """Serves /metrics, /healthz and /readyz. Returns None without an address, and if the port is in
    use: the process does its work without metrics too.

    `page`: returns the metrics.
    `problem`: returns why the process is not Ready, "" if it is."""
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
