from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocate.devices.gpu_sets import BestEffortTable, Matrix
from agent.model.cpu.cpuset import members
from tests.allocate.devices.links import BRIDGED, MATRICES, VOLTA

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


def best_by_enumeration(matrix: Matrix, free: int, size: int) -> tuple[int, ...]:
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
def test_the_result_is_the_best_set_by_definition(matrix: Matrix, data: st.DataObject) -> None:
    free = data.draw(st.integers(1, (1 << len(matrix)) - 1))
    table = BestEffortTable(matrix)
    for count in range(1, free.bit_count() + 1):
        chosen = table.best(free, count)
        assert chosen is not None
        assert tuple(members(chosen)) == best_by_enumeration(matrix, free, count)


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
    table.prepare(2)
    chosen = table.best((1 << 16) - 1, 2)
    assert chosen is not None
    assert chosen.bit_count() == 2
