from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocate.node_allocator.cpus import burst_amounts, burst_nodes
from agent.allocate.refusal import Reason, Refusal
from agent.model.cpu.policies import NUMA_STRATEGIES, Strategy

MOST, LEAST, _ = NUMA_STRATEGIES


@pytest.mark.parametrize(
    ("limit", "request_milli", "pools", "available", "strategy", "nodes"),
    [
        (4000, 1000, {0: 8000, 1: 4000, 2: 3000}, {0: 8000, 1: 4000, 2: 3000}, MOST, (1,)),
        (4000, 1000, {0: 8000, 1: 4000, 2: 3000}, {0: 8000, 1: 4000, 2: 3000}, LEAST, (0,)),
        (4000, 1000, {0: 8000, 1: 8000}, {0: 2000, 1: 3000}, LEAST, (1,)),
        (4000, 2500, {0: 4000, 1: 8000}, {0: 2000, 1: 3000}, MOST, (1,)),
        (12_000, 1000, {0: 4000, 1: 8000, 5: 6000}, {0: 4000, 1: 8000, 5: 6000}, MOST, (1, 5)),
        (4000, 6000, {0: 4000, 1: 8000}, {0: 4000, 1: 3000}, LEAST, (0, 1)),
    ],
)
def test_nodes_that_fit(limit, request_milli, pools, available, strategy, nodes) -> None:
    assert burst_nodes(limit, request_milli, pools, available, strategy, {}, {}) == nodes


def test_a_limit_beyond_all_pools_is_refused_with_their_sum() -> None:
    got = burst_nodes(9000, 1000, {0: 4000, 1: 4000}, {0: 4000, 1: 4000}, LEAST, {}, {})
    assert got == Refusal(Reason.NO_POOL_FITS, "cpu", 9000, 8000)


def test_pools_that_fit_but_are_allocated_to_others_have_another_reason() -> None:
    got = burst_nodes(4000, 3000, {0: 4000, 1: 4000}, {0: 1000, 1: 1000}, LEAST, {}, {})
    assert got == Refusal(Reason.NUMA_INSUFFICIENT, "cpu", 3000, 2000, (0, 1))


@pytest.mark.parametrize(
    ("memory", "free", "nodes"),
    [
        (10, {0: 10, 1: 10, 2: 10}, (1,)),
        (10, {0: 10, 1: 9, 2: 10}, (0,)),
        (15, {0: 10, 1: 9, 2: 10}, (0, 1)),
        (25, {0: 10, 1: 9, 2: 10}, (0, 1, 2)),
        (30, {0: 10, 1: 9, 2: 10}, 29),
    ],
)
def test_nodes_whose_memory_will_be_bound(
    memory: int, free: dict[int, int], nodes: tuple[int, ...] | int
) -> None:
    pools = {0: 8000, 1: 5000, 2: 3000}
    got = burst_nodes(4000, 1000, pools, pools, MOST, {"memory": memory}, {"memory": free})
    if isinstance(nodes, int):
        assert got == Refusal(Reason.NUMA_INSUFFICIENT, "memory", memory, nodes, (0, 1, 2))
    else:
        assert got == nodes


amounts = st.integers(0, 16).map(lambda cpus: cpus * 1000)


@given(
    st.dictionaries(st.integers(0, 40), amounts, max_size=5),
    st.integers(1, 40_000),
    st.sampled_from(NUMA_STRATEGIES),
)
def test_the_chosen_nodes_fit_and_a_single_fitting_node_is_preferred(
    pools: dict[int, int], limit: int, strategy: Strategy
) -> None:
    got = burst_nodes(limit, 500, pools, pools, strategy, {}, {})
    if isinstance(got, Refusal):
        assert sum(pools.values()) < max(limit, 500)
        return
    assert sum(pools[node] for node in got) >= limit
    assert len(got) == 1 or max(pools.values()) < max(limit, 500)
    assert sum(burst_amounts(500, got, pools).values()) >= 500
    assert all(burst_amounts(500, got, pools)[node] > 0 for node in got)
