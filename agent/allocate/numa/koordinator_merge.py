"""Koordinator's merge of NUMA hints.

One hint of each resource makes a combination; its mask is the intersection. A combination is
preferred if all its hints are preferred and name the same mask (no preference fits every mask).
Preferred combinations win over others, then those of fewer nodes; among these the order of the
hints decides (see `outcome`). The merge tries only combinations that can win: if there is a
preferred one, those of preferred hints with masks of the fewest nodes; otherwise those with the
smallest intersection.

A `Column` has the hints of one resource: the merge takes one hint from each column.

The combinations whose intersection is a given mask are found without enumerating them: none has
fewer nodes than the mask, so only hints that contain the mask can be part of one: the options of a
column. An option that equals the mask counts its score, every other option counts 0. Combinations
are ordered by their places. If a combination has a score above 0, one of its hints equals the mask,
so its other hints may be any options. Combinations with the score 0 have to be searched for.
"""

from __future__ import annotations

import functools
import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

from agent.allocate.numa.hint import (
    MergeCause,
    Merged,
    NodeStatus,
    Pick,
    Provider,
    TopologyHint,
    of_nodes,
)
from agent.allocate.steps import UNCOUNTED, Steps
from agent.model.cpu.cpuset import members
from agent.model.cpu.policies import NumaExclusive, NumaPolicy

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
        reaches = self._reaches.get(key)
        if reaches is None:
            reaches = any(self._reach(index + 1, common & mask) for mask in self._supersets(index))
            self._reaches[key] = reaches
        return reaches

    def _supersets(self, index: int) -> list[int]:
        """The masks of a list that contain this one, the smallest first."""
        supersets = self._containing.get(index)
        if supersets is None:
            containing = {mask for mask in self._masks[index] if mask & self.mask == self.mask}
            supersets = sorted(containing, key=int.bit_count)
            self._containing[index] = supersets
        return supersets


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
    masks = intersections(families, full, steps)
    fewest = min(map(int.bit_count, masks), default=0)
    return {mask for mask in masks if mask.bit_count() == fewest}


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


def merge(
    providers: Sequence[Provider],
    nodes: Iterable[int],
    policy: NumaPolicy,
    exclusive: NumaExclusive | None = None,
    statuses: Mapping[int, NodeStatus] | None = None,
    *,
    by_score: bool = False,
    steps: Steps = UNCOUNTED,
) -> Merged:
    """The NUMA nodes for a pod.

    BestEffort always admits; Restricted and SingleNUMANode admit a preferred combination. If
    nothing restricts the pod, the mask of SingleNUMANode is None.

    `nodes`: ids of the machine's NUMA nodes.
    `statuses`: by id, IDLE by default; they matter only if `exclusive` is REQUIRED.
    `by_score`: among the smallest masks the highest score wins; in Koordinator a later, numerically
        lower mask replaces it.

    Raises ValueError, naming provider and resource, for hints with unknown nodes or negative
    scores."""
    full = full_mask(nodes)
    if policy is NumaPolicy.NONE:
        return Merged(None, preferred=False, admit=True)
    table = columns(providers, full)
    missing = lacking(table)
    single = policy is NumaPolicy.SINGLE_NUMA_NODE
    if missing and policy is not NumaPolicy.BEST_EFFORT:
        return Merged(
            None if single else full,
            preferred=False,
            admit=False,
            causes=(MergeCause.RESOURCE_LACKING,),
            lacking=missing,
        )
    if single:
        table = [single_node_only(column, full) for column in table]
        missing = lacking(table)
    apart = _Exclusivity(statuses or {}) if exclusive is NumaExclusive.REQUIRED else None
    table, best, place, preferred = _combine(table, full, apart, steps, by_score=by_score)
    why: tuple[MergeCause, ...] = ()
    if place is None:
        why = no_combination(table, single)
    elif not preferred:
        why = causes(table, place, apart is not None and apart.excludes(best.mask))
    mask: int | None = best.mask
    score = best.score
    unsatisfied = best.place is not None and _unsatisfied(table, best.place, best.mask)
    if (policy is NumaPolicy.BEST_EFFORT and unsatisfied) or (single and mask == full):
        mask = None if single else full
        preferred = preferred and single
        score = 0
        unsatisfied = False
    return Merged(
        mask,
        preferred=preferred,
        admit=preferred or policy is NumaPolicy.BEST_EFFORT,
        score=score,
        unsatisfied=unsatisfied,
        combined=None if place is None else best.mask,
        causes=why,
        picks=()
        if place is None
        else tuple(column.pick(index) for column, index in zip(table, place, strict=True)),
        lacking=missing,
    )


