from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.cpu.cpuset import EMPTY, CpuSet, CpuSetError, lowest, members, union
from tests.fixtures.trees import mask_text

ids = st.frozensets(st.integers(0, 600), max_size=80)


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("", []),
        ("\n", []),
        ("0", [0]),
        ("0-3,8", [0, 1, 2, 3, 8]),
        ("8,0-3", [0, 1, 2, 3, 8]),
        (" 1 , 3-4 \n", [1, 3, 4]),
        ("2,2,1-3", [1, 2, 3]),
        ("0-15:2/4", [0, 1, 4, 5, 8, 9, 12, 13]),
        ("0-4:3/4", [0, 1, 2, 4]),
        ("4095", [4095]),
    ],
)
def test_list_is_read(text: str, cpus: list[int]) -> None:
    assert list(CpuSet.parse(text)) == cpus


@pytest.mark.parametrize(
    "text",
    [
        *("1-", "-1", "-", "3-1", "1-2-3", "a", ",", "1,,2", "1,", "1 2"),
        *("0x3", "1.5", "٣", "+1", "1_0", "0-65536", "99999999999999999999"),
        *("0-3:", "0-3:2", "0-3:0/2", "0-3:3/2", "3:1/2"),
    ],
)
def test_bad_list_is_refused_and_quoted(text: str) -> None:
    with pytest.raises(CpuSetError) as error:
        CpuSet.parse(text)
    assert repr(text) in str(error.value)


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("0", []),
        ("f", [0, 1, 2, 3]),
        ("0x5", [0, 2]),
        ("1,00000000", [32]),
        ("00000000,0000000c\n", [2, 3]),
        ("ff,ffffffff", list(range(40))),
    ],
)
def test_mask_is_read(text: str, cpus: list[int]) -> None:
    assert list(CpuSet.parse_mask(text)) == cpus


@pytest.mark.parametrize(
    "text", ["", "g", "1,", "123456789", "-1", "1,0x1", "f f", "1_0", "1," + "0," * 3000 + "0"]
)
def test_bad_mask_is_refused(text: str) -> None:
    with pytest.raises(CpuSetError):
        CpuSet.parse_mask(text)


@given(ids)
def test_both_formats_read_back(cpus: frozenset[int]) -> None:
    one = CpuSet(cpus)
    assert CpuSet.parse(str(one)) == one
    assert CpuSet.parse_mask(mask_text(one)) == one
    assert list(one) == sorted(cpus)


@given(ids, ids)
def test_operators_equal_those_of_sets(a: frozenset[int], b: frozenset[int]) -> None:
    x, y = CpuSet(a), CpuSet(b)
    assert set(x | y) == a | b
    assert set(x & y) == a & b
    assert set(x - y) == a - b
    assert set(x ^ y) == a ^ b
    assert (x <= y, x < y, x >= y, x > y) == (a <= b, a < b, a >= b, a > b)
    assert (x == y) == (a == b)
    assert len(x) == len(a)
    assert bool(x) == bool(a)
    assert union([x, y]) == x | y
    assert x.first() == min(a, default=None)


@given(ids)
def test_ranges_are_maximal_runs(cpus: frozenset[int]) -> None:
    runs = list(CpuSet(cpus).ranges())
    assert {c for a, b in runs for c in range(a, b + 1)} == cpus
    assert all(b + 1 < c for (_, b), (c, _) in itertools.pairwise(runs))


def test_membership_and_equality_with_other_types() -> None:
    one = CpuSet([0, 5])
    assert 5 in one
    assert 4 not in one
    assert -1 not in one
    assert one != 33
    assert not EMPTY


def test_negative_mask_is_refused() -> None:
    with pytest.raises(CpuSetError):
        CpuSet.from_int(-1)


SETS = st.sets(st.integers(0, 600))


def mask(ids: set[int]) -> int:
    return sum(1 << each for each in ids)


@given(SETS)
def test_members_ascend(ids: set[int]) -> None:
    assert list(members(mask(ids))) == sorted(ids)


@given(SETS, st.integers(-1, 610))
def test_lowest_are_the_first_members(ids: set[int], count: int) -> None:
    assert lowest(mask(ids), count) == mask(set(sorted(ids)[: max(0, count)]))
