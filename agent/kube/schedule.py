"""When a watch may send its next request: one schedule for all causes, reset by progress.

| what the last request met | the next one |
|---|---|
| 410 or another end of its version, for the first time since progress | at once |
| 429 | after Retry-After, one second where there is none, spread over a step |
| no answer, a 5xx, an answer that makes no sense, the same 410 again | after a step |

Steps double while one cause lasts; another cause begins with its own first step, so that the long
pauses of an outage do not go on in the overload that follows it. Whatever the causes are, a watch
sends no more than REQUESTS in WINDOW_SECONDS.
"""

from __future__ import annotations

import hashlib
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

from agent.kube.errors import GoneError, StoreError, TooManyRequestsError

BASE_SECONDS = 1.0
CAP_SECONDS = 60.0
# A longer Retry-After is cut to this.
LONGEST_RETRY_AFTER_SECONDS = 300.0


class Backoff:
    """Steps that double from `base` to `cap`. Each delay is random within one whole step that
    begins at half of it, so that a fleet spreads out and at most five attempts fall into ten of the
    first step's seconds. `random` gives values in [0, 1)."""

    def __init__(
        self,
        random: Callable[[], float],
        base_seconds: float = BASE_SECONDS,
        cap_seconds: float = CAP_SECONDS,
    ) -> None:
        self._random = random
        self._base = base_seconds
        self._cap = cap_seconds
        self._step = base_seconds

    def next(self, retry_after_seconds: float | None = None) -> float:
        """Returns the seconds to wait now, never less than the server requests."""
        delay = self._step * (0.5 + self._random())
        if retry_after_seconds is not None:
            asked = min(max(retry_after_seconds, 0.0), LONGEST_RETRY_AFTER_SECONDS)
            delay = max(delay, asked + self._step * self._random())
        self._step = min(self._step * 2, self._cap)
        return delay

    def reset(self) -> None:
        """Begins anew with the first step, after progress."""
        self._step = self._base


def spread(name: str, window_seconds: float) -> float:
    """Returns a time in [0, window) that depends on the name alone: a fleet that starts at once
    does not connect at once, and a node that restarts keeps its time."""
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return int.from_bytes(digest) / 2**64 * window_seconds


REQUESTS: Final = 5
WINDOW_SECONDS: Final = 10.0
BUSY_SECONDS: Final = 1.0
"""For a 429 without Retry-After: kube-apiserver asks for one second by default."""
HASTEN_SECONDS: Final = 30.0
"""Between two pauses that end early: answers to other requests help little where this watch alone
gets none."""


def _boot_seconds() -> float:
    """This clock also counts the time that the machine is suspended, in which objects change."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class WatchPace(msgspec.Struct, frozen=True):
    """`wait` returns True when the event ended it.

    A watch asks the server to end it after `watch_seconds`, a fifth more or less, so that the
    watches of a fleet do not end together; one that lasts `grace_seconds` longer is dead. Pauses
    after failures grow to steps of `cap_seconds`. A pause ends within `return_seconds` after the
    server answers another request of the process again.
    """

    random: Callable[[], float] = random.random
    clock: Callable[[], float] = _boot_seconds
    wait: Callable[[threading.Event, float], bool] = threading.Event.wait
    watch_seconds: float = 300.0
    grace_seconds: float = 15.0
    cap_seconds: float = 10.0
    return_seconds: float = 2.0


class Schedule:
    """`random` gives values in [0, 1); all times are of one monotonic clock."""

    def __init__(self, random: Callable[[], float], cap_seconds: float) -> None:
        """No step is longer than `cap_seconds`."""
        self._failing = Backoff(random, cap_seconds=cap_seconds)
        self._busy = Backoff(random, cap_seconds=cap_seconds)
        self._asked: deque[float] = deque(maxlen=REQUESTS)
        self._anew = False
        self._hastened_at: float | None = None

    def sends(self, now: float) -> None:
        """Counts a request that is sent now."""
        self._asked.append(now)

    def wait(self, now: float) -> float:
        """Returns the seconds until another request may be sent, after success and failure."""
        if len(self._asked) < REQUESTS:
            return 0.0
        return max(0.0, self._asked[0] + WINDOW_SECONDS + _ROUNDING_SECONDS - now)

    def after(self, error: StoreError | None, *, spoiled: bool = False) -> float:
        """Seconds to pause after a request that failed, or, without `error`, that was granted and
        ended too soon; `spoiled`: no other request may begin at the same version."""
        retry_after = error.retry_after_seconds if error else None
        if isinstance(error, TooManyRequestsError):
            self._failing.reset()
            return self._busy.next(BUSY_SECONDS if retry_after is None else retry_after)
        self._busy.reset()
        if (spoiled or isinstance(error, GoneError)) and not self._anew:
            self._anew = True
            self._failing.reset()
            return 0.0
        return self._failing.next(retry_after)

    def hastens(self, now: float) -> bool:
        """Whether a pause ends early because the server answers other requests again. The steps
        begin anew then, as the errors of a server that starts are soon over."""
        last = self._hastened_at
        if last is not None and now - last < HASTEN_SECONDS:
            return False
        self._hastened_at = now
        self._failing.reset()
        return True

    def progressed(self) -> None:
        """The watch got an event, or lasted as long as it asked for."""
        self._failing.reset()
        self._busy.reset()
        self._anew = False


_ROUNDING_SECONDS: Final = 0.001
