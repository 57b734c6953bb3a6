"""Waiting for a condition, with a deadline."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

DEADLINE_SECONDS = float(os.environ.get("TOPOLET_TEST_DEADLINE_SECONDS", "30"))
"""Ends what hangs, and nothing else: an idle machine needs two of them at most."""


_LONGEST_PAUSE_SECONDS = 1.0


def eventually(what: str, check: Callable[[], object], seconds: float = DEADLINE_SECONDS) -> None:
    """Returns when the check holds; fails, naming `what`, when it does not in time. Pauses grow
    with the time that has passed: checks must not take the CPU from what they wait for."""
    began = time.monotonic()
    while not check():
        passed = time.monotonic() - began
        if passed > seconds:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(min(max(0.01, passed / 20), _LONGEST_PAUSE_SECONDS))
