"""Lets a process answer only while it leads and knows all pods that were bound before its term."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final, Protocol

from agent.host.log_once import Problem
from agent.kube.errors import StoreError

log = logging.getLogger(__name__)

RETRY_SECONDS: Final = 1.0


class Leadership(Protocol):
    """The part of Leader that the gate reads."""

    @property
    def leading(self) -> bool: ...

    @property
    def term(self) -> int: ...

    @property
    def holder(self) -> str: ...


class AlwaysLeader:
    """Always leads, for a cluster with a single scheduler."""

    leading = True
    term = 1
    holder = ""


class WatchState(Protocol):
    """The part of Watches that the gate uses."""

    @property
    def synced(self) -> bool: ...

    @property
    def problems(self) -> tuple[str, ...]: ...

    def stale(self) -> str | None: ...

    def behind(self) -> str | None: ...

    def mark_behind(self) -> None: ...

    def catch_up(self, wait: Callable[[float], bool]) -> bool: ...


class LeaderGate:
    """Observes a Leader and the watches on a thread of its own. At the beginning of each term, and
    after a watch failed, it makes the watches catch up."""

    def __init__(
        self, leader: Leadership, state: WatchState, settled: Callable[[], None] = lambda: None
    ) -> None:
        """`settled` is called before the first answer of a leader."""
        self._leader = leader
        self._state = state
        self._settled = settled
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
            return "; ".join(filter(None, (leader, self._state.stale())))
        if not self._state.synced:
            return "; ".join(("not all objects are listed yet", *self._state.problems))
        if (stale := self._state.stale()) is not None:
            return stale
        if self._caught_up != self._leader.term:
            return self._problem.text or "the pods bound before this term are not known yet"
        return None

    def begin(self) -> None:
        """Wakes the thread after the leader acquired the lease. Does not block."""
        self._wake.set()

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
            if leading and self._marked_term != term:
                self._marked_term = term
                self._state.mark_behind()
            if leading and (begins or self._state.behind() is not None):
                self._catch_up(term)
            else:
                self._wake.wait(RETRY_SECONDS)
                self._wake.clear()

    def _catch_up(self, term: int) -> None:
        try:
            if self._state.catch_up(lambda seconds: self._term_ended(term, seconds)):
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