class _Exclusivity:
    """Keeps pods of one NUMA node apart from pods of several (NUMA exclusive policy Required)."""

    def __init__(self, statuses: Mapping[int, NodeStatus]) -> None:
        self._single = _mask(statuses, NodeStatus.SINGLE)
        self._shared = _mask(statuses, NodeStatus.SHARED)

    def excludes(self, mask: int) -> bool:
        """Whether a pod on these NUMA nodes would share one with a pod of the other sort."""
        several = mask & (mask - 1)
        return bool(mask & (self._single if several else self._shared))


def _mask(statuses: Mapping[int, NodeStatus], wanted: NodeStatus) -> int:
    return of_nodes(node for node, status in statuses.items() if status is wanted)


def _combine(
    table: list[Column], full: int, apart: _Exclusivity | None, steps: Steps, *, by_score: bool
) -> tuple[list[Column], Best, Place | None, bool]:
    """The hints that were tried, the result of the scan, a combination of that mask if there is
    one, and whether it is preferred. The scan starts with the full mask, not preferred and without
    a score."""
    before = Best(full, 0, None)
    masks = aligned(table, full)
    if apart is not None:
        masks = {mask for mask in masks if not apart.excludes(mask)}
    preferred = bool(masks)
    if not preferred:
        masks = smallest_intersections([column.masks for column in table], full, steps)
        if not masks:
            return table, before, None, False
    fewest = min(mask.bit_count() for mask in masks)
    masks = {mask for mask in masks if mask.bit_count() == fewest}
    if by_score:
        masks = _highest([column.hints for column in table], masks, preferred=preferred)
    if preferred:
        table = [_of_masks(column, masks, full) for column in table]
    lists = [column.masks for column in table]
    scores = [[0 if hint.mask is None else hint.score for hint in column.hints] for column in table]
    start = before if masks == {full} and not preferred else None
    best = outcome(lists, scores, masks, start, steps)
    place = first_place(lists, full, steps) if best.place is None else best.place
    return table, best, place, preferred


def _highest(
    columns: Iterable[Sequence[TopologyHint]], masks: set[int], *, preferred: bool
) -> set[int]:
    """The masks with the highest score, at least one. The score of a mask is the sum over the
    columns of its best hint there.

    `preferred`: only preferred hints count."""
    totals = dict.fromkeys(masks, 0)
    for hints in columns:
        best: dict[int, int] = {}
        for hint in hints:
            if hint.mask in totals and (hint.preferred or not preferred):
                best[hint.mask] = max(best.get(hint.mask, 0), hint.score)
        for mask, score in best.items():
            totals[mask] += score
    most = max(totals.values())
    return {mask for mask, score in totals.items() if score == most}


def _of_masks(column: Column, masks: set[int], full: int) -> Column:
    """The preferred hints with one of these masks or without a preference."""
    kept = [
        index
        for index, hint in enumerate(column.hints)
        if hint.preferred and (hint.mask is None or hint.mask in masks)
    ]
    return column.keep(kept, full)


def _unsatisfied(table: Sequence[Column], place: Place, mask: int) -> bool:
    """Whether a resource can't be satisfied, or its hint has more nodes than the mask."""
    hints = [column.hints[index] for column, index in zip(table, place, strict=True)]
    return any(hint.unsatisfied or (hint.mask is not None and hint.mask != mask) for hint in hints)


class Best(msgspec.Struct, frozen=True):
    """The best mask so far."""

    mask: int
    score: int
    place: Place | None
    """None for the value before the scan."""


