"""Who presses on a pod that is stalled for memory or disks, who shares its graphics card, and who
uses the L3 caches.

That a pod is stalled, the kernel says (PSI); without PSI, accesses to memory that wait for a disk
say it. Why, it does not say. For memory the suspects are those who grew meanwhile, and those who
use more than they request; for disks those who moved bytes on the disks of the pod. The pod itself
is one of them: it may stall itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Final

import msgspec

from agent.model.devices.holding import GpuUse
from agent.usage.contention import Party, PartyKind
from agent.usage.resctrl import Monitored

MEMORY: Final = "memory"
DISKS: Final = "io"
LONG_STALL: Final = 0.1
"""A longer stall, in seconds of each second, is too long."""
MANY_FAULTS: Final = 50.0
"""So many major page faults a second are too many, where there is no PSI."""
BUSY_PERCENT: Final = 90
"""From here on a card has no time left for both."""
_LEAST_RATE: Final = 1 << 20
"""Who moves or grows by fewer bytes a second is not named."""


class Consumption(msgspec.Struct, frozen=True):
    """What a pod or unit has and has done, by counters that only grow, but for the memory."""

    memory_bytes: float | None = None
    """With page cache; None if it is not known."""
    disk_bytes: Mapping[str, int] = {}
    """Read and written, by disk."""
    stalled_seconds: Mapping[str, float] = {}
    """By resource; empty without PSI."""
    major_faults: int | None = None


class Pressure(msgspec.Struct, frozen=True):
    """A pod that is stalled too long."""

    pod: Party
    resource: str
    stalled: float
    """Seconds of each second; 0 without PSI."""
    faults: float
    """Major page faults a second."""
    takers: tuple[tuple[Party, float], ...]
    """Bytes a second by which they grew, or that they moved on the disks of the pod; the largest
    first. The pod itself may be one of them."""
    above: tuple[tuple[Party, float], ...] = ()
    """Bytes of memory above the request, the largest first."""


def pressures(
    before: Mapping[Party, Consumption],
    now: Mapping[Party, Consumption],
    seconds: float,
    requested_bytes: Callable[[], Mapping[Party, int]] = dict,
) -> tuple[Pressure, ...]:
    """The pods that were stalled too long between two moments, by name.

    `requested_bytes`: returns the memory that pods request, as far as it is known; called only if a
        pod is stalled for memory."""
    both = {party: (before[party], now[party]) for party in sorted(now) if party in before}
    if seconds <= 0:
        return ()
    stalled = []
    # When one pod is stalled most are, and their suspects are the same.
    grown = cache(lambda: _grown(both, seconds))
    above = cache(lambda: _above(now, requested_bytes()))
    moved = cache(lambda disks: _moved(disks, both, seconds))
    for pod, (old, new) in both.items():
        if pod.kind is not PartyKind.POD:
            continue
        faults = ((new.major_faults or 0) - (old.major_faults or 0)) / seconds
        for resource in (MEMORY, DISKS):
            stall = _since(old.stalled_seconds, new.stalled_seconds, resource) / seconds
            without_psi = resource == MEMORY and not new.stalled_seconds
            if stall >= LONG_STALL or (without_psi and faults >= MANY_FAULTS):
                takers = grown() if resource == MEMORY else moved(_disks(pod, both))
                over = above() if resource == MEMORY else ()
                stalled.append(Pressure(pod, resource, stall, faults, takers, over))
    return tuple(stalled)


_Both = Mapping[Party, tuple[Consumption, Consumption]]
_Ranking = tuple[tuple[Party, float], ...]


def _grown(both: _Both, seconds: float) -> _Ranking:
    return _ranked(
        (party, (new.memory_bytes - old.memory_bytes) / seconds)
        for party, (old, new) in both.items()
        if old.memory_bytes is not None and new.memory_bytes is not None
    )


def _above(now: Mapping[Party, Consumption], requested_bytes: Mapping[Party, int]) -> _Ranking:
    return _ranked(
        (party, memory_bytes - requested)
        for party, requested in requested_bytes.items()
        if party in now and (memory_bytes := now[party].memory_bytes) is not None
    )


def _disks(pod: Party, both: _Both) -> frozenset[str]:
    """Those that the pod has used; all disks, if they are not known."""
    old, new = both[pod]
    used = (disk for disk in new.disk_bytes if _since(old.disk_bytes, new.disk_bytes, disk) > 0)
    return frozenset(used) or frozenset(disk for _, new in both.values() for disk in new.disk_bytes)


def _moved(disks: frozenset[str], both: _Both, seconds: float) -> _Ranking:
    return _ranked(
        (party, sum(_since(old.disk_bytes, new.disk_bytes, disk) for disk in disks) / seconds)
        for party, (old, new) in both.items()
    )


def _since(old: Mapping[str, float], new: Mapping[str, float], name: str) -> float:
    """A counter that is new has counted all since then."""
    return max(0.0, new.get(name, 0.0) - old.get(name, 0.0))


def _ranked(amounts: Iterable[tuple[Party, float]]) -> _Ranking:
    large = (item for item in amounts if item[1] >= _LEAST_RATE)
    return tuple(sorted(large, key=lambda item: (-item[1], item[0])))


class SharedCard(msgspec.Struct, frozen=True):
    """A graphics card that is busy, and that a pod shares."""

    pod: str
    """Its title."""
    uuid: str
    busy_percent: int
    others: tuple[tuple[str, int | None], ...]
    """The titles of the others and the part of the time in which they use the card, in percent;
    None if the driver does not say. The title is "" for processes outside of pods."""


def shared_cards(uses: Iterable[GpuUse], busy_percent: Mapping[str, int]) -> tuple[SharedCard, ...]:
    """For each pod the busy cards that it shares.

    `busy_percent`: by uuid of the card."""
    by_card: dict[str, dict[str, int | None]] = {}
    for use in uses:
        if busy_percent.get(use.uuid, 0) >= BUSY_PERCENT:
            pods = by_card.setdefault(use.uuid, {})
            percents = [
                percent for percent in (pods.get(use.pod), use.sm_percent) if percent is not None
            ]
            pods[use.pod] = sum(percents) if percents else None
    shared = []
    for uuid, pods in sorted(by_card.items()):
        for pod in sorted(pods):
            others = [(other, percent) for other, percent in pods.items() if other != pod]
            if pod and others:
                others.sort(key=lambda other: (-(other[1] or 0), other[0]))
                shared.append(SharedCard(pod, uuid, busy_percent[uuid], tuple(others)))
    return tuple(shared)


class CacheUse(msgspec.Struct, frozen=True):
    """What a group of resctrl does to an L3 cache."""

    group: str
    cache_id: str
    memory_bytes: float
    """Between the cache and memory, a second."""
    held_bytes: int
    """Of the cache; 0 if the machine does not say it."""


def cache_uses(
    before: Mapping[tuple[str, str], Monitored],
    now: Mapping[tuple[str, str], Monitored],
    seconds: float,
) -> tuple[CacheUse, ...]:
    """What each group of resctrl did between two moments, the most first.

    `before`, `now`: by group and L3 cache."""
    uses = [
        CacheUse(*key, (moved - earlier) / seconds, new.occupied_bytes or 0)
        for key, new in now.items()
        if seconds > 0 and key in before
        for moved, earlier in ((new.total_bytes, before[key].total_bytes),)
        if moved is not None and earlier is not None and moved - earlier >= _LEAST_RATE * seconds
    ]
    return tuple(sorted(uses, key=lambda use: (-use.memory_bytes, use.group, use.cache_id)))
