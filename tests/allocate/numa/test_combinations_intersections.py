from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.allocate.numa.combinations import intersections


def product(families: list[list[int]], full: int) -> set[int]:
    found = set()
    for masks in itertools.product(*families):
        meet = full
        for mask in masks:
            meet &= mask
        found.add(meet)
    return found - {0}


@settings(max_examples=300, deadline=None)
@given(st.lists(st.lists(st.integers(0, 63), min_size=30, max_size=60), max_size=3))
def test_long_lists_are_counted(families: list[list[int]]) -> None:
    spread = [[_spread(mask) for mask in family] for family in families]
    assert intersections(spread, _spread(63)) == product(spread, _spread(63))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.lists(st.integers(0, 1023), max_size=8), max_size=4))
def test_short_lists_are_folded(families: list[list[int]]) -> None:
    assert intersections(families, 1023) == product(families, 1023)


def test_more_combinations_than_a_lane_counts() -> None:
    families = [list(range(1, 256)) for _ in range(20)]
    assert intersections(families, 255) == set(range(1, 256))


def _spread(mask: int) -> int:
    """Six nodes with gaps between their ids."""
    ids = (0, 2, 3, 9, 64, 65)
    return sum(1 << node for place, node in enumerate(ids) if mask >> place & 1)