def outcome(
    masks: Sequence[Sequence[int]],
    scores: Sequence[Sequence[int]],
    results: Iterable[int],
    start: Best | None,
    steps: Steps = UNCOUNTED,
) -> Best:
    """The result of a scan over all combinations, without the scan. Combinations are tried in
    lexicographic order of their hints' places; a candidate replaces the best so far if its mask is
    numerically lower, or else if its score is higher. All masks here have the same number of nodes
    k, and no combination has fewer, so that a hint that contributes a score to a mask is that very
    mask and all other hints contain it.

    The lowest mask that still comes, m, is a checkpoint: whenever it comes the best has mask m.
    From a point on, let X be the highest score of m to come. Before the last m, a candidate of
    another mask with a score above X always replaces m; compute X again after the last such
    candidate, until there is none. Then no candidate replaces m after X is reached: at the last m
    the best is (m, X), and the next change is the first candidate after it with a score above X.
    Then the same holds for the lowest of the other masks: at most one round per mask. Each question
    (the last candidate of a mask before a point with a score above X, the first one after it, the
    highest score after it) is answered by a walk down the lists, see the module.

    Scores must not be negative: then a score above another one is above 0 and names its mask.

    `masks`, `scores`: a list for each resource.
    `results`: the masks, all of the fewest nodes, that combinations give.

    Raises ValueError without any result and no start."""
    distinct = set(results)
    if not distinct:
        if start is None:
            raise ValueError("a scan needs a start or a combination")
        return start
    if all(len(held) == 1 or _names_each_once(held, distinct) for held in masks):
        return _of_singles(masks, scores, distinct, start)
    taken = removable_nodes(masks)
    sources = [Combinations(mask, masks, scores, taken, steps) for mask in sorted(distinct)]
    best = start
    after: Place | None = None
    while True:
        alive = [source for source in sources if after is None or source.last > after]
        if best is not None and (not alive or best.mask < alive[0].mask):
            standing = best
        elif alive:
            lowest = alive.pop(0)
            standing = _tenure(lowest, alive, after, best)
            after = lowest.last
        else:
            raise ValueError("a scan needs a start or a combination")
        challenger = None
        for source in alive:
            place = source.first_above(standing.score, after)
            if place is not None and (challenger is None or place < challenger[0]):
                challenger = place, source
        if challenger is None:
            return standing
        after, source = challenger
        best = Best(source.mask, source.score_of(after), after)


def _names_each_once(masks: Sequence[int], results: set[int]) -> bool:
    return len(masks) == len(results) and set(masks) == results


def _of_singles(
    masks: Sequence[Sequence[int]],
    scores: Sequence[Sequence[int]],
    results: set[int],
    start: Best | None,
) -> Best:
    """The plain scan, if each result comes from only one combination: each list has all results
    once, or only one hint."""
    best = start
    places = [
        None if len(held) == 1 else {mask: at for at, mask in enumerate(held)} for held in masks
    ]
    for place, result in sorted(
        (tuple(0 if at is None else at[result] for at in places), result) for result in results
    ):
        score = sum(
            of_list[at]
            for held, of_list, at in zip(masks, scores, place, strict=True)
            if held[at] == result
        )
        if best is None or result < best.mask or score > best.score:
            best = Best(result, score, place)
    if best is None:
        raise ValueError("a scan needs a start or a combination")
    return best


def _tenure(
    lowest: Combinations, others: Sequence[Combinations], after: Place | None, best: Best | None
) -> Best:
    """The best combination after the last one of the lowest mask."""
    entry = best if best is not None and best.mask == lowest.mask else None
    while True:
        highest = lowest.highest(after)
        if entry is not None and entry.score > highest:
            highest = entry.score
        losses = (other.last_above(highest, lowest.last) for other in others)
        loss = max((place for place in losses if place is not None), default=None)
        if loss is None or (after is not None and loss <= after):
            break
        after = loss
        entry = None
    if entry is not None and entry.score == highest:
        return entry
    place = lowest.first_above(highest - 1, after) if highest else lowest.first(after)
    return Best(lowest.mask, highest, place)


_ANY: Final = (TopologyHint(None, True),)
_LACKING: Final = (TopologyHint(None, False, 0, True),)


class Column:
    """One resource's hints in their order, or those of them that a policy keeps."""

    __slots__ = ("hints", "kept", "masks", "named", "provider", "resource")

    def __init__(
        self,
        provider: int,
        resource: str | None,
        hints: Sequence[TopologyHint],
        full: int,
        kept: Sequence[int] | None = None,
    ) -> None:
        self.provider = provider
        self.resource = resource
        self.hints = hints
        self.kept = kept
        self.named = [hint.mask for hint in hints]
        """The masks of the hints, None for no preference."""
        self.masks = [full if mask is None else mask for mask in self.named]
        """The masks of the hints, the machine's full mask for no preference."""

    @property
    def lacking(self) -> bool:
        """Whether no hint satisfies this resource, or the policy kept none."""
        return self.hints is _LACKING or not self.hints

    def keep(self, kept: Sequence[int], full: int) -> Column:
        """Only the hints at these indexes; the column itself if these are all."""
        if len(kept) == len(self.hints):
            return self
        places = kept if self.kept is None else [self.kept[index] for index in kept]
        hints = [self.hints[index] for index in kept]
        return Column(self.provider, self.resource, hints, full, places)

    def pick(self, index: int) -> Pick:
        """The hint at `index`, by its index in the provider's list."""
        if self.hints is _ANY or self.lacking:
            return Pick(self.provider, self.resource, None)
        return Pick(self.provider, self.resource, index if self.kept is None else self.kept[index])


