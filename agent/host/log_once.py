"""Log lines of lasting conditions: one for each change, or at most one in a number of seconds."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping


def about(title: str, container: str = "", reason: str = "", node: str = "") -> dict[str, str]:
    """The fields of a log record about the pod with this title (`NAMESPACE/POD`), as its
    `extra`."""
    namespace, _, pod = title.partition("/")
    found = {"namespace": namespace, "pod": pod, "container": container, "reason": reason}
    return {**found, "node": node} if node else found


def of_title(title: str, reason: str = "") -> dict[str, str]:
    """The fields of `about`, for the title of a pod, or of a container: `NAMESPACE/POD
    CONTAINER`."""
    pod, _, container = title.partition(" ")
    return about(pod, container, reason)


class Problem:
    """The present problem of one peer or file: logs each text that differs from the one before.

    `prefix`: the start of each line, before the text."""

    __slots__ = ("_level", "_log", "_prefix", "text")

    def __init__(self, log: logging.Logger, prefix: str, level: int = logging.WARNING) -> None:
        self.text: str | None = None
        """None without a problem. The code that owns it may reset it."""
        self._log = log
        self._prefix = prefix
        self._level = level

    def report(self, text: str, *, again: bool = False) -> None:
        """Logs the text if it has changed, or if `again` is set."""
        if again or text != self.text:
            self._log.log(self._level, "%s%s", self._prefix, text)
        self.text = text

    def clear(self) -> bool:
        """Whether there was a problem."""
        before, self.text = self.text, None
        return before is not None


class Once:
    """Logs each text once, as information."""

    __slots__ = ("_log", "_logged")

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._logged: set[str] = set()

    def report(self, text: str) -> None:
        if text not in self._logged:
            self._logged.add(text)
            self._log.info("%s", text)


class CountedWarnings:
    """Counts warnings by key, and logs those of one key at most once every `seconds`."""

    def __init__(
        self,
        log: logging.Logger,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = log
        self._seconds = seconds
        self._clock = clock
        self._logged_at: dict[tuple[str, ...], float] = {}

    def add(
        self,
        counts: Counter[tuple[str, ...]],
        key: tuple[str, ...],
        text: str,
        fields: Mapping[str, str] = {},
    ) -> None:
        """Counts a warning.

        `fields`: the fields of the log record, see `about`."""
        counts[key] += 1
        now = self._clock()
        if now - self._logged_at.get(key, -self._seconds) >= self._seconds:
            self._logged_at[key] = now
            self._log.warning("%s", text, extra=fields)
