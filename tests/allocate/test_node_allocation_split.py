from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocate import node_allocation

nodes = st.dictionaries(st.integers(0, 70), st.integers(0, 40), max_size=6)
units = st.integers(1, 4)


@pytest.mark.parametrize(
    ("requested", "available", "unit", "shares"),
    [
        (8, {0: 8, 1: 8}, 1, {0: 4, 1: 4}),
        (7, {0: 8, 1: 8}, 1, {0: 3, 1: 4}),
        (8, {0: 1, 1: 8}, 1, {0: 1, 1: 7}),
        (12, {2: 9, 5: 2, 7: 9}, 1, {2: 5, 5: 2, 7: 5}),
        (6, {0: 8, 1: 8}, 2, {0: 2, 1: 4}),
        (6, {0: 3, 1: 8}, 2, {0: 2, 1: 4}),
        (9, {0: 3, 1: 3}, 1, {0: 3, 1: 3}),
        (3, {0: 0, 1: 8}, 1, {1: 3}),
        (1, {}, 1, {}),
    ],
)
def test_evenly(
    requested: int, available: dict[int, int], unit: int, shares: dict[int, int]
) -> None:
    assert node_allocation.split_evenly(requested, available, unit) == shares


def test_order_follows_availability_when_the_mask_does_not_start_at_node_0() -> None:
    assert node_allocation.split_evenly(10, {1: 9, 3: 2}) == {3: 2, 1: 8}


@pytest.mark.parametrize(
    ("requested", "available", "shares"),
    [
        (8, {0: 8, 1: 9}, {1: 8}),
        (12, {0: 8, 1: 8, 2: 3}, {0: 8, 1: 4}),
        (30, {0: 8, 1: 9}, {1: 9, 0: 8}),
    ],
)
def test_packed(requested: int, available: dict[int, int], shares: dict[int, int]) -> None:
    assert node_allocation.split_packed(requested, available) == shares


@given(
    st.integers(0, 100),
    nodes,
    units,
    st.sampled_from([node_allocation.split_evenly, node_allocation.split_packed]),
)
def test_amounts_are_split_completely_and_within_what_is_available(
    requested, available, unit, split
) -> None:
    shares = split(requested, available, unit)
    room = sum(amount // unit for amount in available.values())
    assert sum(shares.values()) == min(requested // unit, room) * unit
    assert all(0 < share <= available[node] and not share % unit for node, share in shares.items())


@given(st.integers(0, 100), nodes, units)
def test_even_shares_differ_by_more_than_a_unit_only_when_the_smaller_node_is_full(
    requested: int, available: dict[int, int], unit: int
) -> None:
    shares = node_allocation.split_evenly(requested, available, unit)
    for poorer, richer in itertools.permutations(available, 2):
        if shares.get(richer, 0) - shares.get(poorer, 0) > unit:
            assert available[poorer] - shares.get(poorer, 0) < unit


@given(st.integers(1, 100), nodes)
def test_packed_amounts_use_the_fewest_nodes(requested: int, available: dict[int, int]) -> None:
    shares = node_allocation.split_packed(requested, available)
    if shares:
        fewer = itertools.combinations(available.values(), len(shares) - 1)
        assert all(sum(each) < sum(shares.values()) for each in fewer)
