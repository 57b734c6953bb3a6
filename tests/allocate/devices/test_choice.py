"""Whole cards on a node with known links."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocate.devices.choice import best_spread
from agent.allocate.devices.gpu_sets import Matrix, table
from agent.allocate.devices.inventory import linked
from agent.allocate.refusal import Reason, Refusal
from agent.model.cpu.cpuset import members
from agent.model.cpu.policies import GpuObjective
from tests.allocate.devices.builders import (
    CARDS,
    GPU,
    HINT,
    JOINT,
    RDMA,
    allocation,
    gpu,
    minors,
    nic,
    node,
)
from tests.allocate.devices.links import CROSSED, MATRICES, VOLTA, VOLTA_PAIRS, matrix, symmetric

EIGHT = [gpu(each, each // 4, f"p{each // 2}") for each in range(8)]


@pytest.mark.parametrize(
    ("used", "cards", "expected"),
    [
        ({}, 2, [0, 2]),
        ({0: 1}, 2, [1, 3]),
        ({0: 1, 1: 1}, 2, [4, 6]),
        ({0: 1, 3: 1, 4: 1, 7: 1}, 2, [1, 2]),
        ({}, 8, list(range(8))),
    ],
)
def test_links_count_more_than_numbers_and_switches(
    used: dict[int, int], cards: int, expected: list[int]
) -> None:
    node_ = node(EIGHT, used, links=linked(range(8), CROSSED))
    assert minors(allocation(node_, {CARDS: cards})) == expected


def test_the_configured_objective_decides() -> None:
    """Two of three cards have a fast link: a single card should not split this pair, regardless of
    its minor."""
    pair = symmetric(3, lambda i, j: 9 if (i, j) == (0, 1) else 1)
    cards = EIGHT[:3]
    assert minors(allocation(node(cards, links=linked(range(3), pair)), {CARDS: 1})) == [2]
    other = linked(range(3), pair, GpuObjective.BESTEFFORT)
    assert minors(allocation(node(cards, links=other), {CARDS: 1})) == [0]
    volta = linked(range(8), VOLTA, GpuObjective.BESTEFFORT)
    used = {1: 1, 3: 1, 6: 1, 7: 1}
    assert minors(allocation(node(EIGHT, used, links=volta), {CARDS: 2})) == [4, 5]


@pytest.mark.parametrize(("scope", "expected"), [("PCIe", [0, 1]), ("NUMANode", [0, 2])])
def test_within_a_required_scope(scope: str, expected: list[int]) -> None:
    node_ = node(EIGHT, links=linked(range(8), CROSSED))
    hint = {"gpu": {"requiredTopologyScope": scope}}
    assert minors(allocation(node_, {CARDS: 2}, {HINT: hint})) == expected
    found = allocation(node_, {CARDS: 5}, {HINT: hint})
    assert found == Refusal(Reason.DEVICE_SCOPE, "gpu")


NICS = [nic(each, each // 2, f"p{each}") for each in range(4)]


@pytest.mark.parametrize(
    ("scope", "amounts", "used", "expected"),
    [
        pytest.param(
            "SamePCIe", {CARDS: 2, RDMA: 100}, {}, [2, 3], id="one switch with all devices"
        ),
        pytest.param("SamePCIe", {CARDS: 2, RDMA: 100}, {3: 1}, [6, 7], id="another switch"),
        pytest.param(
            "SamePCIe", {CARDS: 2, RDMA: 100}, {3: 1, 7: 1, 4: 1}, [0, 1], id="the last such switch"
        ),
        pytest.param("SamePCIe", {CARDS: 2, RDMA: 200}, {}, [0, 3], id="NICs of two switches"),
        pytest.param(
            "SamePCIe", {CARDS: 3, RDMA: 100}, {}, [0, 2, 3], id="no switch with three cards"
        ),
        pytest.param(
            "SameNUMANode", {CARDS: 2, RDMA: 100}, {1: 1, 3: 1, 6: 1, 7: 1}, [0, 2], id="a node"
        ),
        pytest.param("", {CARDS: 2, RDMA: 100}, {1: 1, 3: 1, 6: 1, 7: 1}, [0, 4], id="preferred"),
    ],
)
def test_cards_near_nics_are_the_best_set_of_a_scope_with_both(
    scope: str, amounts: dict[str, int], used: dict[int, int], expected: list[int]
) -> None:
    """On DGX-1; 0 and 4 have two links across NUMA nodes, 0 and 1 one behind their switch."""
    links = linked(range(8), matrix(8, VOLTA_PAIRS, GpuObjective.BANDWIDTH))
    joint = {JOINT: {"deviceTypes": ["gpu", "rdma"], "requiredScope": scope}}
    found = allocation(node([*EIGHT, *NICS], used, links=links), amounts, joint)
    assert minors(found) == expected
    if scope == "SamePCIe":
        assert set(minors(found, "rdma")) == {minor // 2 for minor in expected}


def test_a_narrower_scope_of_the_cards_applies_too() -> None:
    links = linked(range(8), matrix(8, VOLTA_PAIRS, GpuObjective.BANDWIDTH))
    annotations = {
        JOINT: {"deviceTypes": ["gpu", "rdma"], "requiredScope": "SameNUMANode"},
        HINT: {"gpu": {"requiredTopologyScope": "PCIe"}},
    }
    node_ = node([*EIGHT, *NICS], {2: 1, 6: 1}, links=links)
    assert minors(allocation(node_, {CARDS: 2, RDMA: 100}, annotations)) in ([0, 1], [4, 5])


def test_matrix_indices_need_not_be_minors() -> None:
    cards = [gpu(each) for each in (1, 4, 6, 9)]
    speeds = symmetric(4, lambda i, j: 9 if (i, j) in ((0, 3), (1, 2)) else 1)
    links = linked([1, 4, 6, 9], speeds)
    assert minors(allocation(node(cards, links=links), {CARDS: 2})) == [1, 9]
    assert minors(allocation(node(cards, {9: 1}, links=links), {CARDS: 2})) == [4, 6]


def test_the_topology_decides_when_cards_are_missing_from_the_matrix() -> None:
    links = linked(range(2), symmetric(2, lambda _i, _j: 1))
    assert minors(allocation(node(EIGHT, links=links), {CARDS: 4})) == [0, 1, 2, 3]


def test_shares_ignore_links() -> None:
    node_ = node(EIGHT, {5: 10}, links=linked(range(8), CROSSED))
    assert minors(allocation(node_, {GPU: 10})) == [4]


@pytest.mark.parametrize("objective", GpuObjective)
@given(MATRICES, st.data())
def test_the_result_is_the_best_set_that_touches_each_group(
    objective: GpuObjective, matrix: Matrix, data: st.DataObject
) -> None:
    indices = range(len(matrix))
    group_of = data.draw(st.lists(st.integers(0, 3), min_size=len(matrix), max_size=len(matrix)))
    free = data.draw(st.integers(1, (1 << len(matrix)) - 1))
    count = data.draw(st.integers(1, free.bit_count()))
    masks = [sum(1 << each for each in indices if group_of[each] == group) for group in range(3)]
    groups = tuple(mask for mask in masks if mask)
    linked = table(matrix, objective)
    sets = [
        mask
        for mask in map(sum, combinations([1 << each for each in members(free)], count))
        if all(mask & group for group in groups)
    ]
    found = best_spread(linked, free, count, groups)
    if not sets:
        assert found is None
    else:
        best = max(linked.score(each, free) for each in sets)
        assert found == next(each for each in sets if linked.score(each, free) == best)
