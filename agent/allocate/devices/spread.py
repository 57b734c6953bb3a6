"""The best set of linked GPUs that has at least one of each group, as of each PCIe switch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import combinations
from typing import Final

from agent.allocate.bits import members
from agent.allocate.devices.objectives import GpuTable

REMEMBERED: Final = 4096
"""Answers: of 16 GPUs one may take some milliseconds."""


@lru_cache(maxsize=REMEMBERED)
def best_spread(table: GpuTable, free: int, count: int, groups: tuple[int, ...]) -> int | None:
    """Of `count` of the places in `free`; masks, as those of the groups, which have no place in
    common. Of equals the lowest numbers, None where there is no such set."""
    parts = [_places(free & group) for group in groups]
    beside = _places(free & ~sum(groups))
    best: int | None = None
    most: tuple[int, ...] = ()
    for chosen in _with_each(parts, beside, count):
        mask = sum(chosen)
        worth = table.worth(mask, free)
        if best is None or worth > most or (worth == most and _lower(mask, best)):
            best, most = mask, worth
    return best


def _lower(one: int, other: int) -> bool:
    """The first number that differs is in the first."""
    differ = one ^ other
    return bool(differ & -differ & one)


def _places(mask: int) -> tuple[int, ...]:
    """Each as a mask of its own."""
    return tuple(1 << place for place in members(mask))


def _with_each(
    parts: Sequence[tuple[int, ...]], beside: tuple[int, ...], count: int
) -> Iterator[tuple[int, ...]]:
    """Sets of `count` with at least one of each part; the others may be any."""
    if not parts:
        yield from combinations(beside, count)
        return
    first, *others = parts
    for size in range(1, min(len(first), count - len(others)) + 1):
        for chosen in combinations(first, size):
            for rest in _with_each(others, beside, count - size):
                yield (*chosen, *rest)
