"""Whether rounds go on and succeed."""

from __future__ import annotations

import logging
import time

from agent.telemetry.http import Answer

log = logging.getLogger(__name__)

STALE_SECONDS = 5.0


class Health:
    """What /healthz and /readyz answer from."""

    def __init__(self, period_seconds: float) -> None:
        self._patience_seconds = max(STALE_SECONDS, 4 * period_seconds)
        self._begun = time.monotonic()
        self._succeeded: float | None = None
        self._error = "has not looked yet"
        self._pause_seconds = 0.0

    def begin(self) -> None:
        """A round begins."""
        self._begun = time.monotonic()

    def end(self, error: str) -> None:
        """The round ended, with "" for success; logs what is new."""
        if self.is_news(error):
            log.error("%s", error)
        self._error = error
        if not error:
            self._succeeded = time.monotonic()

    def rest(self, pause_seconds: float) -> None:
        """The next round is due only after this long: until then nothing is late."""
        self._pause_seconds = pause_seconds

    def is_news(self, error: str) -> bool:
        """Whether the last round ended otherwise: a fault that stays must not fill a disk."""
        return bool(error) and error != self._error

    def alive(self) -> Answer:
        """503 when rounds have stopped."""
        silent = time.monotonic() - self._begun
        if silent > self._pause_seconds + 4 * self._patience_seconds:
            return Answer(503, f"no round for {silent:.0f} s\n")
        return Answer(200, "ok\n")

    def ready(self) -> Answer:
        """503 unless the last round succeeded (so the runtime answers) and is not long ago."""
        if self._error:
            return Answer(503, f"{self._error}\n")
        age = time.monotonic() - (self._succeeded or 0)
        if age > self._pause_seconds + self._patience_seconds:
            return Answer(503, f"the snapshot is {age:.0f} s old\n")
        return Answer(200, "ok\n")
