"""When a watch may send its next request: one schedule for all causes, reset by progress.

| result of the last request | next request |
|---|---|
| 410 or another error that makes its version unusable, the first since progress | at once |
| 429 | after Retry-After, one second where there is none, spread over a step |
| no response, a 5xx, an invalid response, a further 410 | after a step |

Steps double while one cause lasts; another cause begins with its own first step, so that the long
pauses of an outage do not continue in the overload that follows it. Whatever the causes are, a
watch sends no more than REQUESTS in WINDOW_SECONDS.
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
    """Steps that double from `base_seconds` to `cap_seconds`. Each delay is a random time between
    half a step and one and a half steps: a fleet spreads out, and at most five attempts fall into
    the time of ten first steps.

    `random`: returns values in [0, 1)."""

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
            requested = min(max(retry_after_seconds, 0.0), LONGEST_RETRY_AFTER_SECONDS)
            delay = max(delay, requested + self._step * self._random())
        self._step = min(self._step * 2, self._cap)
        return delay

    def reset(self) -> None:
        """Restarts with the first step, after progress."""
        self._step = self._base


def spread(name: str, window_seconds: float) -> float:
    """Returns a time in [0, window) that depends only on the name: a fleet that starts at the same
    moment does not connect at the same moment, and a node that restarts keeps its time."""
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return int.from_bytes(digest) / 2**64 * window_seconds


REQUESTS: Final = 5
WINDOW_SECONDS: Final = 10.0
BUSY_SECONDS: Final = 1.0
"""For a 429 without Retry-After: kube-apiserver requests one second by default."""
EARLY_END_SECONDS: Final = 30.0
"""The least time between two pauses that end early: responses to other requests mean little if
only this watch gets none."""


def _boot_seconds() -> float:
    """This clock also counts the time that the machine is suspended, in which objects change."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class WatchPace(msgspec.Struct, frozen=True):
    """The times of a watch."""

    random: Callable[[], float] = random.random
    clock: Callable[[], float] = _boot_seconds
    wait: Callable[[threading.Event, float], bool] = threading.Event.wait
    """Returns True when the event ended it."""
    watch_seconds: float = 300.0
    """The server is to end a watch after this time, a fifth more or less, so that the watches of a
    fleet do not end together."""
    grace_seconds: float = 15.0
    """A watch that lasts longer by this time is dead."""
    cap_seconds: float = 10.0
    """Pauses after failures grow to this length."""
    return_seconds: float = 2.0
    """A pause ends within this time after the server answers another request of the process
    again."""


class Schedule:
    """When the next request of a watch is sent. All times are of one monotonic clock.

    `random`: returns values in [0, 1).
    `cap_seconds`: the longest step."""

    def __init__(self, random: Callable[[], float], cap_seconds: float) -> None:
        self._failing = Backoff(random, cap_seconds=cap_seconds)
        self._busy = Backoff(random, cap_seconds=cap_seconds)
        self._sent_at: deque[float] = deque(maxlen=REQUESTS)
        self._restarted = False
        self._ended_early_at: float | None = None

    def sends(self, now: float) -> None:
        """Counts a request that is sent now."""
        self._sent_at.append(now)

    def wait(self, now: float) -> float:
        """Returns the seconds until another request may be sent, after success and failure."""
        if len(self._sent_at) < REQUESTS:
            return 0.0
        return max(0.0, self._sent_at[0] + WINDOW_SECONDS + _ROUNDING_SECONDS - now)

    def after(self, error: StoreError | None, *, version_unusable: bool = False) -> float:
        """The seconds to pause after a request that failed, or, without `error`, that succeeded and
        ended too soon.

        `version_unusable`: the next request must not begin at the same version."""
        retry_after = error.retry_after_seconds if error else None
        if isinstance(error, TooManyRequestsError):
            self._failing.reset()
            return self._busy.next(BUSY_SECONDS if retry_after is None else retry_after)
        self._busy.reset()
        if (version_unusable or isinstance(error, GoneError)) and not self._restarted:
            self._restarted = True
            self._failing.reset()
            return 0.0
        return self._failing.next(retry_after)

    def end_early(self, now: float) -> bool:
        """Whether a pause ends early because the server answers other requests again. The steps
        then restart, since the errors of a starting server are soon over."""
        last = self._ended_early_at
        if last is not None and now - last < EARLY_END_SECONDS:
            return False
        self._ended_early_at = now
        self._failing.reset()
        return True

    def progressed(self) -> None:
        """The watch got an event, or lasted as long as requested."""
        self._failing.reset()
        self._busy.reset()
        self._restarted = False


_ROUNDING_SECONDS: Final = 0.001
