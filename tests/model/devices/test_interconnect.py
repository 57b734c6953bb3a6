from __future__ import annotations

from itertools import combinations, permutations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.devices.device_object import GPU_PARTITIONS, Device
from agent.model.devices.gpus import Ancestor, GpuPair
from agent.model.devices.interconnect import (
    GPU_LINKS,
    GpuLink,
    GpuPartition,
    Links,
    PartitionTable,
    decode_links,
    encode_links,
    encode_partitions,
    gpu_pairs,
    gpu_partitions,
    link_matrix,
)
from agent.model.pod.annotations import AnnotationError

GB = 10**9


def matrix(text: str, speed: int = 25 * GB) -> Links:
    """Rows with the number of links of each pair; `-` on the diagonal."""
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


def sets(table: PartitionTable, size: int) -> list[tuple[int, ...]]:
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


def test_eight_cards_behind_switches_give_koordinators_table_for_hopper() -> None:
    table = gpu_partitions(switched(8))
    assert {size: sets(table, size) for size in table} == {
        1: [(n,) for n in range(8)],
        2: [(0, 1), (2, 3), (4, 5), (6, 7)],
        4: [(0, 1, 2, 3), (4, 5, 6, 7)],
        8: [tuple(range(8))],
    }
    assert {each.ring_bytes_per_second for each in table[4]} == {450 * GB}
    assert {each.score for partitions in table.values() for each in partitions} == {1}


def test_a_hybrid_cube_mesh() -> None:
    table = gpu_partitions(matrix(DGX1_VOLTA))
    assert sets(table, 4) == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert sets(table, 2) == [(0, 3), (1, 2), (4, 7), (5, 6)]
    assert [each.ring_bytes_per_second for each in table[2]] == [50 * GB] * 4
    (whole,) = table[8]
    assert whole.ring_bytes_per_second == 50 * GB


def test_the_faster_of_two_pairs_scores_higher() -> None:
    table = gpu_partitions(matrix("- 1 0 0\n1 - 0 0\n0 0 - 2\n0 0 2 -"))
    assert [(each.minors, each.score) for each in table[2]] == [((0, 1), 1), ((2, 3), 2)]


@pytest.mark.parametrize(
    ("count", "sizes"), [(3, [1, 2, 3]), (6, [1, 2, 3, 6]), (7, [1, 2, 3, 4, 7])]
)
def test_numbers_of_cards_that_are_not_powers_of_two(count: int, sizes: list[int]) -> None:
    table = gpu_partitions(switched(count))
    assert sorted(table) == sizes
    for size, partitions in table.items():
        minors = [minor for each in partitions for minor in each.minors]
        assert len(minors) == len(set(minors)), "sets of one size share no card"
        assert all(len(each.minors) == size for each in partitions)


@pytest.mark.parametrize("links", [matrix("-"), matrix("- 0\n0 -"), Links((), ()), switched(17)])
def test_too_few_cards_give_no_table(links: Links) -> None:
    assert gpu_partitions(links) == {}
    assert encode_partitions({}) == {}


