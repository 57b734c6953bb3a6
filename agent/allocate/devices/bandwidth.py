"""The best set of linked GPUs for one job: no slow link in it, and good sets left for others.

The objective `bandwidth`, in this order: the slowest pair of the set is as fast as can be (ring
collectives run at its speed), then the sum over its pairs is greatest, then the sum over the pairs
of what stays free, then the numbers are lowest (the first differing one decides). Sums that are
equal, as all are where switches link every card to every other, are told apart by how near the
cards are to each other.

All sets of one size are ordered by the first two once a matrix; a query walks that order to the
first set that is free, or tries all free sets where these are few. Sets that tie are told apart by
what they leave: the links within the rest are all links but those that the set's members have, so
the set whose members have the least to others of the free ones leaves most.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from typing import Final

from agent.allocate.bits import members

MOST: Final = 16
"""GPUs: a table has an entry for each of their sets."""

REMEMBERED: Final = 1 << 15
"""Answers of a table, so that it does not grow without end."""

FASTEST: Final = 1 << 48
"""Of a pair, in any unit; sums over all pairs stay within 64 bits."""

Matrix = tuple[tuple[int, ...], ...]
"""The value of each pair, symmetric, 0 or more; the diagonal is ignored."""


class BandwidthTable:
    """Of one matrix; share it between the nodes that have the same. Not changed by queries but for
    what it remembers. Raises ValueError for a matrix that is too large, or lopsided."""

    def __init__(self, matrix: Matrix, near: Matrix | None = None) -> None:
        """`near`: how near the cards of each pair are, more is nearer; None: all alike."""
        checked(matrix)
        self._count = len(matrix)
        self._matrix = matrix if near is None else _refined(matrix, near)
        self._sums = pair_sums(self._matrix)
        self._slowest = _slowest(matrix)
        self._sized: dict[int, _Sized] = {}
        self._answers: dict[tuple[int, int], int] = {}

    def best(self, free: int, count: int) -> int | None:
        """A mask of `count` of the GPUs in the mask `free`, None where there are fewer."""
        asked = free, count
        answer = self._answers.get(asked)
        if answer is None:
            if not 0 < count <= free.bit_count() or free >> self._count:
                return None
            if len(self._answers) >= REMEMBERED:
                self._answers.clear()
            answer = self._answers[asked] = self._best(free, count)
        return answer

    def prepare(self, count: int) -> None:
        """Makes now what the first query for so many GPUs would have to."""
        self._of_size(count)

    def worth(self, chosen: int, free: int) -> tuple[int, int, int]:
        """By which a set of `free` is compared with others of its size: more is better."""
        return self._slowest[chosen], self._sums[chosen], self._sums[free & ~chosen]

    def _best(self, free: int, count: int) -> int:
        width = free.bit_count()
        if count == width:
            return free
        sized = self._of_size(count)
        subsets = math.comb(width, count)
        # Were free sets spread evenly over the order, the first would come after all / free ones.
        if subsets * subsets <= len(sized.ordered) or subsets <= _FEW:
            ties: Iterable[int] = _tied(_subsets(free, count), sized.ranks)
        else:
            ties = sized.first_free(free)
        return self._leaving_most(free, count, ties)

    def _of_size(self, count: int) -> _Sized:
        sized = self._sized.get(count)
        if sized is None:
            sized = _Sized(self._count, count, self._slowest, self._sums)
            self._sized[count] = sized
        return sized

    def _leaving_most(self, free: int, count: int, ties: Iterable[int]) -> int:
        """Compares sets of equal value, lowest numbers first; ends at the first that no other
        beats."""
        found = iter(ties)
        chosen = next(found)
        second = next(found, None)
        if second is None:
            return chosen
        places = tuple(members(free))
        ties_to_free = [sum(self._matrix[i][j] for j in places if i != j) for i in places]
        least = sum(sorted(ties_to_free)[:count])
        weights = dict(zip((1 << place for place in places), ties_to_free, strict=True))
        lowest = _weight(chosen, weights)
        other: int | None = second
        while other is not None and lowest > least:
            weight = _weight(other, weights)
            if weight < lowest:
                chosen, lowest = other, weight
            other = next(found, None)
        return chosen


_FEW: Final = 24
"""At most so many free sets are all tried; with more, the order of sets is walked."""


class _Sized:
    """All sets of one size: `ordered` by the slowest pair, then the sum, then lowest numbers;
    `ranks`: by mask its place among the distinct values of the first two."""

    def __init__(
        self, places: int, count: int, slowest: Sequence[int], sums: Sequence[int]
    ) -> None:
        masks = list(_subsets((1 << places) - 1, count))
        values = {mask: (-slowest[mask], -sums[mask]) for mask in masks}
        numbers = {value: number for number, value in enumerate(sorted(set(values.values())))}
        self.ranks = {mask: numbers[value] for mask, value in values.items()}
        self.ordered = sorted(masks, key=self.ranks.__getitem__)

    def first_free(self, free: int) -> Iterator[int]:
        """The sets of the best rank that is free, in order."""
        blocked = ~free
        best = None
        for mask in self.ordered:
            if mask & blocked:
                continue
            rank = self.ranks[mask]
            if best is None:
                best = rank
            elif rank != best:
                return
            yield mask


def checked(matrix: Matrix) -> None:
    """Raises ValueError with the fault."""
    count = len(matrix)
    if count > MOST:
        raise ValueError(f"links of {count} GPUs: at most {MOST}")
    for i, row in enumerate(matrix):
        if len(row) != count:
            raise ValueError(f"links of GPU {i}: {len(row)} for {count} GPUs")
        for j, value in enumerate(row):
            if i != j and not (0 <= value <= FASTEST and value == matrix[j][i]):
                raise ValueError(f"links of GPUs {i} and {j}: {value} and {matrix[j][i]}")


def _refined(matrix: Matrix, near: Matrix) -> Matrix:
    """Sums of these compare as those of the first and, where they are equal, of the second."""
    checked(near)
    step = 1 + sum(map(sum, near))
    return tuple(
        tuple(value * step + nearness for value, nearness in zip(*rows, strict=True))
        for rows in zip(matrix, near, strict=True)
    )


def pair_sums(matrix: Matrix) -> list[int]:
    """By mask, the sum over the pairs of its members."""
    sums = [0] * (1 << len(matrix))
    for mask in range(len(sums)):
        high, low = _ends(mask)
        if high != low:
            pair = matrix[high.bit_length() - 1][low.bit_length() - 1]
            sums[mask] = pair + sums[mask ^ high] + sums[mask ^ low] - sums[mask ^ high ^ low]
    return sums


def _slowest(matrix: Matrix) -> list[int]:
    """By mask, the slowest pair of its members; 0 without a pair."""
    slowest = [0] * (1 << len(matrix))
    for mask in range(len(slowest)):
        high, low = _ends(mask)
        if high != low:
            pair = matrix[high.bit_length() - 1][low.bit_length() - 1]
            if mask != high | low:
                pair = min(pair, slowest[mask ^ high], slowest[mask ^ low])
            slowest[mask] = pair
    return slowest


def _ends(mask: int) -> tuple[int, int]:
    """The highest and the lowest member, as masks."""
    return (1 << mask.bit_length()) >> 1, mask & -mask


def _subsets(mask: int, count: int) -> Iterator[int]:
    """Those of `count` members, lowest numbers first."""
    return map(sum, combinations([1 << place for place in members(mask)], count))


def _tied(masks: Iterable[int], ranks: dict[int, int]) -> list[int]:
    """Those of the best rank, in the order given."""
    found = list(masks)
    best = min(map(ranks.__getitem__, found))
    return [mask for mask in found if ranks[mask] == best]


def _weight(mask: int, weights: dict[int, int]) -> int:
    total = 0
    while mask:
        low = mask & -mask
        total += weights[low]
        mask ^= low
    return total
