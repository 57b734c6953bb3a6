"""Lets a process answer only while it leads and knows all pods that were bound before its term, and
labels its pod then, so that a Service selects it.

The label only directs requests: a standby that receives one answers 503. A process whose pod may
have the wrong label is not Ready. This removes the pod from the Service even if this process can't
reach the API server, because the kubelet reports the readiness."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from agent.host.daemon import Periodic, seconds_to_boundary
from agent.host.log_once import Problem
from agent.kube.errors import StoreError
from agent.kube.objects import pod_path
from agent.kube.transport import Transport
from agent.scheduler.leader.candidate import FormerBindings
from agent.scheduler.leader.election import Leadership
from agent.scheduler.state.watches import Watches

LABEL: Final = "topolet.io/scheduler-leader"
VALUE: Final = "true"
STEP_SECONDS: Final = 0.5
AGAIN_SECONDS: Final = 30.0
"""The time after which the label is written again, because another client may have changed it."""


class LeaderLabel:
    """Adds the label while `leading`, and removes it otherwise, also a label of a former process of
    the pod. Runs on a thread of its own from `start` to `stop`."""

    def __init__(
        self,
        transport: Transport,
        pod: tuple[str, str],
        leading: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`pod`: namespace and name."""
        namespace, name = pod
        self._transport = transport
        self._path = pod_path(namespace, name)
        self._leading = leading
        self._clock = clock
        self._written: bool | None = None
        self._written_at = 0.0
        self._problem = Problem(log, f"the label {LABEL} of pod {namespace}/{name}: ")
        self._periodic = Periodic("leader label", STEP_SECONDS, self.step)

    def unready(self) -> str | None:
        """Returns why the pod may have the wrong label; None if it is right, or about to be."""
        if self._problem.text is not None:
            return f"the label {LABEL}: {self._problem.text}"
        return None if self._written is not None else f"the label {LABEL} is not written yet"

    def step(self) -> None:
        """Writes the label if it is wrong, or has not been written for a while. Never raises."""
        wanted = self._leading()
        fresh = self._clock() - self._written_at < AGAIN_SECONDS
        if wanted == self._written and fresh and self._problem.text is None:
            return
        value = VALUE if wanted else None
        try:
            self._transport.merge(self._path, {"metadata": {"labels": {LABEL: value}}})
        except StoreError as error:
            self._problem.report(str(error))
            return
        self._problem.clear()
        self._written, self._written_at = wanted, self._clock()

    def hurry(self) -> None:
        """Makes the next step begin at once, after the leadership has changed. Does not block."""
        self._periodic.hurry()

    def start(self) -> None:
        self._periodic.start()

    def stop(self) -> None:
        """Removes the label after the leadership has ended."""
        self._periodic.stop()
        if self._written:
            self.step()


log = logging.getLogger(__name__)

RETRY_SECONDS: Final = 1.0


class LeaderGate:
    """Decides whether requests may be answered. A thread of its own makes the watches catch up at
    the beginning of each term, and after a watch failed."""

    def __init__(
        self,
        leader: Leadership,
        watches: Watches,
        settled: Callable[[], None] = lambda: None,
        former: FormerBindings | None = None,
        label: LeaderLabel | None = None,
    ) -> None:
        """`settled` is called in each term when the cluster is known, before the first answer.
        `former`: the Bindings that a former process with the same identity sent, with an unknown
        outcome. `label`: the label of this process's pod, if a Service selects the leader by it."""
        self._leader = leader
        self._watches = watches
        self._settled = settled
        self._former = former
        self._label = label
        self._lock = threading.Lock()
        self._marked_term = 0
        self._caught_up = 0
        self._problem = Problem(log, "the pods bound before this term are unknown: ")
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="leader-gate", daemon=True)

    def reason(self) -> str | None:
        """Returns why no request may be answered now, for /readyz and for 503; None if they may."""
        if not self._leader.leading:
            holder = self._leader.holder
            leader = f"the leader is {holder}" if holder else "no replica is the leader"
            return "; ".join(filter(None, (leader, self._watches.stale())))
        if (unknown := self._unknown()) is not None:
            return unknown
        if self._caught_up != self._leader.term:
            return self._problem.text or "the pods bound before this term are not known yet"
        return None

    def unready(self) -> str | None:
        """Returns why this process is not Ready; None if it is. Without the label, only the leader
        is Ready, so that clients find it. With the label, a leader that answers requests is Ready,
        and so is a standby that knows the cluster and can acquire the lease."""
        if self._label is None or self._leader.leading:
            reason = self.reason()
        else:
            reason = self._unknown() or self._leader.lease_problem
        return reason or (self._label.unready() if self._label is not None else None)

    def begin(self) -> None:
        """Must be called when this process has acquired the lease. The watches count as behind
        until they have caught up. Does not block."""
        self._mark(self._leader.term)
        self._wake.set()
        if self._label is not None:
            self._label.hurry()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped.is_set():
            term = self._leader.term
            leading, begins = self._leader.leading, self._caught_up != term
            if leading:
                self._mark(term)
            if leading and (begins or self._watches.behind() is not None):
                self._catch_up(term)
            else:
                self._wake.wait(seconds_to_boundary(time.monotonic(), RETRY_SECONDS))
                self._wake.clear()

    def _mark(self, term: int) -> None:
        """Marks the watches as behind, once in a term. A watch that starts later has caught up when
        its first list is complete."""
        with self._lock:
            if self._marked_term != term:
                self._marked_term = term
                self._watches.mark_behind()

    def _unknown(self) -> str | None:
        """Returns why the state of the cluster is not known; None if it is."""
        if not self._watches.synced:
            return "; ".join(("not all objects are listed yet", *self._watches.problems))
        return self._watches.stale()

    def _catch_up(self, term: int) -> None:
        def wait(seconds: float) -> bool:
            return self._term_ended(term, seconds)

        try:
            if self._former is not None and self._former.open:
                if not self._former.finish(self._leader.continues, wait):
                    return
                # The watches may have listed their objects before that.
                self._watches.mark_behind()
            if self._watches.catch_up(wait):
                if self._caught_up != term:
                    self._settled()
                    log.info("all pods bound before this term are known")
                self._caught_up = term
                self._problem.clear()
        except StoreError as error:
            self._problem.report(str(error))
            self._stopped.wait(RETRY_SECONDS)

    def _term_ended(self, term: int, seconds: float) -> bool:
        return self._stopped.wait(seconds) or (self._leader.term, self._leader.leading) != (
            term,
            True,
        )
