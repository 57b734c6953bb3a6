"""How long the pods that are not BE wait for CPU and memory (PSI), for evictions."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import Final

from agent.usage.sampler import MEMORY_SECONDS, Counted

WINDOW_SECONDS: Final = 60.0
_READINGS: Final = round(WINDOW_SECONDS / MEMORY_SECONDS) + 1
_STALE_SECONDS: Final = 3 * MEMORY_SECONDS


class PodPressure:
    """Keeps the counters of the last WINDOW_SECONDS."""

    def __init__(self) -> None:
        self._readings: deque[Counted] = deque(maxlen=_READINGS)

    def add(self, counted: Counted) -> None:
        """Takes the newest counters, if they are new."""
        last = self._readings[-1].at if self._readings else 0.0
        if counted.at > last:
            if counted.at - last > _STALE_SECONDS:
                self._readings.clear()
            self._readings.append(counted)

    def percent(self, resource: str, pods: Collection[str], now: float) -> float | None:
        """The part of the window in which some task of the pod waited that waited most; None while
        it is not known, as on a kernel without PSI of cgroups. Pods that limits of their own have
        slowed down do not count: their quota for CPU, their `memory.high` or `memory.max` for
        memory. No eviction helps them.

        `pods`: the uids of the pods that count.
        `now`: on the clock of the counters."""
        if len(self._readings) < 2 or now - self._readings[-1].at > _STALE_SECONDS:
            return None
        first, last = self._readings[0], self._readings[-1]
        key, seconds = (resource, "some"), last.at - first.at
        alone = _throttled(first, last) if resource == "cpu" else _limited(first, last)
        waited = [
            last.waits.pods[uid][key] - first.waits.pods[uid][key]
            for uid in pods
            if uid not in alone
            and key in last.waits.pods.get(uid, {})
            and key in first.waits.pods.get(uid, {})
        ]
        return 100 * max(0.0, *waited) / seconds if waited else None


def _throttled(first: Counted, last: Counted) -> frozenset[str]:
    """The uids of the pods that a quota has throttled."""
    before = first.waits.quotas
    return frozenset(
        uid
        for (uid, name), quota in last.waits.quotas.items()
        if quota.seconds > (before[uid, name].seconds if (uid, name) in before else 0.0)
    )


def _limited(first: Counted, last: Counted) -> frozenset[str]:
    """The uids of the pods that were at a limit of memory of their own."""
    before = first.waits.limits
    return frozenset(
        uid for uid, reached in last.waits.limits.items() if reached > before.get(uid, reached)
    )
