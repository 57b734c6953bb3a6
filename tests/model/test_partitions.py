from __future__ import annotations

from itertools import combinations, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.deviceobject import GPU_PARTITIONS
from agent.model.devices import Device
from agent.model.gpus import GpuPair
from agent.model.partitions import GpuPartition, Links, Table, encode, from_links, links

GB = 10**9


def matrix(text: str, speed: int = 25 * GB) -> Links:
    """Rows of how many links each pair has; `-` on the diagonal."""
    rows = [line.split() for line in text.strip().splitlines()]
    return Links(
        tuple(range(len(rows))),
        tuple(tuple(0 if each == "-" else int(each) * speed for each in row) for row in rows),
    )


def switched(count: int, lanes: int = 18) -> Links:
    return matrix(
        "\n".join(
            " ".join("-" if i == j else str(lanes) for j in range(count)) for i in range(count)
        )
    )


def sets(table: Table, size: int) -> list[tuple[int, ...]]:
    return [each.minors for each in table.get(size, ())]


DGX1_VOLTA = """
- 1 1 2 2 0 0 0
1 - 2 1 0 2 0 0
1 2 - 2 0 0 1 0
2 1 2 - 0 0 0 1
2 0 0 0 - 1 1 2
0 2 0 0 1 - 2 1
0 0 1 0 1 2 - 2
0 0 0 1 2 1 2 -
"""
BRIDGED_APART = """
- 0 4 0 0 0 0 0
0 - 0 4 0 0 0 0
4 0 - 0 0 0 0 0
0 4 0 - 0 0 0 0
0 0 0 0 - 0 4 0
0 0 0 0 0 - 0 4
0 0 0 0 4 0 - 0
0 0 0 0 0 4 0 -
"""
"""Pairs that are no neighbours by number, from a user's machine (devices.md §7, 20)."""


def test_eight_behind_switches_give_the_table_that_koordinator_has_for_hopper() -> None:
    table = from_links(switched(8))
    assert {size: sets(table, size) for size in table} == {
        1: [(n,) for n in range(8)],
        2: [(0, 1), (2, 3), (4, 5), (6, 7)],
        4: [(0, 1, 2, 3), (4, 5, 6, 7)],
        8: [tuple(range(8))],
    }
    assert {each.ring_bytes_per_second for each in table[4]} == {450 * GB}
    assert {each.score for partitions in table.values() for each in partitions} == {1}


def test_a_mesh_of_cubes() -> None:
    table = from_links(matrix(DGX1_VOLTA))
    assert sets(table, 4) == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert sets(table, 2) == [(0, 3), (1, 2), (4, 7), (5, 6)]
    assert [each.ring_bytes_per_second for each in table[2]] == [50 * GB] * 4
    (whole,) = table[8]
    assert whole.ring_bytes_per_second == 50 * GB


def test_bridges_between_cards_that_are_no_neighbours() -> None:
    table = from_links(matrix(BRIDGED_APART))
    assert sets(table, 2) == [(0, 2), (1, 3), (4, 6), (5, 7)]
    assert sorted(table) == [1, 2], "greater sets are joined by PCIe alone"


def test_the_faster_of_two_pairs_scores_higher() -> None:
    table = from_links(matrix("- 1 0 0\n1 - 0 0\n0 0 - 2\n0 0 2 -"))
    assert [(each.minors, each.score) for each in table[2]] == [((0, 1), 1), ((2, 3), 2)]


@pytest.mark.parametrize(
    ("count", "sizes"), [(3, [1, 2, 3]), (6, [1, 2, 3, 6]), (7, [1, 2, 3, 4, 7])]
)
def test_numbers_that_are_no_power_of_two(count: int, sizes: list[int]) -> None:
    table = from_links(switched(count))
    assert sorted(table) == sizes
    for size, partitions in table.items():
        minors = [minor for each in partitions for minor in each.minors]
        assert len(minors) == len(set(minors)), "sets of one size share nothing"
        assert all(len(each.minors) == size for each in partitions)


@pytest.mark.parametrize("few", [matrix("-"), matrix("- 0\n0 -"), Links((), ()), switched(17)])
def test_no_table(few: Links) -> None:
    assert from_links(few) == {}
    assert encode({}) == {}


