"""The best set of linked GPUs for one job, by one of two objectives. It is read from a table over
all sets of a machine's GPUs, which nodes with the same matrix of links share.

`bandwidth` compares in this order: the slowest pair of the set, as ring collectives run at its
speed; the sum over its pairs; the sum over the pairs of the GPUs that stay free; the numbers,
lowest first (the first different one decides). Equal sums, as on machines whose switches link all
cards, are compared by how near the cards are to each other. All sets of one size are ordered by the
first two criteria once per matrix; a query walks that order to the first set that is free, or tries
all free sets if there are few. Sets that tie are compared by the links that stay free: these are
all links except those of the set's members, so the set whose members have the weakest links to the
other free GPUs leaves most.

`besteffort` is go-gpuallocator's policy (gpuallocator/besteffort_policy.go, Allocate). All free
GPUs are partitioned into sets of the wanted size and one of the remainder; of all partitions the
one wins whose sets have the greatest sum over their pairs, and of its sets of full size the one
with the greatest sum. So the links of the remaining GPUs count before those of the job. Of equal
partitions, with sets in the order of their first member, the one wins whose first differing set has
the lower numbers (a remainder comes after the sets that it is a prefix of); of equal sets the one
with the lower first member. The best partition of a set of GPUs consists of those of its parts,
which are cached: the policy's own enumeration has two million partitions of 16 GPUs into pairs,
this one has some thousand parts.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import combinations
from typing import Final, Protocol

from agent.model.cpu.cpuset import members
from agent.model.cpu.policies import GpuObjective

Matrix = tuple[tuple[int, ...], ...]
"""The value of each pair, symmetric, 0 or more; the diagonal is ignored."""

MAX_GPUS: Final = 16
"""GPUs: a table has an entry for each of their sets."""

_FASTEST: Final = 1 << 48
"""The largest value of a pair, in any unit; sums over all pairs stay within 64 bits."""

_CACHED_RESULTS: Final = 1 << 15
"""The size of a table's cache of results."""

_MODELS: Final = 32
"""The number of cached matrices; a cluster has one for each kind of node."""

_FEW: Final = 24
"""With at most this number of free sets all are tried; with more, the order of sets is walked."""

_BEYOND: Final = 1 << 16


class GpuTable(Protocol):
    """Masks are over the places of GPUs in the matrix."""

    def __hash__(self) -> int:
        """Tables are compared by identity."""

    def best(self, free: int, count: int) -> int | None:
        """The best `count` of `free`, None if there are fewer."""

    def steps(self, free: int, count: int) -> int:
        """The steps of a query that was never made, see `allocate.steps`."""

    def score(self, chosen: int, free: int) -> tuple[int, int, int]:
        """The key by which sets of `free` of one size are compared: more is better."""


@lru_cache(maxsize=_MODELS)
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


class BandwidthTable:
    """The table of one matrix, to be shared by nodes with the same matrix. Queries change only its
    cache. Raises ValueError for a matrix that is too large or not symmetric."""

    def __init__(self, matrix: Matrix, near: Matrix | None = None) -> None:
        """`near`: how near the cards of each pair are, more is nearer; None: all are equally
        near."""
        _checked(matrix)
        self._count = len(matrix)
        self._matrix = matrix if near is None else _refined(matrix, near)
        self._sums = _pair_sums(self._matrix)
        self._slowest = _slowest(matrix)
        self._sized: dict[int, _Sized] = {}
        self._answers: dict[tuple[int, int], int] = {}

    def best(self, free: int, count: int) -> int | None:
        """A mask of `count` of the GPUs in the mask `free`, None if there are fewer."""
        requested = free, count
        answer = self._answers.get(requested)
        if answer is None:
            if not 0 < count <= free.bit_count() or free >> self._count:
                return None
            if len(self._answers) >= _CACHED_RESULTS:
                self._answers.clear()
            answer = self._answers[requested] = self._best(free, count)
        return answer

    def steps(self, free: int, count: int) -> int:
        return math.comb(free.bit_count(), count) // 4

    def score(self, chosen: int, free: int) -> tuple[int, int, int]:
        """The key by which sets of `free` of one size are compared: more is better."""
        return self._slowest[chosen], self._sums[chosen], self._sums[free & ~chosen]

    def _best(self, free: int, count: int) -> int:
        width = free.bit_count()
        if count == width:
            return free
        sized = self._of_size(count)
        subsets = math.comb(width, count)
        # If free sets are spread evenly over the order, the first one comes after all / free sets.
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


