"""Delivery of reports to the cluster. Only the newest report is delivered, after a delay, so that
there are few deliveries. A thread of its own delivers it, so that a slow server does not delay
decisions."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable

import msgspec

from agent.host.log_once import Problem
from agent.kube.cluster import SPREAD_SECONDS, managers
from agent.kube.errors import (
    UNAVAILABLE,
    KubeError,
    NotFoundError,
    StoreError,
)
from agent.kube.objects import Object, Objects
from agent.kube.schedule import Backoff
from agent.kube.transport import FIELD_MANAGER
from agent.model.devices import device_object
from agent.model.nrt import node_status, resource_topology
from agent.model.nrt.resource_topology import Version
from agent.node.node_resource_topology import MANAGED_BY, Report
from agent.telemetry.metrics import AgentMetrics

log = logging.getLogger(__name__)


RECHECK_SECONDS = 15.0
"""After this time a change by others is undone; docs/api-server.md has what that costs."""


class ReportPace(msgspec.Struct, frozen=True):
    """When a report is delivered."""

    settle_seconds: float = 1.0
    """How long there must be no newer report."""
    max_seconds: float = 10.0
    """The report is delivered after this time at the latest."""
    recheck_seconds: float = RECHECK_SECONDS
    """When it is delivered again, since others may have changed the stored objects."""


class Outbox:
    """Delivers the newest report. A failed delivery is repeated with a growing backoff, and soon
    after an unavailable server answers any request of this process.

    `deliver`: returns whether it wrote anything, or raises StoreError.
    `first`: called before the first delivery, until it does not raise StoreError.
    `changed`: the thread waits on it, by the `clock`."""

    def __init__(
        self,
        deliver: Callable[[Report], bool],
        metrics: AgentMetrics,
        pace: ReportPace | None = None,
        clock: Callable[[], float] = time.monotonic,
        first: Callable[[], None] = lambda: None,
        changed: threading.Condition | None = None,
    ) -> None:
        self._deliver = deliver
        self._first = first
        self._metrics = metrics
        self._pace = pace or ReportPace()
        self._clock = clock
        self._backoff = Backoff(random.random)
        self._changed = changed or threading.Condition()
        self._report: Report | None = None
        self._pending_since: float | None = None
        self._last_put = 0.0
        self._not_before = 0.0
        self._checked = 0.0
        self._closed = threading.Event()
        self._started = False
        self._thread = threading.Thread(target=self._run, name="reports", daemon=True)
        self.problem = Problem(log, "a report could not be delivered: ", logging.ERROR)

    def start(self) -> None:
        """Starts the thread. A second call does nothing."""
        with self._changed:
            if not self._started and not self._closed.is_set():
                self._started = True
                self._thread.start()

    def put(self, report: Report) -> None:
        with self._changed:
            self._report = report
            self._schedule()

    def server_available(self) -> None:
        """To be called when the server is available again. All nodes notice this at about the same
        time, so each delays its report by a random part of SPREAD_SECONDS."""
        with self._changed:
            if self.problem.text:
                self._backoff.reset()
                soon = self._clock() + random.random() * SPREAD_SECONDS
                self._not_before = min(self._not_before, soon)
                self._changed.notify()

    def close(self) -> None:
        """Ends the delivery."""
        with self._changed:
            self._closed.set()
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(_JOIN_SECONDS)

    def _schedule(self) -> None:
        self._last_put = self._clock()
        if self._pending_since is None:
            self._pending_since = self._last_put
        self._changed.notify()

    def _due(self) -> float | None:
        """The time of the next delivery, None without a report."""
        if self._report is None:
            return None
        due = self._checked + self._pace.recheck_seconds
        if self._pending_since is not None:
            settled = self._last_put + self._pace.settle_seconds
            due = min(settled, self._pending_since + self._pace.max_seconds)
        return max(due, self._not_before)

    def _run(self) -> None:
        while not self._ran_first():
            if not self._waited():
                return
        while (report := self._next()) is not None:
            self._send(report)

    def _ran_first(self) -> bool:
        try:
            self._first()
        except StoreError as error:
            self._failed(error)
            return False
        self._succeeded()
        return True

    def _waited(self) -> bool:
        """Waits until the next attempt is due. Returns False after `close`."""
        with self._changed:
            while not self._closed.is_set():
                left = self._not_before - self._clock()
                if left <= 0:
                    return True
                self._changed.wait(left)
            return False

    def _next(self) -> Report | None:
        """Waits until a report is due. Returns None after `close`."""
        with self._changed:
            while not self._closed.is_set():
                due = self._due()
                left = None if due is None else due - self._clock()
                if left is not None and left <= 0:
                    self._pending_since = None
                    return self._report
                self._changed.wait(left)
            return None

    def _send(self, report: Report) -> None:
        try:
            written = self._deliver(report)
        except StoreError as error:
            self._failed(error)
            with self._changed:
                if self._pending_since is None:
                    self._pending_since = self._clock()
            return
        if self.problem.clear():
            log.info("reports are delivered again")
        self._succeeded()
        self._metrics.reports.inc("written" if written else "unchanged")
        self._checked = self._clock()

    def _failed(self, error: StoreError) -> None:
        self._metrics.reports.inc("failed")
        retry_after_seconds = error.retry_after_seconds if isinstance(error, KubeError) else None
        with self._changed:
            self.problem.report(str(error))
            self._not_before = self._clock() + self._backoff.next(retry_after_seconds)

    def _succeeded(self) -> None:
        with self._changed:
            self._backoff.reset()


_JOIN_SECONDS = 2.0


def deliver(objects: Objects, report: Report) -> bool:
    """Writes the objects of a report, and returns whether anything was written. If some objects
    can't be written, writes the others and then raises a KubeError that names all failures. Raises
    the error of an unavailable server at once."""
    name = report.topology.name
    parts: tuple[Callable[[], bool], ...] = (
        lambda: _deliver_topology(objects, report),
        lambda: objects.apply(node_status.node(name, report.labels, report.annotations)),
        lambda: objects.apply_status(node_status.status(name, report.resources)),
        lambda: _deliver_devices(objects, report),
    )
    written = []
    failures: list[StoreError] = []
    for part in parts:
        try:
            written.append(part())
        except UNAVAILABLE:
            raise
        except StoreError as error:
            failures.append(error)
    if failures:
        patience = [
            each.retry_after_seconds or 0 for each in failures if isinstance(each, KubeError)
        ]
        raise KubeError("; ".join(map(str, failures)), max(patience, default=0) or None)
    return any(written)


def _deliver_topology(objects: Objects, report: Report) -> bool:
    version = objects.version(resource_topology.KIND)
    if version is None:
        raise NotFoundError(
            f"{resource_topology.KIND} is not served: its CustomResourceDefinition is missing"
        )
    return objects.apply(resource_topology.encode(report.topology, Version(version)))


def _deliver_devices(objects: Objects, report: Report) -> bool:
    """Writes the Device object. Without devices it is written only if it exists and is the agent's:
    a node that never had devices does not get one."""
    name, reported = report.topology.name, report.devices
    if not reported.devices:
        before = objects.get(device_object.KIND, name, cached=True)
        if before is None or not _is_own(before):
            return False
    labels = {**report.topology.labels, **node_status.gpu_labels(reported.gpus, reported.devices)}
    return objects.apply(device_object.encode(name, reported.listed, labels, reported.annotations))


def _is_own(stored: Object) -> bool:
    """Whether the agent wrote in the object. A folder has no field managers."""
    metadata = stored.get("metadata") or {}
    if "managedFields" in metadata:
        return FIELD_MANAGER in managers(stored)
    return MANAGED_BY in (metadata.get("labels") or {})
