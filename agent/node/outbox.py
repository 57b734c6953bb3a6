"""Reports on their way to the cluster: late enough to be few, on a thread of their own, so that a
slow server delays no decision."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable

import msgspec

from agent.kube.backoff import Backoff
from agent.kube.errors import KubeError, StoreError
from agent.model.report import Report
from agent.telemetry.metrics import AgentMetrics

log = logging.getLogger(__name__)


AGAIN_SECONDS = 30.0


class Pace(msgspec.Struct, frozen=True):
    """A report waits until none came for `settle_seconds`, but no longer than `most_seconds`, and
    is sent again after `recheck_seconds`, to be compared with what is stored."""

    settle_seconds: float = 1.0
    most_seconds: float = 10.0
    recheck_seconds: float = 300.0


class Outbox:
    """Only the newest report counts. One that can't be delivered is tried again, ever more
    seldom."""

    def __init__(
        self,
        deliver: Callable[[Report], bool],
        metrics: AgentMetrics,
        pace: Pace | None = None,
        clock: Callable[[], float] = time.monotonic,
        first: Callable[[], None] = lambda: None,
    ) -> None:
        """`deliver` says whether anything was written; raises StoreError. So does `first`, which is
        called until it succeeds before anything is delivered."""
        self._deliver = deliver
        self._first = first
        self._metrics = metrics
        self._pace = pace or Pace()
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
        self.trouble = ""

    def start(self) -> None:
        """Again is nothing."""
        with self._news:
            if not self._started and not self._closed.is_set():
                self._started = True
                self._thread.start()

    def put(self, report: Report) -> bool:
        """Takes the place of one that waits; what is written is not known yet: False."""
        with self._news:
            self._report = report
            self._pend()
        return False

    def again(self) -> None:
        """Somebody changed what we wrote. It is put right soon, but who goes on doing so shall not
        make us write without end."""
        with self._news:
            self._taken = True
            self._news.notify()

    def close(self) -> None:
        """Nothing is written afterwards."""
        with self._news:
            self._closed.set()
            self._news.notify()
        if self._thread.is_alive():
            self._thread.join(_JOIN_SECONDS)

    def _pend(self) -> None:
        self._last_put = self._clock()
        if self._pending_since is None:
            self._pending_since = self._last_put
        self._news.notify()

    def _due(self) -> float | None:
        """When the next delivery is; None while there is nothing to deliver."""
        if self._report is None:
            return None
        after = self._pace.recheck_seconds
        due = self._checked + (min(after, AGAIN_SECONDS) if self._taken else after)
        if self._pending_since is not None:
            settled = self._last_put + self._pace.settle_seconds
            due = min(settled, self._pending_since + self._pace.most_seconds)
        return max(due, self._not_before)

    def _run(self) -> None:
        while not self._began():
            if self._closed.wait(self._backoff.next()):
                return
        while (report := self._next()) is not None:
            self._send(report)

    def _began(self) -> bool:
        try:
            self._first()
        except StoreError as error:
            self._failed(str(error))
            return False
        self._backoff.reset()
        return True

    def _next(self) -> Report | None:
        """Waits until one is due; None when closed."""
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
        asked_after: float | None = None
        try:
            written = self._deliver(report)
        except StoreError as error:
            self._failed(str(error))
            if isinstance(error, KubeError):
                asked_after = error.retry_after_seconds
        else:
            if self.trouble:
                log.info("reports are delivered again")
            self.trouble = ""
            self._metrics.reports.labels("written" if written else "unchanged").inc()
            self._backoff.reset()
            self._checked = self._clock()
            return
        with self._news:
            now = self._clock()
            self._not_before = now + self._backoff.next(asked_after)
            if self._pending_since is None:
                self._pending_since = now

    def _failed(self, trouble: str) -> None:
        self._metrics.reports.labels("failed").inc()
        if trouble != self.trouble:
            log.error("a report could not be delivered: %s", trouble)
        self.trouble = trouble


_JOIN_SECONDS = 2.0
