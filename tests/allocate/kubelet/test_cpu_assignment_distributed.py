"""Compared with an enumeration of nodes and receivers in the kubelet's order."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.allocate.kubelet.cpu_assignment import shares


def enumerated(free: list[int], count: int, group: int, nodes: int) -> list[int] | None:
    """The result of the first choice with the least sum of squares."""
    base = count // nodes // group * group
    best: tuple[int, list[int]] | None = None
    for combination in combinations(range(len(free)), nodes):
        if any(free[node] < base for node in combination):
            continue
        after = [held - base * (node in combination) for node, held in enumerate(free)]
        receivers = [node for node in combination if after[node] >= group]
        remaining_groups = (count - base * nodes) // group
        sizes = range(len(receivers), 0, -1) if remaining_groups else [0]
        for size in sizes:
            for subset in combinations(receivers, size):
                if sum(after[node] // group for node in subset) < remaining_groups:
                    continue
                left = distribute(after, subset, group, remaining_groups)
                squares = sum(each**2 for each in left)
                if best is None or squares < best[0]:
                    best = squares, [a - b for a, b in zip(free, left, strict=True)]
    return best[1] if best else None


def distribute(
    after: list[int], subset: tuple[int, ...], group: int, remaining_groups: int
) -> list[int]:
    left = list(after)
    while remaining_groups:
        for node in subset:
            if remaining_groups and left[node] >= group:
                left[node] -= group
                remaining_groups -= 1
    return left


@settings(max_examples=400)
@given(st.data())
def test_the_choice_is_the_first_best_one_of_the_kubelet(data: st.DataObject) -> None:
    high = data.draw(st.sampled_from([4, 12, 40]))
    free = data.draw(st.lists(st.integers(1, high), min_size=1, max_size=6))
    group = data.draw(st.integers(1, 4))
    nodes = data.draw(st.integers(1, len(free)))
    count = data.draw(st.integers(1, max(1, sum(free) // group))) * group
    assert shares(free, count, group, nodes) == enumerated(free, count, group, nodes)


@pytest.mark.parametrize(
    ("free", "count", "group", "nodes", "expected"),
    [
        pytest.param([8, 8, 8], 8, 1, 2, [4, 4, 0], id="the first of equal nodes"),
        pytest.param([4, 8, 8], 8, 1, 2, [0, 4, 4], id="the emptiest nodes leave the most even"),
        pytest.param([8, 8], 7, 1, 2, [4, 3], id="the first node takes the remainder"),
        pytest.param([8, 8], 6, 2, 2, [4, 2], id="in whole groups"),
        pytest.param([3, 20, 3], 11, 1, 3, [3, 5, 3], id="twice to one node if that is more even"),
        pytest.param([5, 5, 5], 14, 2, 3, None, id="odd CPUs make no groups"),
        pytest.param([1, 9], 8, 1, 2, None, id="a node with too few CPUs"),
    ],
)
def test_shares(
    free: list[int], count: int, group: int, nodes: int, expected: list[int] | None
) -> None:
    assert shares(free, count, group, nodes) == expected


def test_many_nodes_are_not_enumerated() -> None:
    expected = shares([64] * 34, 17 * 40 + 9, 1, 17)
    assert expected == [41] * 9 + [40] * 8 + [0] * 17