class BestEffortTable:
    """The table of one matrix. Raises ValueError in the same cases as BandwidthTable."""

    def __init__(self, matrix: Matrix) -> None:
        _checked(matrix)
        self._count = len(matrix)
        self._sums = _pair_sums(matrix)
        self._sized: dict[int, _Parted] = {}

    def best(self, free: int, count: int) -> int | None:
        """A mask of `count` of the GPUs in the mask `free`, None if there are fewer. A query that
        was neither made before nor prepared may take milliseconds with more than eight GPUs."""
        if not 0 < count <= free.bit_count() or free >> self._count:
            return None
        if count == 1:
            return free & -free
        return self._of_size(count).best(free)

    def steps(self, free: int, count: int) -> int:
        width = free.bit_count()
        return 0 if count == 1 else (width << width) // 64

    def score(self, chosen: int, free: int) -> tuple[int, int, int]:
        """The key by which sets of `free` of one size are compared: more is better."""
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

    def __init__(self, sums: Sequence[int], count: int) -> None:
        self._sums = sums
        self._count = count
        self._totals = array("q", [-1]) * len(sums)
        self._chosen = array("q", [0]) * len(sums)
        self._totals[0] = 0

    def best(self, mask: int) -> int:
        self.total(mask)
        return self._chosen[mask]

    def total(self, mask: int) -> int:
        """If the size does not divide the number of GPUs, a remainder is left in every part from
        which it was not taken yet."""
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
            scores = [sums[part] + totals[mask ^ part] for part in parts]
            most = max(scores)
            first = parts[scores.index(most)]
            if not taken or most > known or (most == known and _order(first) < _order(taken)):
                known, taken = most, first
        totals[mask] = known
        self._chosen[mask] = self._better(taken, self._chosen[mask ^ taken])
        return known

    def _better(self, first: int, later: int) -> int:
        """Compares by the part with the lowest member, then by the choice among the others."""
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
    """Compares numbers in turn; if one set is a prefix of another, the longer one is first."""
    return (*members(mask), _BEYOND)


def _checked(matrix: Matrix) -> None:
    """Raises ValueError with the fault."""
    count = len(matrix)
    if count > MAX_GPUS:
        raise ValueError(f"links of {count} GPUs: at most {MAX_GPUS}")
    for i, row in enumerate(matrix):
        if len(row) != count:
            raise ValueError(f"links of GPU {i}: {len(row)} for {count} GPUs")
        for j, value in enumerate(row):
            if i != j and not (0 <= value <= _FASTEST and value == matrix[j][i]):
                raise ValueError(f"links of GPUs {i} and {j}: {value} and {matrix[j][i]}")


def _refined(matrix: Matrix, near: Matrix) -> Matrix:
    """A matrix whose sums compare like those of the first matrix and, if these are equal, like
    those of the second."""
    _checked(near)
    step = 1 + sum(map(sum, near))
    return tuple(
        tuple(value * step + nearness for value, nearness in zip(*rows, strict=True))
        for rows in zip(matrix, near, strict=True)
    )


def _pair_sums(matrix: Matrix) -> Sequence[int]:
    """By mask, the sum over the pairs of its members."""
    sums = [0] * (1 << len(matrix))
    for mask in range(len(sums)):
        high, low = _ends(mask)
        if high != low:
            pair = matrix[high.bit_length() - 1][low.bit_length() - 1]
            sums[mask] = pair + sums[mask ^ high] + sums[mask ^ low] - sums[mask ^ high ^ low]
    return _packed(sums)


def _packed(values: list[int]) -> Sequence[int]:
    """Returns the values in a fifth of the memory, unless one of them needs more than 64 bits."""
    return array("q", values) if max(values) < 1 << 63 else values


def _slowest(matrix: Matrix) -> Sequence[int]:
    """By mask, the slowest pair of its members; 0 without a pair."""
    slowest = [0] * (1 << len(matrix))
    for mask in range(len(slowest)):
        high, low = _ends(mask)
        if high != low:
            pair = matrix[high.bit_length() - 1][low.bit_length() - 1]
            if mask != high | low:
                pair = min(pair, slowest[mask ^ high], slowest[mask ^ low])
            slowest[mask] = pair
    return _packed(slowest)


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
