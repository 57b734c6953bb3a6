"""Chance and time of who follows objects."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

import msgspec


class Pace(msgspec.Struct, frozen=True):
    """`wait` returns True when it was ended by `stop`.

    A server is asked to end a watch after `watch_seconds`, a fifth more or less, so that those of a
    fleet do not end together; `grace_seconds` later it is dead.
    """

    random: Callable[[], float] = random.random
    clock: Callable[[], float] = time.monotonic
    wait: Callable[[threading.Event, float], bool] = threading.Event.wait
    watch_seconds: float = 300.0
    grace_seconds: float = 15.0
