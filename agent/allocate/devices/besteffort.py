"""The best set of linked GPUs by go-gpuallocator's policy `besteffort`
(gpuallocator/besteffort_policy.go, Allocate), and the choice between this objective and
`bandwidth`.

All free GPUs are partitioned into sets of the wanted size and one of the remainder; of all
partitions the one wins whose sets have the greatest sum over their pairs, and of its sets of
full size the one with the greatest sum. So the policy protects the rest before it serves the
job. Of equal partitions, with sets in the order of their first member, the one wins whose first
differing set has the lower numbers (a remainder comes after the sets that it is a prefix of); of
equal sets the one with the lower first member.

The best partition of a set of GPUs consists of those of its parts, which are cached: the
policy's own enumeration has two million partitions of 16 GPUs into pairs, this one has some
thousand parts."""

from __future__ import annotations

from array import array
from functools import lru_cache
from itertools import combinations
from typing import Final, Protocol

from agent.allocate.bits import members
from agent.allocate.devices.bandwidth import BandwidthTable, Matrix, checked, pair_sums
from agent.model.policies import GpuObjective


class BestEffortTable:
    """Of one matrix, as BandwidthTable. Raises ValueError as that does."""

    def __init__(self, matrix: Matrix) -> None:
        checked(matrix)
        self._count = len(matrix)
        self._sums = pair_sums(matrix)
        self._sized: dict[int, _Parted] = {}

    def best(self, free: int, count: int) -> int | None:
        """A mask of `count` of the GPUs in the mask `free`, None where there are fewer. What was
        not asked before, or prepared, may take milliseconds where there are more than eight."""
        if not 0 < count <= free.bit_count() or free >> self._count:
            return None
        if count == 1:
            return free & -free
        return self._of_size(count).best(free)

    def prepare(self, count: int) -> None:
        """Makes now what queries for so many would have to: seconds for 16 GPUs."""
        if 1 < count <= self._count:
            for free in range(1 << self._count):
                self._of_size(count).total(free)

    def worth(self, chosen: int, free: int) -> tuple[int, int, int]:
        """By which a set of `free` is compared with others of its size: more is better."""
        count = chosen.bit_count()
        rest = self._of_size(count).total(free & ~chosen) if count > 1 else 0
        return self._sums[chosen] + rest, self._sums[chosen], 0

    def _of_size(self, count: int) -> _Parted:
        sized = self._sized.get(count)
        if sized is None:
            sized = self._sized[count] = _Parted(self._sums, count)
        return sized


class _Parted:
    """The best partitions into sets of one size, 2 or more: by mask the greatest sum, -1 while
    unknown, and the set that the first such partition gives, 0 for none."""

    def __init__(self, sums: list[int], count: int) -> None:
        self._sums = sums
        self._count = count
        self._totals = array("q", [-1]) * len(sums)
        self._chosen = array("q", [0]) * len(sums)
        self._totals[0] = 0

    def best(self, mask: int) -> int:
        self.total(mask)
        return self._chosen[mask]

    def total(self, mask: int) -> int:
        """A remainder is left where the size does not divide: in every part of the whole but those
        from which it was taken already."""
        known = self._totals[mask]
        if known >= 0:
            return known
        sums, totals = self._sums, self._totals
        full, remainders = self._parts(mask)
        for part in (*full, *remainders):
            if totals[mask ^ part] < 0:
                self.total(mask ^ part)
        known = taken = 0
        for parts in filter(None, (full, remainders)):
            worths = [sums[part] + totals[mask ^ part] for part in parts]
            most = max(worths)
            first = parts[worths.index(most)]
            if not taken or most > known or (most == known and _order(first) < _order(taken)):
                known, taken = most, first
        totals[mask] = known
        self._chosen[mask] = self._better(taken, self._chosen[mask ^ taken])
        return known

    def _better(self, first: int, later: int) -> int:
        """Of the part that has the lowest member, and what is chosen of the others."""
        if first.bit_count() < self._count:
            return later
        return first if not later or self._sums[first] >= self._sums[later] else later

    def _parts(self, mask: int) -> tuple[list[int], list[int]]:
        """The sets that may hold the lowest member, in order: of full size, and the remainder."""
        lowest, *others = (1 << place for place in members(mask))
        width = len(others) + 1
        if width < self._count:
            return [], [mask]
        full = [lowest + each for each in map(sum, combinations(others, self._count - 1))]
        size = width % self._count
        return full, [lowest + sum(each) for each in combinations(others, size - 1)] if size else []


def _order(mask: int) -> tuple[int, ...]:
    """Numbers in turn; where one set begins another, the longer is first."""
    return (*members(mask), _BEYOND)


_BEYOND: Final = 1 << 16


class GpuTable(Protocol):
    """Masks are over the places of GPUs in the matrix."""

    def __hash__(self) -> int:
        """A table is itself and no other."""

    def best(self, free: int, count: int) -> int | None:
        """The best `count` of `free`, None where there are fewer."""

    def prepare(self, count: int) -> None:
        """Makes now what the first query for so many would have to."""

    def worth(self, chosen: int, free: int) -> tuple[int, int, int]:
        """By which a set of `free` is compared with others of its size: more is better."""


MODELS: Final = 64
"""Different matrices that are remembered at a time; a cluster has one for each kind of node."""


@lru_cache(maxsize=MODELS)
def table(
    matrix: Matrix,
    objective: GpuObjective = GpuObjective.BANDWIDTH,
    near: Matrix | None = None,
) -> GpuTable:
    """The table that all nodes with this matrix share; `near` as in BandwidthTable, none for
    `besteffort`, whose points include it. Raises ValueError for a matrix of too many GPUs, or one
    that is not symmetric."""
    if objective is GpuObjective.BESTEFFORT:
        return BestEffortTable(matrix)
    return BandwidthTable(matrix, near)
