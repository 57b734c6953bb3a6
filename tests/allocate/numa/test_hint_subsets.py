from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from agent.allocate.numa.hint import WHOLE, subsets


def test_by_size_then_lexicographically() -> None:
    assert list(subsets([2, 0, 65])) == [
        1 << 0,
        1 << 2,
        1 << 65,
        1 << 0 | 1 << 2,
        1 << 0 | 1 << 65,
        1 << 2 | 1 << 65,
        1 << 0 | 1 << 2 | 1 << 65,
    ]


@given(st.sets(st.integers(0, 70), max_size=10))
def test_all_of_up_to_ten_nodes(nodes: set[int]) -> None:
    assert len(set(subsets(nodes))) == 2 ** len(nodes) - 1


@given(st.sets(st.integers(0, 200), min_size=11, max_size=64))
def test_more_nodes_do_not_explode(nodes: set[int]) -> None:
    ids = sorted(nodes)
    masks = list(subsets(nodes))
    assert len(masks) == len(set(masks)) <= WHOLE + len(ids) * (len(ids) + 1) // 2
    assert [mask.bit_count() for mask in masks] == sorted(mask.bit_count() for mask in masks)
    assert masks[-1] == sum(1 << node for node in ids)
    assert {1 << node for node in ids} <= set(masks)
    for one, two in itertools.pairwise(ids):
        assert 1 << one | 1 << two in masks


def test_thirty_four_nodes_are_tried_in_pairs_and_runs() -> None:
    masks = set(subsets(range(34)))
    assert 1 << 3 | 1 << 30 in masks
    assert 0b111 << 9 in masks
    assert 0b1011 not in masks


def test_no_nodes_give_no_subsets() -> None:
    assert list(subsets([])) == []
