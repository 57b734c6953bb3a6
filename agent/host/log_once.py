"""Log lines of a condition that lasts: once for each change, or at most every so many seconds."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable


class Problem:
    """The present problem of one peer or file. `text` is None while there is no problem; a text is
    logged when it differs from the last one."""

    __slots__ = ("_level", "_log", "_prefix", "text")

    def __init__(self, log: logging.Logger, prefix: str, level: int = logging.WARNING) -> None:
        """`prefix`: the begin of each line, which the text follows."""
        self.text: str | None = None
        self._log = log
        self._prefix = prefix
        self._level = level

    def report(self, text: str, *, again: bool = False) -> None:
        """`again`: log it also if it is the last text."""
        if again or text != self.text:
            self._log.log(self._level, "%s%s", self._prefix, text)
        self.text = text

    def clear(self) -> bool:
        """Whether there was a problem."""
        before, self.text = self.text, None
        return before is not None


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

    def add(self, counts: Counter[tuple[str, ...]], key: tuple[str, ...], text: str) -> None:
        counts[key] += 1
        now = self._clock()
        if now - self._logged_at.get(key, -self._seconds) >= self._seconds:
            self._logged_at[key] = now
            self._log.warning("%s", text)
