"""Waiting for a condition, with a deadline."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

DEADLINE_SECONDS = float(os.environ.get("TOPOLET_TEST_DEADLINE_SECONDS", "30"))
"""Ends only a hanging test: an idle machine needs at most two of them."""


_LONGEST_PAUSE_SECONDS = 1.0


def eventually(what: str, check: Callable[[], object], seconds: float = DEADLINE_SECONDS) -> None:
    """Returns when the check succeeds; fails with `what` if it does not in time. Pauses grow with
    the elapsed time: checks must not use the CPU time that they wait for."""
    began = time.monotonic()
    while not check():
        passed = time.monotonic() - began
        if passed > seconds:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(min(max(0.01, passed / 20), _LONGEST_PAUSE_SECONDS))
