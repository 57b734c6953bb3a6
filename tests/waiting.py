"""Waiting for a condition, with a deadline."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

DEADLINE_SECONDS = float(os.environ.get("TOPOLET_TEST_DEADLINE_SECONDS", "30"))
"""The default deadline: only a hanging test reaches it."""


_MAX_PAUSE_SECONDS = 1.0


def eventually(what: str, check: Callable[[], object], seconds: float = DEADLINE_SECONDS) -> None:
    """Waits until the check succeeds; fails with `what` after `seconds`. The pauses between checks
    grow with the elapsed time, to save CPU time."""
    began = time.monotonic()
    while not check():
        passed = time.monotonic() - began
        if passed > seconds:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(min(max(0.01, passed / 20), _MAX_PAUSE_SECONDS))
