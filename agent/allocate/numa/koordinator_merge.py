"""Koordinator's merge of NUMA hints.

One hint of each resource makes a combination; its mask is the intersection. A combination is
preferred if all its hints are preferred and name the same mask (no preference fits every mask).
Preferred ones first, then fewer nodes; among those the order of the hints matters, see `scan`. If
there is a preferred combination, only hints of preferred masks of the fewest nodes can be part of
the winner; otherwise, only combinations whose intersection is smallest: no others are tried."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from agent.allocate.bits import of_nodes
from agent.allocate.numa.columns import (
    Column,
    aligned,
    causes,
    columns,
    full_mask,
    lacking,
    no_combination,
    single_node_only,
)
from agent.allocate.numa.combinations import Combinations, Place, first_place, intersections, room
from agent.allocate.numa.hint import MergeCause, Merged, Provider
from agent.model.policies import NumaExclusive, NumaPolicy


class Best(msgspec.Struct, frozen=True):
    """`place` None: what stood before the scan."""

    mask: int
    score: int
    place: Place | None


def outcome(
    masks: Sequence[Sequence[int]],
    scores: Sequence[Sequence[int]],
    results: Iterable[int],
    start: Best | None,
) -> Best:
    """The best at the end. `masks` and `scores`: a list for each resource; `results`: the masks,
    all of the fewest nodes, that combinations give. Raises ValueError without any and no start.

    The result of a scan over all combinations, without the scan. Combinations are tried in
    lexicographic order of their hints' places; a candidate replaces the best so far if its mask is
    numerically lower, or else if its score is higher. All masks here have the same number of nodes
    k, and no combination has fewer, so that a hint that contributes a score to a mask is that very
    mask and all other hints contain it.

    The lowest mask that still comes, m, is a checkpoint: whenever it comes the best has mask m.
    From a point on, let X be the highest score of m to come. Before the last m, a candidate of
    another mask with a score above X surely takes the place, wherever it stands; count X anew after
    the last such candidate, until there is none. Then nothing takes the place from m once X is
    reached: at the last m the best is (m, X), and the next change is the first candidate after it
    with a score above X. Now m is gone and the same holds for the lowest of what is left: at most
    one round a mask. Each question (the last candidate of a mask before a point with a score above
    X, the first one after it, the highest score after it) is answered by a walk down the lists, see
    `combinations`.

    Scores must not be negative: then a score above another one is above 0 and names its mask.
    """
    distinct = set(results)
    if not distinct:
        if start is None:
            raise ValueError("a scan needs a start or a combination")
        return start
    if all(len(held) == 1 or _names_each_once(held, distinct) for held in masks):
        return _of_singles(masks, scores, distinct, start)
    taken = room(masks)
    sources = [Combinations(mask, masks, scores, taken) for mask in sorted(distinct)]
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
    """The plain scan, where every result comes from one combination alone: each list names all
    results once, or has nothing to choose from."""
    best = start
    places = [
        None if len(held) == 1 else {mask: at for at, mask in enumerate(held)} for held in masks
    ]
    for place, result in sorted(
        (tuple(0 if at is None else at[result] for at in places), result) for result in results
    ):
        score = sum(
            worth[at]
            for held, worth, at in zip(masks, scores, place, strict=True)
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


class NodeStatus(enum.StrEnum):
    """The pods with CPUs of a NUMA node: none, pods inside it, or a pod that is on other nodes
    too."""

    IDLE = "idle"
    SINGLE = "single"
    SHARED = "shared"


def merge(
    providers: Sequence[Provider],
    nodes: Iterable[int],
    policy: NumaPolicy,
    exclusive: NumaExclusive | None = None,
    statuses: Mapping[int, NodeStatus] | None = None,
) -> Merged:
    """The NUMA nodes for a pod. `nodes`: ids of the machine's NUMA nodes; `statuses`: by id, those
    not named are idle; they matter only where `exclusive` is REQUIRED.

    BestEffort always admits; Restricted and SingleNUMANode admit a preferred combination. Where
    nothing limits the pod the mask of SingleNUMANode is None. Raises ValueError for hints with
    nodes that the machine lacks or with negative scores, naming provider and resource."""
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
    table, best, place, preferred = _combine(table, full, apart)
    why: tuple[MergeCause, ...] = ()
    if place is None:
        why = no_combination(table, single)
    elif not preferred:
        why = causes(table, place, apart is not None and apart.keeps_out(best.mask))
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
    """Pods of one NUMA node and pods of several are kept apart."""

    def __init__(self, statuses: Mapping[int, NodeStatus]) -> None:
        self._single = _mask(statuses, NodeStatus.SINGLE)
        self._shared = _mask(statuses, NodeStatus.SHARED)

    def keeps_out(self, mask: int) -> bool:
        several = mask & (mask - 1)
        return bool(mask & (self._single if several else self._shared))


def _mask(statuses: Mapping[int, NodeStatus], wanted: NodeStatus) -> int:
    return of_nodes(node for node, status in statuses.items() if status is wanted)


def _combine(
    table: list[Column], full: int, apart: _Exclusivity | None
) -> tuple[list[Column], Best, Place | None, bool]:
    """The hints that were tried, the result of the scan, a combination of that mask if there is
    one, and whether it is preferred. The scan starts with the full mask, not preferred and without
    a score."""
    before = Best(full, 0, None)
    masks = aligned(table, full)
    if apart is not None:
        masks = {mask for mask in masks if not apart.keeps_out(mask)}
    preferred = bool(masks)
    if not preferred:
        masks = intersections([column.masks for column in table], full)
        if not masks:
            return table, before, None, False
    fewest = min(mask.bit_count() for mask in masks)
    masks = {mask for mask in masks if mask.bit_count() == fewest}
    if preferred:
        table = [_of_masks(column, masks, full) for column in table]
    lists = [column.masks for column in table]
    scores = [[0 if hint.mask is None else hint.score for hint in column.hints] for column in table]
    stands = before if masks == {full} and not preferred else None
    best = outcome(lists, scores, masks, stands)
    place = first_place(lists, full) if best.place is None else best.place
    return table, best, place, preferred


def _of_masks(column: Column, masks: set[int], full: int) -> Column:
    """The preferred hints of these masks or of no preference."""
    kept = [
        index
        for index, hint in enumerate(column.hints)
        if hint.preferred and (hint.mask is None or hint.mask in masks)
    ]
    return column.keep(kept, full)


def _unsatisfied(table: Sequence[Column], place: Place, mask: int) -> bool:
    """A resource can't be satisfied, or one names more nodes than the mask has."""
    hints = [column.hints[index] for column, index in zip(table, place, strict=True)]
    return any(hint.unsatisfied or (hint.mask is not None and hint.mask != mask) for hint in hints)
