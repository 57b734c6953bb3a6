"""Whether this scheduler may answer: it leads, and knows all that was bound before it began to."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final, Protocol

from agent.kube.errors import StoreError

log = logging.getLogger(__name__)

RETRY_SECONDS: Final = 1.0


class Leading(Protocol):
    """What a Leader says."""

    @property
    def leading(self) -> bool: ...

    @property
    def term(self) -> int: ...

    @property
    def holder(self) -> str: ...


class Alone:
    """Leads always: there is one scheduler only."""

    leading = True
    term = 1
    holder = ""


class State(Protocol):
    """What Watching says."""

    @property
    def synced(self) -> bool: ...

    @property
    def troubles(self) -> tuple[str, ...]: ...

    def catch_up(self, wait: Callable[[float], bool]) -> bool: ...


class Duty:
    """Follows a Leader and a Watching on a thread of its own."""

    def __init__(
        self, leader: Leading, state: State, settled: Callable[[], None] = lambda: None
    ) -> None:
        """`settled` is called before a leader's first answer."""
        self._leader = leader
        self._state = state
        self._settled = settled
        self._caught_up = 0
        self._trouble = ""
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="duty", daemon=True)

    def reason(self) -> str | None:
        """Why nothing may be answered now, None where it may: for /readyz and for 503."""
        if not self._leader.leading:
            holder = self._leader.holder
            return f"{holder} leads" if holder else "nobody leads"
        if not self._state.synced:
            return "; ".join(("not all objects are known yet", *self._state.troubles))
        if self._caught_up != self._leader.term:
            return self._trouble or "what was bound before is not known yet"
        return None

    def begin(self) -> None:
        """The leader has acquired the lease. Does not wait."""
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
            if self._leader.leading and self._caught_up != term:
                self._catch_up(term)
            else:
                self._wake.wait(RETRY_SECONDS)
                self._wake.clear()

    def _catch_up(self, term: int) -> None:
        try:
            if self._state.catch_up(lambda seconds: self._over(term, seconds)):
                self._settled()
                self._caught_up = term
                self._trouble = ""
                log.info("all that was bound before is known")
        except StoreError as error:
            log.warning("what was bound before can't be asked for: %s", error)
            self._trouble = str(error)
            self._stopped.wait(RETRY_SECONDS)

    def _over(self, term: int, seconds: float) -> bool:
        return self._stopped.wait(seconds) or (self._leader.term, self._leader.leading) != (
            term,
            True,
        )
