"""The state of the agent's reconcile loop, which /healthz and /readyz report."""

from __future__ import annotations

import logging
import time

from agent.http.requests import Reply
from agent.http.routes import text_reply

log = logging.getLogger(__name__)

_STALE_SECONDS = 5.0


class Health:
    """The state of the reconcile loop, for /healthz and /readyz."""

    def __init__(self, period_seconds: float) -> None:
        self._patience_seconds = max(_STALE_SECONDS, 4 * period_seconds)
        self._begun = time.monotonic()
        self._succeeded: float | None = None
        self._error = "no pass has ended yet"
        self._pause_seconds = 0.0

    def begin(self) -> None:
        """A pass begins."""
        self._begun = time.monotonic()

    def end(self, error: str) -> None:
        """The pass ended, with "" for success. Logs a new error."""
        if self.is_new(error):
            log.error("%s", error)
        self._error = error
        if not error:
            self._succeeded = time.monotonic()

    def rest(self, pause_seconds: float) -> None:
        """The next pass begins only after this time."""
        self._pause_seconds = pause_seconds

    def is_new(self, error: str) -> bool:
        """Whether the last pass ended otherwise: a lasting error is logged once."""
        return bool(error) and error != self._error

    def alive(self) -> Reply:
        """503 when passes have stopped."""
        silent = time.monotonic() - self._begun
        if silent > self._pause_seconds + 4 * self._patience_seconds:
            return text_reply(503, f"no pass for {silent:.0f} s")
        return text_reply(200, "ok")

    def ready(self) -> Reply:
        """503 unless the last pass succeeded (so the runtime answers) and is recent."""
        if self._error:
            return text_reply(503, f"{self._error}")
        age = time.monotonic() - (self._succeeded or 0)
        if age > self._pause_seconds + self._patience_seconds:
            return text_reply(503, f"the snapshot is {age:.0f} s old")
        return text_reply(200, "ok")
