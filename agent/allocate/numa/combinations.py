"""The combinations of one hint per list whose intersection is one given mask, without enumerating
them.

No combination has fewer nodes than the mask, so only hints that contain the mask can be part of a
combination: the options of a list. An option that equals the mask counts its score, every other
option counts 0. Combinations are ordered by their places. If a combination has a score above 0, one
of its hints equals the mask, so its other hints may be any options. Combinations with the score 0
have to be searched for."""

from __future__ import annotations

import functools
import math
from array import array
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

from agent.allocate.steps import UNCOUNTED, Steps
from agent.model.cpu.cpuset import members

Place: TypeAlias = tuple[int, ...]
"""A combination: the index of its hint in each list."""


def first_place(masks: Sequence[Sequence[int]], result: int, steps: Steps = UNCOUNTED) -> Place:
    """The first combination that gives this mask. Raises ValueError if there is none."""
    scores = [[0] * len(held) for held in masks]
    place = Combinations(result, masks, scores, removable_nodes(masks), steps).first(None)
    if place is None:
        raise ValueError(f"no combination gives the mask {result:#x}")
    return place


def removable_nodes(masks: Sequence[Sequence[int]]) -> list[int]:
    """For each list, the most nodes that its hints and those of later lists can remove."""
    union = 0
    for held in masks:
        for mask in held:
            union |= mask
    taken = [0]
    for held in reversed(masks):
        taken.append(taken[-1] + union.bit_count() - min(map(int.bit_count, held)))
    taken.reverse()
    return taken


