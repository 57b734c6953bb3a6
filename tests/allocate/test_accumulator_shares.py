from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocate import accumulator
from agent.model.cpu import layout as layouts
from agent.model.cpu.layout import Layout
from agent.model.cpu.topology import Cpu
from conformance import machines
from tests.allocate.kubelet.nodes import mask

ROOMS = st.lists(st.integers(0, 20), min_size=1, max_size=6)


@pytest.mark.parametrize(
    ("rooms", "need", "shares"),
    [
        pytest.param([8, 8], 4, [2, 2], id="divides"),
        pytest.param([8, 8, 8], 4, [2, 1, 1], id="the remainder to the first of equal rooms"),
        pytest.param([6, 8, 7], 4, [1, 2, 1], id="the remainder to the most room"),
        pytest.param([1, 8, 8], 9, [1, 4, 4], id="a small node gives all"),
        pytest.param([1, 3, 8], 12, [1, 3, 8], id="everything available"),
        pytest.param([0, 3], 2, [0, 2], id="no room at all"),
    ],
)
def test_even(rooms: list[int], need: int, shares: list[int]) -> None:
    assert accumulator.even(rooms, need) == shares


@given(ROOMS, st.data())
def test_even_shares_cannot_be_improved(rooms: list[int], data: st.DataObject) -> None:
    need = data.draw(st.integers(0, sum(rooms)))
    shares = accumulator.even(rooms, need)
    assert sum(shares) == need
    assert all(0 <= share <= room for share, room in zip(shares, rooms, strict=True))
    for low, low_room in zip(shares, rooms, strict=True):
        for high, high_room in zip(shares, rooms, strict=True):
            if low < high and low < low_room:
                assert high == low + 1
                assert high_room >= low_room


def machine(*shape: int) -> Layout:
    return layouts.of(machines.cpus(shape, "adjacent"))


@pytest.mark.parametrize(
    ("free", "need", "whole_cores", "all_nodes", "shares"),
    [
        # Two sockets of two NUMA nodes of four cores of two threads: node 0 is 0-7, 1 8-15, ...
        pytest.param("0-31", 8, True, False, {0: 8}, id="one node can hold it"),
        pytest.param("0-31", 8, True, True, {0: 2, 1: 2, 2: 2, 3: 2}, id="all nodes"),
        pytest.param("0-31", 12, True, False, {0: 6, 1: 6}, id="the fewest nodes"),
        pytest.param("0-31", 6, True, True, {0: 2, 1: 2, 2: 2}, id="no half cores"),
        pytest.param("0-31", 6, False, True, {0: 2, 1: 2, 2: 1, 3: 1}, id="CPUs, not cores"),
        pytest.param("0-31", 9, True, True, {0: 3, 1: 2, 2: 2, 3: 2}, id="an odd CPU"),
        pytest.param("2-31", 12, True, False, {2: 6, 3: 6}, id="most room, evenly"),
        pytest.param("0-5,8-13,16-23", 10, False, False, {0: 5, 1: 5}, id="one socket if possible"),
        pytest.param("0-3,8-9,16-23,24-29", 14, False, False, {2: 8, 3: 6}, id="fewest, uneven"),
        pytest.param("0-3,8,10,12,14", 6, True, False, {0: 3, 1: 3}, id="too few whole cores"),
        pytest.param("0-3,8-12", 6, True, True, {0: 4, 1: 2}, id="whole cores are enough"),
    ],
)
def test_shares(
    free: str, need: int, whole_cores: bool, all_nodes: bool, shares: dict[int, int]
) -> None:
    layout = machine(2, 2, 4, 2)
    assert accumulator.shares(layout, mask(free), need, whole_cores, all_nodes) == shares


@given(st.integers(0, 2**32 - 1), st.data())
def test_shares_are_on_the_fewest_nodes_and_even_on_them(free: int, data: st.DataObject) -> None:
    layout = machine(2, 2, 4, 2)
    need = data.draw(st.integers(0, free.bit_count()))
    rooms = {node.id: (free & node.cpus).bit_count() for node in layout.nodes}
    shares = accumulator.shares(layout, free, need, whole_cores=False, all_nodes=False)
    assert sum(shares.values()) == need
    largest = sorted(rooms.values(), reverse=True)
    assert len(shares) == next(n for n in range(5) if sum(largest[:n]) >= need)
    best = accumulator.even(largest[: len(shares)], need)
    amounts = list(shares.values())
    if shares:
        assert max(amounts) - min(amounts) == max(best) - min(best)


def test_cores_that_differ() -> None:
    # One core of two threads per NUMA node, and one of one thread on the first two.
    layout = layouts.of(
        Cpu(node * 3 + i, node * 3 + i // 2 * 2, None, None, 0, node)
        for node, count in enumerate((3, 3, 2))
        for i in range(count)
    )
    assert accumulator.shares(layout, layout.cpus, 6, True, False) == {0: 2, 1: 2, 2: 2}
    assert accumulator.shares(layout, layout.cpus, 7, True, False) == {0: 3, 1: 2, 2: 2}
