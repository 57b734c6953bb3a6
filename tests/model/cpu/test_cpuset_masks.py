from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent.model.cpu.cpuset import lowest, members

SETS = st.sets(st.integers(0, 600))


def mask(ids: set[int]) -> int:
    return sum(1 << each for each in ids)


@given(SETS)
def test_members_ascend(ids: set[int]) -> None:
    assert list(members(mask(ids))) == sorted(ids)


@given(SETS, st.integers(-1, 610))
def test_lowest_are_the_first_members(ids: set[int], count: int) -> None:
    assert lowest(mask(ids), count) == mask(set(sorted(ids)[: max(0, count)]))