@pytest.mark.parametrize(
    ("minors", "rows", "problem"),
    [
        ((0, 1), ((0, 1),), "links of 2 GPUs: not a row and a column each"),
        ((0, 1), ((0, 1), (1,)), "links of 2 GPUs: not a row and a column each"),
        ((3, 3), ((0, 1), (1, 0)), r"links of GPUs \(3, 3\): one twice"),
    ],
)
def test_links_that_make_no_sense(
    minors: tuple[int, ...], rows: tuple[tuple[int, ...], ...], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        from_links(Links(minors, rows))


def test_links_of_the_cards_that_can_be_had_whole() -> None:
    def card(uuid: str, minor: int, core: int = 100, kind: str = "gpu") -> Device:
        return Device(kind, uuid, minor, {"koordinator.sh/gpu-core": core} if core else {})

    devices = (card("c", 4), card("a", 2), card("mig", 3, 0), card("a", 0, kind="rdma"))
    pairs = (
        GpuPair("a", "mig", links=6, mb_per_second=150_000),
        GpuPair("c", "a", links=12, mb_per_second=300_000),
        GpuPair("a", "gone", links=12, mb_per_second=300_000),
    )
    assert links(devices, pairs) == Links((2, 4), ((0, 300 * GB), (300 * GB, 0)))


def test_a_link_that_its_ends_tell_differently_is_the_slower() -> None:
    table = from_links(Links((4, 2), ((0, 50 * GB), (25 * GB, 0))))
    assert table[2] == (GpuPartition((2, 4), ring_bytes_per_second=25 * GB),)


@st.composite
def matrices(draw: st.DrawFn) -> Links:
    count = draw(st.integers(2, 6))
    minors = draw(st.permutations(range(count + 2)))[:count]
    speeds = {pair: draw(st.integers(0, 3)) for pair in combinations(range(count), 2)}
    return Links(
        tuple(minors),
        tuple(
            tuple(0 if i == j else speeds[min(i, j), max(i, j)] for j in range(count))
            for i in range(count)
        ),
    )


def ring_by_trying(linked: Links, members: tuple[int, ...]) -> int:
    place = {minor: at for at, minor in enumerate(linked.minors)}
    ways = permutations(members[1:])
    return max(
        min(
            linked.bytes_per_second[place[a]][place[b]]
            for a, b in zip((members[0], *way), (*way, members[0]), strict=True)
        )
        for way in ways
    )


@given(matrices())
def test_every_set_is_as_fast_as_the_best_way_around_it(linked: Links) -> None:
    for partitions in from_links(linked).values():
        for each in partitions:
            if len(each.minors) > 1:
                assert each.ring_bytes_per_second == ring_by_trying(linked, each.minors) > 0


@given(matrices(), st.randoms(use_true_random=False))
def test_the_order_of_the_cards_changes_nothing(linked: Links, random: object) -> None:
    order = list(range(len(linked.minors)))
    random.shuffle(order)  # type: ignore[attr-defined]
    rows = linked.bytes_per_second
    other = Links(
        tuple(linked.minors[i] for i in order),
        tuple(tuple(rows[i][j] for j in order) for i in order),
    )
    assert encode(from_links(other)) == encode(from_links(linked))


@given(st.sampled_from([4, 6]), st.data())
def test_the_halves_are_the_best_that_there_are(count: int, data: st.DataObject) -> None:
    """Of all ways to halve the cards none has a faster slowest link, nor then more in sum."""
    pairs = list(combinations(range(count), 2))
    speeds = dict(zip(pairs, data.draw(st.tuples(*[st.integers(1, 4)] * len(pairs))), strict=True))
    rows = tuple(
        tuple(0 if i == j else speeds[min(i, j), max(i, j)] for j in range(count))
        for i in range(count)
    )

    def worth(half: tuple[int, ...]) -> tuple[int, int]:
        other = tuple(each for each in range(count) if each not in half)
        inside = [speeds[pair] for each in (half, other) for pair in combinations(each, 2)]
        return min(inside), sum(inside)

    low, high = sets(from_links(Links(tuple(range(count)), rows)), count // 2)
    assert sorted(low + high) == list(range(count))
    assert worth(low) == max(map(worth, combinations(range(count), count // 2)))


def test_the_annotation() -> None:
    table = {
        2: (GpuPartition((0, 1), ring_bytes_per_second=450 * GB, score=2),),
        1: (GpuPartition((0,)),),
    }
    assert encode(table)[GPU_PARTITIONS] == (
        '{"1":[{"minors":[0],"gpuLinkType":"NVLink","allocationScore":1}],'
        '"2":[{"minors":[0,1],"gpuLinkType":"NVLink","ringBusBandwidth":"450G","allocationScore":2}]}'
    )
