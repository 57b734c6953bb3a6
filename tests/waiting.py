"""Waiting for a condition, with a deadline."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

DEADLINE_SECONDS = float(os.environ.get("TOPOLET_TEST_DEADLINE_SECONDS", "30"))
"""Ends what hangs, and nothing else: an idle machine needs two of them at most."""


def eventually(what: str, check: Callable[[], object], seconds: float = DEADLINE_SECONDS) -> None:
    """Returns when the check holds; fails, naming `what`, when it does not in time."""
    deadline = time.monotonic() + seconds
    while not check():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.01)
