"""On how few NUMA nodes, and how close ones, a request fits (peers.md §2.2, LeastNUMANodes)."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Final, TypeAlias

import msgspec

from agent.allocate.zoned.node import ZonedNode
from agent.allocate.zoned.strategies import BEST

Available: TypeAlias = Mapping[str, Mapping[int, int]]
Distances: TypeAlias = tuple[tuple[int, ...], ...]

MOST_STEPS: Final = 30_000
"""Enough for every set of 16 NUMA nodes."""


class Spread(msgspec.Struct, frozen=True):
    """`zones`: ids; `closest`: no other set of so many lies closer together."""

    zones: tuple[int, ...]
    closest: bool


def spread(node: ZonedNode, available: Available, asked: Mapping[str, int]) -> Spread | None:
    """The fewest NUMA nodes that have it together, the closest of these, the first of those. Only
    those count that tell of all that is asked for, also where that is none of it."""
    needed = {name: amount for name, amount in asked.items() if amount}
    rows = [[available[name].get(zone, 0) for zone in node.zones] for name in needed]
    needs = list(needed.values())
    useful = [
        place
        for place, zone in enumerate(node.zones)
        if any(row[place] > 0 for row in rows) and all(zone in available[name] for name in asked)
    ]
    search = _Search(rows, needs, node.distances, useful)
    for count in range(1, len(useful) + 1):
        found = search.best(count)
        if found is not None:
            span, places = found
            closest = span <= _closest(node.distances, count)
            return Spread(tuple(node.zones[place] for place in places), closest)
    return None


def score_of(count: int, closest: bool, max_numa_nodes: int) -> int:
    """Nothing is worse than more NUMA nodes than the topology manager works for."""
    unit = BEST // max_numa_nodes
    return max(0, BEST - count * unit + (unit // 2 if closest else 0))


class _Search:
    """Of the sets of so many places, in lexicographic order, the first of the least span that has
    all that is needed. A branch ends where even the most that can follow is too little, or the
    least too far; after MOST_STEPS of them the best so far counts."""

    def __init__(
        self,
        rows: list[list[int]],
        needs: list[int],
        distances: Distances,
        places: list[int],
    ) -> None:
        self._rows = rows
        self._needs = needs
        self._distances = distances
        self._places = places
        self._nearest = min((distances[i][i] for i in places), default=0)
        pairs = (distances[i][j] + distances[j][i] for i in places for j in places if i < j)
        self._nearest_pair = min(pairs, default=0)
        self._count = self._steps = 0
        self._best: tuple[int, tuple[int, ...]] | None = None

    def best(self, count: int) -> tuple[int, tuple[int, ...]] | None:
        """The sum of distances over all ordered pairs, each place with itself too; and the set."""
        self._count, self._steps, self._best = count, MOST_STEPS, None
        self._extend((), 0, 0, self._needs)
        return self._best

    def _extend(self, chosen: tuple[int, ...], start: int, span: int, missing: list[int]) -> None:
        self._steps -= 1
        more = self._count - len(chosen)
        if not more:
            nearer = self._best is None or span < self._best[0]
            if nearer and all(each <= 0 for each in missing):
                self._best = span, chosen
            return
        pairs = more * len(chosen) + more * (more - 1) // 2
        least = span + more * self._nearest + pairs * self._nearest_pair
        if self._steps < 0 or (self._best is not None and least >= self._best[0]):
            return
        rest = self._places[start:]
        for row, need in zip(self._rows, missing, strict=True):
            if need > 0 and sum(sorted((row[i] for i in rest), reverse=True)[:more]) < need:
                return
        for index in range(start, len(self._places) - more + 1):
            place = self._places[index]
            own = self._distances[place]
            added = own[place] + sum(own[i] + self._distances[i][place] for i in chosen)
            left = [need - row[place] for row, need in zip(self._rows, missing, strict=True)]
            self._extend((*chosen, place), index + 1, span + added, left)


@functools.lru_cache(maxsize=256)
def _closest(distances: Distances, count: int) -> int:
    """The least span of so many NUMA nodes: nodes of one model share the answer."""
    found = _Search([], [], distances, list(range(len(distances)))).best(count)
    return found[0] if found is not None else 0
