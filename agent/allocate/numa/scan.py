"""What a scan over all combinations ends with, without the scan.

Combinations are tried in lexicographic order of their hints' places; a candidate replaces the best
so far if its mask is numerically lower, or else if its score is higher. All masks here have the
same number of nodes k, and no combination has fewer, so that a hint that contributes a score to a
mask is that very mask and all hints beside it contain it.

The lowest mask that still comes, m, is a checkpoint: whenever it comes the best has mask m. From a
point on, let X be the highest score of m to come. Before the last m, a candidate of another mask
with a score above X surely takes the place, wherever it stands; count X anew after the last such
candidate, until there is none. Then nothing takes the place from m once X is reached: at the last
m the best is (m, X), and the next change is the first candidate after it with a score above X. Now
m is gone and the same holds for the lowest of what is left: at most one round a mask. Each question
(the last candidate of a mask before a point with a score above X, the first one after it, the
highest score after it) is answered by a walk down the lists, see `combinations`.

Scores must not be negative: then a score above another one is above 0 and names its mask.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from agent.allocate.numa.combinations import Combinations, Place, room


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
    all of the fewest nodes, that combinations give. Raises ValueError without any and no start."""
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
    """The best when the lowest mask has come for the last time."""
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