class Combinations:
    """The combinations whose intersection is one mask. Options: see the module."""

    def __init__(
        self,
        mask: int,
        masks: Sequence[Sequence[int]],
        scores: Sequence[Sequence[int]],
        removable: Sequence[int],
        steps: Steps = UNCOUNTED,
    ) -> None:
        self.mask = mask
        self._steps = steps
        self._walk = 1 + max(map(len, masks), default=0) // 16
        """The steps of one walk down a list."""
        steps.take((1 + self._walk // 4) * len(masks))
        self._count = mask.bit_count()
        self._removable = removable
        self._masks = masks
        self._named = [_places(mask, *pair) for pair in zip(masks, scores, strict=True)]
        self._rest = [0] * (len(masks) + 1)
        """For each list, the sum of the highest scores of its hints and those of later lists."""
        for index in range(len(masks) - 1, -1, -1):
            most = max((score for _, score in self._named[index]), default=0)
            self._rest[index] = self._rest[index + 1] + most
        self._reaches: dict[tuple[int, int], bool] = {}
        self._containing: dict[int, list[int]] = {}

    def exists(self, full: int) -> bool:
        """Whether there is a combination. `full` has the nodes of all masks."""
        mask = self.mask
        having = (any(own & mask == mask for own in masks) for masks in self._masks)
        return all(having) and self._reach(0, full)

    @functools.cached_property
    def last(self) -> Place:
        place = self._exact(None, backwards=True)
        if place is None:
            raise ValueError(f"no combination gives the mask {self.mask:#x}")
        return place

    def score_of(self, place: Place) -> int:
        return sum(
            next((score for at, score in named if at == index), 0)
            for named, index in zip(self._named, place, strict=True)
        )

    def highest(self, after: Place | None) -> int:
        """The highest score after a point, after which there must be a combination."""
        if after is None:
            return self._rest[0]
        most = 0
        for index, held in self._shared(after):
            if self._option(index, after[index], -1, backwards=False) is None:
                continue
            named = (score for at, score in self._named[index] if at > after[index])
            most = max(most, held + max(named, default=0) + self._rest[index + 1])
        return most

    def first_above(self, score: int, after: Place | None) -> Place | None:
        """The first combination after a point that scores more than `score`, 0 or more."""
        return self._above(score, after, backwards=False)

    def last_above(self, score: int, before: Place) -> Place | None:
        """The last combination before a point that scores more than `score`, 0 or more."""
        return self._above(score, before, backwards=True)

    def first(self, after: Place | None) -> Place | None:
        """The first combination after a point, with any score."""
        return self._exact(after, backwards=False)

    def _shared(self, place: Place) -> list[tuple[int, int]]:
        """The lists at which a combination of this mask can differ from `place` for the first time,
        with the score of the common part; the longest common part first."""
        found = []
        held = 0
        for index, at in enumerate(place):
            found.append((index, held))
            if self._masks[index][at] & self.mask != self.mask:
                break
            held += next((score for named, score in self._named[index] if named == at), 0)
        found.reverse()
        return found

    def _above(self, score: int, bound: Place | None, *, backwards: bool) -> Place | None:
        if self._rest[0] <= score:
            return None
        starts = [(0, 0)] if bound is None else self._shared(bound)
        for index, held in starts:
            beyond = None if bound is None else bound[index]
            taken = self._option(
                index, beyond, score - held - self._rest[index + 1], backwards=backwards
            )
            if taken is None:
                continue
            place = [*(bound or ())[:index], taken[0]]
            held += taken[1]
            for later in range(index + 1, len(self._masks)):
                missing = score - held - self._rest[later + 1]
                taken = self._option(later, None, missing, backwards=backwards)
                if taken is None:
                    raise AssertionError(
                        "the rest of the lists reaches the score that was computed"
                    )
                place.append(taken[0])
                held += taken[1]
            return tuple(place)
        return None

    def _option(
        self, index: int, beyond: int | None, above: int, *, backwards: bool
    ) -> tuple[int, int] | None:
        """The next option of a list with a score above `above`, and its score."""
        self._steps.take(self._walk)
        named = self._named[index]
        if above >= 0:
            for at, score in reversed(named) if backwards else named:
                passed = beyond is None or (at < beyond if backwards else at > beyond)
                if passed and score > above:
                    return at, score
            return None
        masks = self._masks[index]
        mask = self.mask
        for at in _beyond(len(masks), beyond, backwards):
            if masks[at] & mask == mask:
                score = 0
                if masks[at] == mask:
                    score = next(score for place, score in named if place == at)
                return at, score
        return None

    def _exact(self, bound: Place | None, *, backwards: bool) -> Place | None:
        """The next combination whose intersection is the mask, with any score."""
        if not self._masks:
            return () if bound is None else None
        shared = [_ALL]
        if bound is not None:
            for masks, at in zip(self._masks, bound, strict=True):
                shared.append(shared[-1] & masks[at])
        for index in range(0 if bound is None else len(bound) - 1, -1, -1):
            common = shared[index]
            if common & self.mask != self.mask:
                continue
            beyond = None if bound is None else bound[index]
            place = [*(bound or ())[:index]]
            for later in range(index, len(self._masks)):
                masks = self._masks[later]
                self._steps.take(self._walk)
                for at in _beyond(len(masks), beyond, backwards):
                    mask = masks[at]
                    if mask & self.mask == self.mask and self._reach(later + 1, common & mask):
                        place.append(at)
                        common &= mask
                        break
                else:
                    break
                beyond = None
            else:
                return tuple(place)
        return None

    def _reach(self, index: int, common: int) -> bool:
        """Whether the lists from `index` on can bring `common`, which contains it, down to the
        mask."""
        self._steps.take(1)
        if common == self.mask or any(self._named[index:]):
            return True
        if common.bit_count() - self._count > self._removable[index] or index == len(self._masks):
            return False
        key = index, common
        known = self._reaches.get(key)
        if known is None:
            known = any(self._reach(index + 1, common & mask) for mask in self._supersets(index))
            self._reaches[key] = known
        return known

    def _supersets(self, index: int) -> list[int]:
        """The masks of a list that contain this one, the smallest first."""
        known = self._containing.get(index)
        if known is None:
            containing = {mask for mask in self._masks[index] if mask & self.mask == self.mask}
            known = sorted(containing, key=int.bit_count)
            self._containing[index] = known
        return known


_ALL: Final = -1
_PAIRS_OF_A_STEP: Final = 4


def _places(mask: int, masks: Sequence[int], scores: Sequence[int]) -> list[tuple[int, int]]:
    """The places of the mask in a list, and their scores."""
    places = []
    at = -1
    for _ in range(masks.count(mask)):
        at = masks.index(mask, at + 1)
        places.append((at, scores[at]))
    return places


def _beyond(length: int, beyond: int | None, backwards: bool) -> range:
    if backwards:
        return range((length if beyond is None else beyond) - 1, -1, -1)
    return range(0 if beyond is None else beyond + 1, length)


_COUNTED_STEPS: Final = 100
_LANE_NODES: Final = 10
_FOLD_PAIRS: Final = 1500
_LANE_BITS: Final = 64
_LANE_MAX: Final = 1 << 63


def smallest_intersections(
    families: Sequence[Sequence[int]], full: int, steps: Steps = UNCOUNTED
) -> set[int]:
    """The results of `intersections` with the fewest nodes. Single nodes are searched for one by
    one: most merges end there, and families of hundreds of masks have many results."""
    if not families:
        return {full}
    if not all(families):
        return set()
    scores = [[0] * len(masks) for masks in families]
    taken = removable_nodes(families)
    nodes = (1 << node for node in members(full))
    single = {
        node for node in nodes if Combinations(node, families, scores, taken, steps).exists(full)
    }
    if single:
        return single
    found = intersections(families, full, steps)
    fewest = min(map(int.bit_count, found), default=0)
    return {mask for mask in found if mask.bit_count() == fewest}


def intersections(
    families: Sequence[Iterable[int]], full: int, steps: Steps = UNCOUNTED
) -> set[int]:
    """Takes one mask of each family and intersects them, in every combination. Returns the results
    that are not empty, and only `full` without any family.

    Masks must be subsets of `full`. Exact; the work is bounded by the number of distinct results
    times the longest list, and does not depend on the list lengths' product.

    There are two methods. For short lists it folds list by list over distinct masks. For long lists
    over few nodes it counts: with u(m) the number of masks of a list that contain m, the product of
    all lists' u(m) is the number of combinations whose intersection contains m, and
    inclusion-exclusion over the nodes gives the number with exactly m. Both sums over supersets run
    on all masks at once, as 64-bit lanes of one int, one step a node.
    """
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
            steps.take(_COUNTED_STEPS * (end - start + 1))
            reached = _counted([frozenset(reached), *distinct[start:end]], full)
            start = end
        else:
            steps.take(1 + len(reached) * len(distinct[start]) // _PAIRS_OF_A_STEP)
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
        """For each lane, the number of combinations that are its mask, computed from the number
        that contain it."""
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
