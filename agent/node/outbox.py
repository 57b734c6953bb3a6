"""Delivery of reports to the cluster. Reports are delayed and merged, so that there are few. A
thread of their own delivers them, so that a slow server does not delay decisions."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable

import msgspec

from agent.host.log_once import Problem
from agent.kube.cluster import SPREAD_SECONDS
from agent.kube.errors import (
    KubeError,
    NotFoundError,
    ServerError,
    StoreError,
    TooManyRequestsError,
    UnauthorizedError,
    UnreachableError,
)
from agent.kube.objects import Objects
from agent.kube.schedule import Backoff
from agent.model.devices import device_object
from agent.model.nrt import node_status, resource_topology
from agent.model.nrt.report import MANAGED_BY, MANAGER, Report
from agent.model.nrt.resource_topology import Version
from agent.telemetry.metrics import AgentMetrics

log = logging.getLogger(__name__)


AGAIN_SECONDS = 30.0


class ReportPace(msgspec.Struct, frozen=True):
    """A report is delivered when there was no newer one for `settle_seconds`, at the latest after
    `max_seconds`. After `recheck_seconds` it is delivered again, to compare it with the stored
    object."""

    settle_seconds: float = 1.0
    max_seconds: float = 10.0
    recheck_seconds: float = 300.0


class Outbox:
    """Delivers the newest report. A failed delivery is repeated with a growing backoff, and soon
    after an unavailable server answers any request of this process."""

    def __init__(
        self,
        deliver: Callable[[Report], bool],
        metrics: AgentMetrics,
        pace: ReportPace | None = None,
        clock: Callable[[], float] = time.monotonic,
        first: Callable[[], None] = lambda: None,
    ) -> None:
        """`deliver` returns whether it wrote anything; raises StoreError. So does `first`, which is
        called until it succeeds, before the first delivery."""
        self._deliver = deliver
        self._first = first
        self._metrics = metrics
        self._pace = pace or ReportPace()
        self._clock = clock
        self._backoff = Backoff(random.random)
        self._news = threading.Condition()
        self._report: Report | None = None
        self._pending_since: float | None = None
        self._last_put = 0.0
        self._not_before = 0.0
        self._taken = False
        self._checked = 0.0
        self._closed = threading.Event()
        self._started = False
        self._thread = threading.Thread(target=self._run, name="reports", daemon=True)
        self.problem = Problem(log, "a report could not be delivered: ", logging.ERROR)

    def start(self) -> None:
        """Starts the thread. A second call does nothing."""
        with self._news:
            if not self._started and not self._closed.is_set():
                self._started = True
                self._thread.start()

    def put(self, report: Report) -> bool:
        """Replaces the queued report. Returns False: it is not known yet whether anything is
        written."""
        with self._news:
            self._report = report
            self._schedule()
        return False

    def resync(self) -> None:
        """Another client changed the agent's objects. They are written again soon, but a client
        that does so repeatedly does not cause endless writes."""
        with self._news:
            self._taken = True
            self._news.notify()

    def server_available(self) -> None:
        """The server is available again. All nodes notice this at about the same time, so each
        delays its report by a random part of SPREAD_SECONDS."""
        with self._news:
            if self.problem.text:
                self._backoff.reset()
                soon = self._clock() + random.random() * SPREAD_SECONDS
                self._not_before = min(self._not_before, soon)
                self._news.notify()

    def close(self) -> None:
        """Ends the delivery."""
        with self._news:
            self._closed.set()
            self._news.notify()
        if self._thread.is_alive():
            self._thread.join(_JOIN_SECONDS)

    def _schedule(self) -> None:
        self._last_put = self._clock()
        if self._pending_since is None:
            self._pending_since = self._last_put
        self._news.notify()

    def _due(self) -> float | None:
        """The time of the next delivery; None without a report."""
        if self._report is None:
            return None
        after = self._pace.recheck_seconds
        due = self._checked + (min(after, AGAIN_SECONDS) if self._taken else after)
        if self._pending_since is not None:
            settled = self._last_put + self._pace.settle_seconds
            due = min(settled, self._pending_since + self._pace.max_seconds)
        return max(due, self._not_before)

    def _run(self) -> None:
        while not self._began():
            if not self._paused():
                return
        while (report := self._next()) is not None:
            self._send(report)

    def _began(self) -> bool:
        try:
            self._first()
        except StoreError as error:
            self._failed(error)
            return False
        self._succeeded()
        return True

    def _paused(self) -> bool:
        """Waits for the next attempt. False after `close`."""
        with self._news:
            while not self._closed.is_set():
                left = self._not_before - self._clock()
                if left <= 0:
                    return True
                self._news.wait(left)
            return False

    def _next(self) -> Report | None:
        """Waits until a report is due. None after `close`."""
        with self._news:
            while not self._closed.is_set():
                due = self._due()
                left = None if due is None else due - self._clock()
                if left is not None and left <= 0:
                    self._pending_since = None
                    self._taken = False
                    return self._report
                self._news.wait(left)
            return None

    def _send(self, report: Report) -> None:
        try:
            written = self._deliver(report)
        except StoreError as error:
            self._failed(error)
            with self._news:
                if self._pending_since is None:
                    self._pending_since = self._clock()
            return
        if self.problem.clear():
            log.info("reports are delivered again")
        self._succeeded()
        self._metrics.reports.labels("written" if written else "unchanged").inc()
        self._checked = self._clock()

    def _failed(self, error: StoreError) -> None:
        self._metrics.reports.labels("failed").inc()
        asked_after = error.retry_after_seconds if isinstance(error, KubeError) else None
        with self._news:
            self.problem.report(str(error))
            self._not_before = self._clock() + self._backoff.next(asked_after)

    def _succeeded(self) -> None:
        with self._news:
            self._backoff.reset()


_JOIN_SECONDS = 2.0


def deliver(objects: Objects, report: Report) -> bool:
    """Whether anything was written. If some objects can't be written, writes the others and then
    raises a KubeError that names all failures. Raises the error of an unavailable server at
    once."""
    name = report.topology.name
    parts: tuple[Callable[[], bool], ...] = (
        lambda: _deliver_topology(objects, report),
        lambda: objects.apply(node_status.node(name, report.labels)),
        lambda: objects.apply_status(node_status.status(name, report.resources)),
        lambda: _deliver_devices(objects, report),
    )
    written = []
    failures: list[StoreError] = []
    for part in parts:
        try:
            written.append(part())
        except _ABOUT_THE_SERVER:
            raise
        except StoreError as error:
            failures.append(error)
    if failures:
        patience = [
            each.retry_after_seconds or 0 for each in failures if isinstance(each, KubeError)
        ]
        raise KubeError("; ".join(map(str, failures)), max(patience, default=0) or None)
    return any(written)


_ABOUT_THE_SERVER = (UnreachableError, ServerError, UnauthorizedError, TooManyRequestsError)


def _deliver_topology(objects: Objects, report: Report) -> bool:
    version = objects.version(resource_topology.KIND)
    if version is None:
        raise NotFoundError(
            f"{resource_topology.KIND} is not served: its CustomResourceDefinition is missing"
        )
    return objects.apply(resource_topology.encode(report.topology, Version(version)))


def _deliver_devices(objects: Objects, report: Report) -> bool:
    """A node that never had devices has no Device object."""
    name, reported = report.topology.name, report.devices
    if not reported.devices:
        before = objects.get(device_object.KIND, name)
        labels = (before or {}).get("metadata", {}).get("labels") or {}
        if labels.get(MANAGED_BY) != MANAGER[MANAGED_BY]:
            return False
    labels = {**MANAGER, **node_status.gpu_labels(reported.gpus, reported.devices)}
    return objects.apply(device_object.encode(name, reported.listed, labels, reported.annotations))
