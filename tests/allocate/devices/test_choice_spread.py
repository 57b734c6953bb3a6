from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocate.devices.choice import best_spread
from agent.allocate.devices.gpu_sets import Matrix, table
from agent.model.cpu.cpuset import members
from agent.model.cpu.policies import GpuObjective
from tests.allocate.devices.links import MATRICES


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
