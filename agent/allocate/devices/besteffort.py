"""The best set of linked GPUs by go-gpuallocator's policy `besteffort` (devices.md §4.1).

All free GPUs are parted into sets of the wanted size, and one of what remains over; of all ways to
do so the one whose sets have the greatest sum over their pairs wins, and of its sets of full size
the one with the greatest sum. So what is left over is protected before the job itself is served.
Of equals the first in the order of numbers: of partitions, with sets in the order of their first
member, the one whose first differing set has the lower numbers (a set that is the remainder comes
after those that it begins); of sets the one with the lower first member.

The best total of a set of GPUs is made of the best totals of its parts, which are remembered: the
policy's own enumeration has two million partitions of 16 GPUs into pairs, this has 1,596 parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations
from typing import Final

from agent.allocate.bits import members
from agent.allocate.devices.bandwidth import Matrix, checked, pair_sums


class BestEffortTable:
    """Of one matrix, as BandwidthTable. Raises ValueError as that does."""

    def __init__(self, matrix: Matrix) -> None:
        checked(matrix)
        self._count = len(matrix)
        self._sums = pair_sums(matrix)
        self._sized: dict[int, _Parted] = {}
        self._answers: dict[tuple[int, int], int] = {}

    def best(self, free: int, count: int) -> int | None:
        """A mask of `count` of the GPUs in the mask `free`, None where there are fewer."""
        asked = free, count
        answer = self._answers.get(asked)
        if answer is None:
            if not 0 < count <= free.bit_count() or free >> self._count:
                return None
            answer = self._answers[asked] = self._best(free, count)
        return answer

    def prepare(self, count: int) -> None:
        """Makes now what the first query for so many of all GPUs would have to."""
        if 1 < count <= self._count:
            self._of_size(count).total((1 << self._count) - 1)

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

    def _best(self, free: int, count: int) -> int:
        if count == 1:
            return free & -free
        full = [each for each in self._of_size(count).first(free) if each.bit_count() == count]
        return max(full, key=self._sums.__getitem__)


class _Parted:
    """Partitions into sets of one size, 2 or more."""

    def __init__(self, sums: list[int], count: int) -> None:
        self._sums = sums
        self._count = count
        self._totals: dict[int, int] = {0: 0}

    def total(self, mask: int) -> int:
        """The greatest sum that a partition of it has. A remainder is left where the size does not
        divide: in every part of the whole but those from which it was taken already."""
        known = self._totals.get(mask)
        if known is None:
            sums, totals = self._sums, self._totals
            known = 0
            for part in self._parts(mask):
                rest = totals.get(mask ^ part)
                worth = sums[part] + (self.total(mask ^ part) if rest is None else rest)
                if worth > known:
                    known = worth
            totals[mask] = known
        return known

    def first(self, mask: int) -> Iterator[int]:
        """The sets of the first partition with that sum."""
        while mask:
            wanted = self.total(mask)
            sums, total = self._sums, self.total
            equals = (
                each for each in self._parts(mask) if sums[each] + total(mask ^ each) == wanted
            )
            part = min(equals, key=_order)
            yield part
            mask ^= part

    def _parts(self, mask: int) -> Iterable[int]:
        """The sets that may hold the lowest member: of full size, or the remainder."""
        width = mask.bit_count()
        if width < self._count:
            return (mask,)
        lowest, *others = (1 << place for place in members(mask))
        full = [lowest + sum(each) for each in combinations(others, self._count - 1)]
        if remainder := width % self._count:
            full += [lowest + sum(each) for each in combinations(others, remainder - 1)]
        return full


def _order(mask: int) -> tuple[int, ...]:
    """Numbers in turn; where one set begins another, the longer is first."""
    return (*members(mask), _BEYOND)


_BEYOND: Final = 1 << 16
