from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.allocate.numa.koordinator_merge import Best, first_place, outcome

Lists = list[list[int]]


def combinations(masks: Lists) -> list[tuple[int, tuple[int, ...]]]:
    """Non-empty intersections and the indices of their hints, in the order of a scan."""
    found = []
    for indices in itertools.product(*(range(len(list_)) for list_ in masks)):
        common = -1
        for list_, index in zip(masks, indices, strict=True):
            common &= list_[index]
        if common:
            found.append((common, indices))
    return found


def check(masks: Lists, scores: Lists, start: Best | None) -> None:
    candidates = combinations(masks)
    fewest = min((mask.bit_count() for mask, _ in candidates), default=0)
    candidates = [(mask, indices) for mask, indices in candidates if mask.bit_count() == fewest]
    results = {mask for mask, _ in candidates}
    if not results and start is None:
        with pytest.raises(ValueError, match="needs a start or a combination"):
            outcome(masks, scores, results, start)
        return
    best = start
    for mask, indices in candidates:
        score = sum(
            list_scores[index]
            for list_, list_scores, index in zip(masks, scores, indices, strict=True)
            if list_[index] == mask
        )
        if best is None or mask < best.mask or score > best.score:
            best = Best(mask, score, indices)
    assert outcome(masks, scores, results, start) == best
    for mask in results:
        assert first_place(masks, mask) == next(
            indices for candidate, indices in candidates if candidate == mask
        )


MASKS = st.sampled_from([1, 2, 4, 8, 3, 5, 6, 15, 0])
LIST = st.lists(st.tuples(MASKS, st.integers(0, 4)), max_size=7)


@settings(max_examples=500, deadline=None)
@given(st.lists(LIST, min_size=1, max_size=3), st.integers(0, 2))
def test_the_scan_equals_an_enumeration(lists: list[list[tuple[int, int]]], start: int) -> None:
    masks = [[mask for mask, _ in list_] for list_ in lists]
    scores = [[score for _, score in list_] for list_ in lists]
    check(masks, scores, None if start < 2 else Best(2, 2, None))


@pytest.mark.parametrize("seed", range(80))
def test_lists_ordered_by_size(seed: int) -> None:
    draw = random.Random(seed)
    every = sorted(range(1, 16), key=int.bit_count)
    masks = [
        [mask for mask in every if mask.bit_count() >= draw.choice([1, 1, 2])] for _ in range(3)
    ]
    top = draw.choice([1, 4, 100])
    check(masks, [[draw.randint(0, top) for _ in list_] for list_ in masks], None)


def test_a_mask_is_not_replaced_by_a_larger_one_with_a_lower_score() -> None:
    masks = [[1, 2, 4, 7], [7]]
    assert outcome(masks, [[0, 5, 3, 0], [0]], {1, 2, 4}, None) == Best(2, 5, (1, 0))


def test_a_smaller_mask_is_chosen_regardless_of_its_score() -> None:
    masks = [[2, 1, 7], [7, 7]]
    assert outcome(masks, [[9, 0, 0], [0, 0]], {1, 2}, None) == Best(1, 0, (1, 0))


def test_no_lists_give_one_combination() -> None:
    assert outcome([], [], {3}, None) == Best(3, 0, ())


def test_a_mask_that_is_no_intersection_is_refused() -> None:
    with pytest.raises(ValueError, match="no combination gives the mask 0x4"):
        first_place([[1, 3], [3]], 4)