def columns(providers: Iterable[Provider], full: int) -> list[Column]:
    """Providers and resources in their order. Raises ValueError, naming provider and resource, for
    a mask with nodes that the machine does not have and for a negative score."""
    made = []
    for number, provider in enumerate(providers):
        if not provider:
            made.append(Column(number, None, _ANY, full))
        for resource, hints in provider.items():
            if hints is None:
                made.append(Column(number, resource, _ANY, full))
            elif not hints:
                made.append(Column(number, resource, _LACKING, full))
            else:
                made.append(_checked(Column(number, resource, hints, full), full))
    return made


def full_mask(nodes: Iterable[int]) -> int:
    """The mask of a machine's NUMA nodes. Raises ValueError if there are none."""
    full = of_nodes(nodes)
    if not full:
        raise ValueError("a machine has at least one NUMA node")
    return full


def single_node_only(column: Column, full: int) -> Column:
    """The preferred hints of one NUMA node or without a preference: SingleNUMANode uses only
    these."""
    kept = [
        index
        for index, (hint, mask) in enumerate(zip(column.hints, column.named, strict=True))
        if hint.preferred and (mask is None or mask.bit_count() == 1)
    ]
    return column.keep(kept, full)


def lacking(columns: Iterable[Column]) -> tuple[Pick, ...]:
    """The resources that no hint satisfies."""
    return tuple(column.pick(0) for column in columns if column.lacking)


def aligned(columns: Sequence[Column], full: int) -> set[int]:
    """The masks that every column prefers: one preferred hint of each, all of the same mask; no
    preference fits every mask. If no column has a mask, the full mask."""
    common: set[int] | None = None
    offered: set[int] = set()
    for column in columns:
        preferred = {hint.mask for hint in column.hints if hint.preferred}
        indifferent = None in preferred
        masks = {mask for mask in preferred if mask}
        if indifferent:
            offered |= masks
        elif common is None:
            common = masks
        else:
            common &= masks
        if common is not None and not common:
            return common
    return offered | {full} if common is None else common


def causes(
    columns: Sequence[Column], place: Sequence[int], excluded: bool
) -> tuple[MergeCause, ...]:
    """Why the combination at this place is not preferred.

    `excluded`: exclusivity excludes it."""
    reasons = []
    if any(column.lacking for column in columns):
        reasons.append(MergeCause.RESOURCE_LACKING)
    hints = [
        column.hints[index]
        for column, index in zip(columns, place, strict=True)
        if not column.lacking
    ]
    if not all(hint.preferred for hint in hints):
        reasons.append(MergeCause.HINT_NOT_PREFERRED)
    if len({hint.mask for hint in hints} - {None}) > 1:
        reasons.append(MergeCause.MASKS_DIFFER)
    if excluded:
        reasons.append(MergeCause.NODE_EXCLUSIVE)
    return tuple(reasons)


def no_combination(columns: Iterable[Column], single: bool) -> tuple[MergeCause, ...]:
    """Why every intersection is empty.

    `single`: only hints of one node were kept."""
    if not any(column.lacking for column in columns):
        return (MergeCause.NOTHING_IN_COMMON,)
    return (MergeCause.NOT_ON_ONE_NODE if single else MergeCause.RESOURCE_LACKING,)


def _checked(column: Column, full: int) -> Column:
    union = 0
    for mask in column.masks:
        union |= mask
    if union & ~full:
        stray = ", ".join(str(node) for node in members(union & ~full))
        raise ValueError(
            f"hints of provider {column.provider}, {column.resource}: "
            f"the machine has no NUMA node {stray}"
        )
    if min(hint.score for hint in column.hints) < 0:
        raise ValueError(
            f"hints of provider {column.provider}, {column.resource}: a score is negative"
        )
    return column
