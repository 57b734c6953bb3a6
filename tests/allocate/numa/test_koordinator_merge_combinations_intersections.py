from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.allocate.numa.koordinator_merge import intersections


def product(families: list[list[int]], full: int) -> set[int]:
    found = set()
    for masks in itertools.product(*families):
        common = full
        for mask in masks:
            common &= mask
        found.add(common)
    return found - {0}


@settings(max_examples=300, deadline=None)
@given(st.lists(st.lists(st.integers(0, 63), min_size=30, max_size=60), max_size=3))
def test_long_lists_are_counted(families: list[list[int]]) -> None:
    families_ = [[_spread(mask) for mask in family] for family in families]
    assert intersections(families_, _spread(63)) == product(families_, _spread(63))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.lists(st.integers(0, 1023), max_size=8), max_size=4))
def test_short_lists_are_intersected_one_by_one(families: list[list[int]]) -> None:
    assert intersections(families, 1023) == product(families, 1023)


def test_more_combinations_than_a_lane_counts() -> None:
    families = [list(range(1, 256)) for _ in range(20)]
    assert intersections(families, 255) == set(range(1, 256))


def _spread(mask: int) -> int:
    """Maps a mask of six nodes to ids with gaps."""
    ids = (0, 2, 3, 9, 64, 65)
    return sum(1 << node for index, node in enumerate(ids) if mask >> index & 1)