@pytest.mark.parametrize(
    ("minors", "rows", "problem"),
    [
        ((0, 1), ((0, 1),), "links of 2 GPUs: the matrix is not 2 x 2"),
        ((0, 1), ((0, 1), (1,)), "links of 2 GPUs: the matrix is not 2 x 2"),
        ((3, 3), ((0, 1), (1, 0)), r"links of GPUs \(3, 3\): a GPU is listed twice"),
    ],
)
def test_invalid_links(
    minors: tuple[int, ...], rows: tuple[tuple[int, ...], ...], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        gpu_partitions(Links(minors, rows))


def test_links_only_of_cards_with_whole_card_resources() -> None:
    def card(uuid: str, minor: int, core: int = 100, kind: str = "gpu") -> Device:
        return Device(kind, uuid, minor, {"koordinator.sh/gpu-core": core} if core else {})

    devices = (card("c", 4), card("a", 2), card("mig", 3, 0), card("a", 0, kind="rdma"))
    pairs = (
        GpuPair("a", "mig", links=6, mb_per_second=150_000),
        GpuPair("c", "a", links=12, mb_per_second=300_000),
        GpuPair("a", "missing", links=12, mb_per_second=300_000),
    )
    assert link_matrix(devices, pairs) == Links((2, 4), ((0, 300 * GB), (300 * GB, 0)))


def test_a_link_with_different_speeds_at_its_ends_has_the_slower() -> None:
    table = gpu_partitions(Links((4, 2), ((0, 50 * GB), (25 * GB, 0))))
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


def ring_by_brute_force(linked: Links, members: tuple[int, ...]) -> int:
    place = {minor: at for at, minor in enumerate(linked.minors)}
    orders = permutations(members[1:])
    return max(
        min(
            linked.bytes_per_second[place[a]][place[b]]
            for a, b in zip((members[0], *order), (*order, members[0]), strict=True)
        )
        for order in orders
    )


@given(matrices())
def test_every_sets_speed_is_that_of_its_fastest_ring(linked: Links) -> None:
    for partitions in gpu_partitions(linked).values():
        for each in partitions:
            if len(each.minors) > 1:
                assert each.ring_bytes_per_second == ring_by_brute_force(linked, each.minors) > 0


@given(matrices(), st.randoms(use_true_random=False))
def test_the_order_of_the_cards_changes_nothing(linked: Links, random: object) -> None:
    order = list(range(len(linked.minors)))
    random.shuffle(order)  # type: ignore[attr-defined]
    rows = linked.bytes_per_second
    other = Links(
        tuple(linked.minors[i] for i in order),
        tuple(tuple(rows[i][j] for j in order) for i in order),
    )
    assert encode_partitions(gpu_partitions(other)) == encode_partitions(gpu_partitions(linked))


@given(st.sampled_from([4, 6]), st.data())
def test_the_halves_are_the_best_possible_ones(count: int, data: st.DataObject) -> None:
    """No other division has a faster slowest link, or an equally fast one and a greater sum."""
    pairs = list(combinations(range(count), 2))
    speeds = dict(zip(pairs, data.draw(st.tuples(*[st.integers(1, 4)] * len(pairs))), strict=True))
    rows = tuple(
        tuple(0 if i == j else speeds[min(i, j), max(i, j)] for j in range(count))
        for i in range(count)
    )

    def speed(half: tuple[int, ...]) -> tuple[int, int]:
        other = tuple(each for each in range(count) if each not in half)
        inside = [speeds[pair] for each in (half, other) for pair in combinations(each, 2)]
        return min(inside), sum(inside)

    low, high = sets(gpu_partitions(Links(tuple(range(count)), rows)), count // 2)
    assert sorted(low + high) == list(range(count))
    assert speed(low) == max(map(speed, combinations(range(count), count // 2)))


def test_the_annotation() -> None:
    table = {
        2: (GpuPartition((0, 1), ring_bytes_per_second=450 * GB, score=2),),
        1: (GpuPartition((0,)),),
    }
    assert encode_partitions(table)[GPU_PARTITIONS] == (
        '{"1":[{"minors":[0],"gpuLinkType":"NVLink","allocationScore":1}],'
        '"2":[{"minors":[0,1],"gpuLinkType":"NVLink","ringBusBandwidth":"450G","allocationScore":2}]}'
    )


CARDS = [Device("gpu", f"GPU-{minor}", minor, {}) for minor in (0, 1, 4)]


def test_pairs_are_encoded_by_minor_and_grouped_by_equal_links() -> None:
    reported = [
        GpuPair("GPU-4", "GPU-0", Ancestor.SYSTEM, True),
        GpuPair("GPU-0", "GPU-1", Ancestor.SWITCH, True, 2, 50_000),
        GpuPair("GPU-1", "GPU-4", Ancestor.SYSTEM, False),
    ]
    assert msgspec.json.decode(encode_links(CARDS, reported)[GPU_LINKS]) == [
        {"pairs": [[0, 1]], "ancestor": "switch", "nvlinks": 2, "mbPerSecond": 50_000},
        {"pairs": [[0, 4], [1, 4]], "ancestor": "system"},
    ]


@pytest.mark.parametrize(
    "pairs",
    [
        pytest.param([], id="no pair"),
        pytest.param([GpuPair("GPU-0", "GPU-1", None, True)], id="only peer access is known"),
        pytest.param([GpuPair("GPU-0", "GPU-9", Ancestor.SWITCH)], id="a card that is not listed"),
    ],
)
def test_no_links_are_encoded_as_no_annotation(pairs: list[GpuPair]) -> None:
    assert encode_links([*CARDS, Device("rdma", "GPU-9", 9, {})], pairs) == {}


gpu_links = st.builds(
    GpuLink,
    st.sampled_from([None, *Ancestor]),
    st.integers(0, 18),
    st.integers(0, 900_000),
    st.booleans(),
).filter(lambda each: each != GpuLink())
minor = st.integers(0, 1023)
interconnects = st.dictionaries(
    st.tuples(minor, minor).filter(lambda pair: pair[0] < pair[1]), gpu_links, max_size=30
)


@given(interconnects, st.randoms(use_true_random=False))
def test_links_read_back_and_the_order_of_pairs_does_not_change_the_text(
    links: dict[tuple[int, int], GpuLink], random: st.random.Random
) -> None:
    cards = [Device("gpu", f"GPU-{each}", each, {}) for pair in links for each in pair]
    by_uuid = list(gpu_pairs(links, cards))
    assert len(by_uuid) == len(links)
    text = encode_links(cards, by_uuid)
    assert decode_links(text) == links
    random.shuffle(by_uuid)
    swapped = [
        msgspec.structs.replace(each, one=each.two, two=each.one) if random.random() < 0.5 else each
        for each in by_uuid
    ]
    assert encode_links(reversed(cards), swapped) == text


def test_pairs_of_missing_cards_are_left_out() -> None:
    links = {(0, 1): GpuLink(Ancestor.SWITCH), (0, 3): GpuLink(Ancestor.SYSTEM)}
    assert gpu_pairs(links, CARDS) == (GpuPair("GPU-0", "GPU-1", Ancestor.SWITCH),)


@pytest.mark.parametrize("notes", [{}, {GPU_LINKS: ""}, {GPU_LINKS: "null"}, {GPU_LINKS: "[]"}])
def test_no_reported_links(notes: dict[str, str]) -> None:
    assert decode_links(notes) == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", "is not JSON"),
        ('[{"other":' + "[" * 100_000, "is not JSON"),
        ('{"pairs":[]}', "Expected `array | null`, got `object`"),
        ("[{}]", "missing required field `pairs` - at `$[0]`"),
        ('[{"pairs":[[0]]}]', "`$[0].pairs[0]`"),
        ('[{"pairs":[[0,-1]]}]', "`$[0].pairs[0][1]`"),
        ('[{"pairs":[[0,1024]]}]', "`$[0].pairs[0][1]`"),
        ('[{"pairs":[[0,1]],"ancestor":"PIX"}]', "'PIX' - at `$[0].ancestor`"),
        ('[{"pairs":[],"nvlinks":-1}]', "`$[0].nvlinks`"),
        ('[{"pairs":[],"mbPerSecond":1e30}]', "`$[0].mbPerSecond`"),
        ('[{"pairs":[[0,1],[2,2]]}]', "[0].pairs[1]: GPU 2 is paired with itself"),
        ('[{"pairs":[[0,1]]},{"pairs":[[1,0]]}]', "[1].pairs[0]: GPUs 1 and 0 are listed twice"),
    ],
)
def test_an_invalid_annotation_names_the_field(text: str, message: str) -> None:
    with pytest.raises(AnnotationError) as caught:
        decode_links({GPU_LINKS: text})
    assert str(caught.value).startswith(f"annotation {GPU_LINKS}: ")
    assert message in str(caught.value)
