"""Compared with every choice of nodes and receivers, tried in the kubelet's order."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.allocate.kubelet.cpu_assignment import shares


def tried(free: list[int], count: int, group: int, nodes: int) -> list[int] | None:
    """The result of the first choice with the least sum of squares."""
    base = count // nodes // group * group
    best: tuple[int, list[int]] | None = None
    for combination in combinations(range(len(free)), nodes):
        if any(free[node] < base for node in combination):
            continue
        after = [held - base * (node in combination) for node, held in enumerate(free)]
        receivers = [node for node in combination if after[node] >= group]
        deal = (count - base * nodes) // group
        sizes = range(len(receivers), 0, -1) if deal else [0]
        for size in sizes:
            for subset in combinations(receivers, size):
                if sum(after[node] // group for node in subset) < deal:
                    continue
                left = dealt(after, subset, group, deal)
                squares = sum(each**2 for each in left)
                if best is None or squares < best[0]:
                    best = squares, [a - b for a, b in zip(free, left, strict=True)]
    return best[1] if best else None


def dealt(after: list[int], subset: tuple[int, ...], group: int, deal: int) -> list[int]:
    left = list(after)
    while deal:
        for node in subset:
            if deal and left[node] >= group:
                left[node] -= group
                deal -= 1
    return left


@settings(max_examples=400)
@given(st.data())
def test_the_choice_is_the_kubelets_first_best_one(data: st.DataObject) -> None:
    high = data.draw(st.sampled_from([4, 12, 40]))
    free = data.draw(st.lists(st.integers(1, high), min_size=1, max_size=6))
    group = data.draw(st.integers(1, 4))
    nodes = data.draw(st.integers(1, len(free)))
    count = data.draw(st.integers(1, max(1, sum(free) // group))) * group
    assert shares(free, count, group, nodes) == tried(free, count, group, nodes)


@pytest.mark.parametrize(
    ("free", "count", "group", "nodes", "given_by_each"),
    [
        pytest.param([8, 8, 8], 8, 1, 2, [4, 4, 0], id="the first nodes of those alike"),
        pytest.param([4, 8, 8], 8, 1, 2, [0, 4, 4], id="the emptiest nodes leave the most even"),
        pytest.param([8, 8], 7, 1, 2, [4, 3], id="the first node takes the remainder"),
        pytest.param([8, 8], 6, 2, 2, [4, 2], id="in whole groups"),
        pytest.param([3, 20, 3], 11, 1, 3, [3, 5, 3], id="twice to one node, if that is more even"),
        pytest.param([5, 5, 5], 14, 2, 3, None, id="odd CPUs make no groups"),
        pytest.param([1, 9], 8, 1, 2, None, id="a node without its share"),
    ],
)
def test_shares(
    free: list[int], count: int, group: int, nodes: int, given_by_each: list[int] | None
) -> None:
    assert shares(free, count, group, nodes) == given_by_each


def test_many_nodes_are_not_enumerated() -> None:
    given_by_each = shares([64] * 34, 17 * 40 + 9, 1, 17)
    assert given_by_each == [41] * 9 + [40] * 8 + [0] * 17
