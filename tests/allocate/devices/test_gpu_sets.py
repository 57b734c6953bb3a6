from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocate.devices.gpu_sets import BandwidthTable, BestEffortTable, Matrix
from agent.model.cpu.cpuset import members
from tests.allocate.devices.links import BRIDGED, MATRICES, VOLTA, best_by_enumeration, symmetric


def best(matrix: Matrix, free: set[int], count: int) -> tuple[int, ...] | None:
    mask = BandwidthTable(matrix).best(sum(1 << place for place in free), count)
    return None if mask is None else tuple(members(mask))


@given(MATRICES, st.none() | st.integers(0, 2**60), st.data())
def test_the_result_is_the_best_set_by_definition(
    matrix: Matrix, seed: int | None, data: st.DataObject
) -> None:
    """Equal sums are ordered by distance, if that is known."""
    distance = None
    if seed is not None:
        distance = symmetric(len(matrix), lambda i, j: 1 << (seed >> (i + 8 * j) & 3))
    free = data.draw(st.integers(1, (1 << len(matrix)) - 1))
    table = BandwidthTable(matrix, distance)
    for count in range(1, free.bit_count() + 1):
        chosen = table.best(free, count)
        assert chosen is not None
        assert tuple(members(chosen)) == best_by_enumeration(matrix, free, count, distance)


@given(st.integers(0, 2**60), st.integers(1, (1 << 11) - 1), st.integers(1, 11))
def test_the_result_is_also_the_best_when_free_sets_are_enumerated(
    seed: int, free: int, count: int
) -> None:
    """Eleven GPUs have hundreds of sets of one size."""
    matrix = symmetric(11, lambda i, j: seed >> (i + j) % 56 & 3)
    chosen = BandwidthTable(matrix).best(free, count)
    if count > free.bit_count():
        assert chosen is None
    else:
        assert chosen is not None
        assert tuple(members(chosen)) == best_by_enumeration(matrix, free, count)


@pytest.mark.parametrize(
    ("matrix", "free", "count", "expected"),
    [
        pytest.param(VOLTA, {1, 2}, 3, None, id="more cards than are free"),
        pytest.param(VOLTA, {1, 2}, 0, None, id="no card"),
        pytest.param(BRIDGED, {3, 4}, 1, None, id="a card outside the matrix"),
    ],
)
def test_known_machines(
    matrix: Matrix, free: set[int], count: int, expected: tuple[int, ...] | None
) -> None:
    assert best(matrix, free, count) == expected


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        pytest.param(symmetric(17, lambda _i, _j: 1), "links of 17 GPUs: at most 16", id="many"),
        pytest.param(((0, 1), (2, 0)), "links of GPUs 0 and 1: 1 and 2", id="asymmetric"),
        pytest.param(((0, -1), (-1, 0)), "links of GPUs 0 and 1: -1 and -1", id="negative"),
        pytest.param(((0, 1), (1,)), "links of GPU 1: 1 for 2 GPUs", id="ragged"),
    ],
)
def test_an_invalid_matrix_is_refused(matrix: Matrix, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BandwidthTable(matrix)


PAD = 99


def partitions(indices: tuple[int, ...], size: int, pads: int) -> Iterator[list[tuple[int, ...]]]:
    """The enumeration of the policy: padded to a multiple of `size`, all padding in one set."""
    if not indices:
        yield []
        return
    for others in combinations(indices[1:], size - 1):
        one = (indices[0], *others)
        if one.count(PAD) in (0, pads):
            rest = list(indices)
            for each in one:
                rest.remove(each)
            for more in partitions(tuple(rest), size, pads):
                yield [one, *more]


def best_by_partitions(matrix: Matrix, free: int, size: int) -> tuple[int, ...]:
    indices = tuple(members(free))
    if size == 1:
        return indices[:1]
    pads = -len(indices) % size

    def score(one: tuple[int, ...]) -> int:
        return sum(matrix[i][j] for i, j in combinations(one, 2) if PAD not in (i, j))

    every = partitions((*indices, *([PAD] * pads)), size, pads)
    best = max(every, key=lambda sets: sum(map(score, sets)))
    return max((one for one in best if PAD not in one), key=score)


@given(MATRICES, st.data())
def test_the_best_effort_set_is_the_best_by_definition(matrix: Matrix, data: st.DataObject) -> None:
    free = data.draw(st.integers(1, (1 << len(matrix)) - 1))
    table = BestEffortTable(matrix)
    for count in range(1, free.bit_count() + 1):
        chosen = table.best(free, count)
        assert chosen is not None
        assert tuple(members(chosen)) == best_by_partitions(matrix, free, count)


@pytest.mark.parametrize(
    ("matrix", "free", "count", "expected"),
    [
        pytest.param(VOLTA, {0, 2, 4, 5}, 2, (4, 5), id="two pairs"),
        pytest.param(VOLTA, {0, 4, 5, 6}, 2, (5, 6), id="two better pairs"),
        pytest.param(VOLTA, {0, 1, 3}, 2, (0, 3), id="one card more"),
        pytest.param(VOLTA, {0, 1, 4}, 2, (0, 4), id="one card more, another CPU"),
        pytest.param(BRIDGED, {0, 1, 2, 3}, 2, (0, 3), id="bridged"),
        pytest.param(VOLTA, {0, 1}, 3, None, id="more cards than are free"),
    ],
)
def test_results_equal_go_gpuallocators(
    matrix: Matrix, free: set[int], count: int, expected: tuple[int, ...] | None
) -> None:
    mask = BestEffortTable(matrix).best(sum(1 << index for index in free), count)
    assert (None if mask is None else tuple(members(mask))) == expected


def test_sixteen_gpus_are_divided_into_pairs() -> None:
    matrix = tuple(tuple(abs(i - j) % 5 for j in range(16)) for i in range(16))
    table = BestEffortTable(matrix)
    chosen = table.best((1 << 16) - 1, 2)
    assert chosen is not None
    assert chosen.bit_count() == 2
