"""Which NUMA masks come out of intersecting one mask of each list, without trying them all.

Two ways. Folding list by list over distinct masks is cheap for short lists. For long ones over few
nodes, count instead: with u(m) = how many masks of a list contain m, the product of all lists'
u(m) is how many combinations have an intersection that contains m, and inclusion-exclusion over
the nodes turns that into how many have exactly m. Both sums over supersets run on all masks at
once, as 64-bit lanes of one int, a step a node.
"""

from __future__ import annotations

import functools
import math
from array import array
from collections.abc import Iterable, Sequence
from typing import Final

from agent.allocate.bits import members

_LANE_NODES: Final = 10
_FOLD_PAIRS: Final = 1500
_LANE_BITS: Final = 64
_LANE_MAX: Final = 1 << 63


def intersections(families: Sequence[Iterable[int]], full: int) -> set[int]:
    """All non-empty intersections of one mask from each family; `full` alone where there is none.

    Masks must lie inside `full`. Exact; the work is bounded by the number of distinct results
    times the longest list, and does not depend on the list lengths' product."""
    distinct = sorted(
        (family for family in (frozenset(family) for family in families) if family != {full}),
        key=len,
    )
    reached = {full}
    start = 0
    while start < len(distinct):
        if full.bit_count() <= _LANE_NODES and len(reached) * len(distinct[start]) > _FOLD_PAIRS:
            end = start
            combinations = len(reached)
            while end < len(distinct) and combinations * len(distinct[end]) < _LANE_MAX:
                combinations *= len(distinct[end])
                end += 1
            reached = _counted([frozenset(reached), *distinct[start:end]], full)
            start = end
        else:
            reached = {mine & other for mine in reached for other in distinct[start]}
            reached.discard(0)
            start += 1
        if not reached:
            break
    return reached


class _Lanes:
    """Masks of a machine by lane: lane i holds the subset of nodes whose places are i's bits."""

    def __init__(self, full: int) -> None:
        nodes = list(members(full))
        self.count = 1 << len(nodes)
        self.masks = [0]
        for node in nodes:
            self.masks += [mask | 1 << node for mask in self.masks]
        self.lane = {mask: lane for lane, mask in enumerate(self.masks)}
        every = (1 << _LANE_BITS) - 1
        self.without = [
            sum(every << lane * _LANE_BITS for lane in range(self.count) if not lane >> place & 1)
            for place in range(len(nodes))
        ]

    def supersets(self, family: Iterable[int]) -> int:
        """Per lane, how many masks of the family contain its mask."""
        held = array("Q", bytes(self.count * 8))
        for mask in family:
            held[self.lane[mask]] = 1
        counts = int.from_bytes(held.tobytes(), _ORDER)
        for place, without in enumerate(self.without):
            counts += counts >> (_LANE_BITS << place) & without
        return counts

    def exactly(self, containing: array[int]) -> list[int]:
        """Per lane, from how many contain its mask, how many are it."""
        counts = int.from_bytes(containing.tobytes(), _ORDER)
        for place, without in enumerate(self.without):
            counts -= counts >> (_LANE_BITS << place) & without
        return self.unpack(counts)

    def unpack(self, counts: int) -> list[int]:
        return memoryview(counts.to_bytes(self.count * 8, _ORDER)).cast("Q").tolist()


_ORDER: Final = "little"
_lanes: Final = functools.lru_cache(maxsize=32)(_Lanes)


def _counted(families: Sequence[frozenset[int]], full: int) -> set[int]:
    lanes = _lanes(full)
    held = [lanes.unpack(lanes.supersets(family)) for family in families]
    exact = lanes.exactly(array("Q", map(math.prod, zip(*held, strict=True))))
    reached = {mask for mask, count in zip(lanes.masks, exact, strict=True) if count}
    reached.discard(0)
    return reached
