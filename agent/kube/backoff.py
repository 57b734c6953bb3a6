"""How long to wait before asking again."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

BASE_SECONDS = 1.0
CAP_SECONDS = 60.0
# A server may ask for patience, not for our absence.
LONGEST_RETRY_AFTER_SECONDS = 300.0


class Backoff:
    """Steps that double from `base` to `cap`. Each delay lies anywhere in one whole step that
    begins at half of it, so a fleet spreads out, and no luck makes more than five attempts in ten
    of the first step's seconds. `random` gives values in [0, 1)."""

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
        """Seconds to wait now; never less than the server asked for."""
        delay = self._step * (0.5 + self._random())
        if retry_after_seconds is not None:
            asked = min(max(retry_after_seconds, 0.0), LONGEST_RETRY_AFTER_SECONDS)
            delay = max(delay, asked + self._step * self._random())
        self._step = min(self._step * 2, self._cap)
        return delay

    def reset(self) -> None:
        """There was progress."""
        self._step = self._base


def spread(name: str, window_seconds: float) -> float:
    """A moment in [0, window) that belongs to the name: a fleet that starts at once does not
    connect at once, and a node that restarts keeps its place."""
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return int.from_bytes(digest) / 2**64 * window_seconds
