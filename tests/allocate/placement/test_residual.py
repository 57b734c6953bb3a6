"""The placement policy that maximizes the residual value of GPUs."""

from __future__ import annotations

from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocate.placement.demand import FreeAmounts, node_capacity
from agent.allocate.placement.residual import CELL, Residual, placement, remainder_values, residual
from agent.model.cpu.policies import PlacementPolicy
from agent.model.pod_request import GPU_MILLI, PodKind

GIB = 1 << 30
PARTS = {190: 5, 320: 40, 470: 60, 650: 40, 810: 80}
WHOLE = PodKind(8000, 32 * GIB, 1, GPU_MILLI)
HALF = PodKind(4000, 16 * GIB, 1, 500)
PLAIN = PodKind(8000, 16 * GIB)


def amounts(
    name: str, gpu_milli: dict[int, int], cpu_milli: int = 64_000, model: str = "G2"
) -> FreeAmounts:
    capacity = node_capacity(name, 64_000, 256 * GIB, len(gpu_milli), model)
    return FreeAmounts(capacity, cpu_milli, 256 * GIB, gpu_milli)


def built(*kinds: PodKind) -> Residual:
    nodes = [
        amounts(f"n{number}", dict.fromkeys(range(8), GPU_MILLI)).capacity for number in range(10)
    ]
    return residual(dict.fromkeys(kinds, 10), nodes)


def test_the_rest_of_a_common_share_has_the_value_of_the_shares_that_fit() -> None:
    value = remainder_values(PARTS)
    assert [round(value[milli // CELL], 6) for milli in (0, 180, 470, 940, GPU_MILLI)] == [
        0,
        0,
        0.5,
        1,
        1,
    ]
    assert value[810 // CELL] == pytest.approx(1)
    assert value[320 // CELL] + value[650 // CELL] == pytest.approx(1)


@given(st.dictionaries(st.integers(1, 100), st.integers(1, 1000), min_size=1, max_size=12))
def test_no_set_of_shares_of_one_gpu_has_a_higher_value_than_the_gpu(
    percents: dict[int, int],
) -> None:
    value = remainder_values({percent * CELL: pods for percent, pods in percents.items()})
    assert value[0] == pytest.approx(0)
    assert value[-1] == pytest.approx(1)
    assert all(one <= two + 1e-9 for one, two in pairwise(value))
    for one, two in product(range(0, 101, 7), repeat=2):
        if one + two <= 100:
            assert value[one] + value[two] <= value[one + two] + 1e-6


def test_a_share_is_placed_on_the_device_that_it_completes() -> None:
    kind = PodKind(4000, 16 * GIB, 1, 470)
    policy = residual({PodKind(1, 1, 1, milli): pods for milli, pods in PARTS.items()}, [])
    found = policy.rating(amounts("a", {0: 1000, 1: 530, 2: 680}), kind)
    assert found.cards == (1,)
    partly_used = policy.rating(amounts("a", {0: 530}), kind)
    less_used = policy.rating(amounts("a", {0: 680}), kind)
    assert partly_used.cost < less_used.cost
    assert partly_used.points >= less_used.points


def test_a_pod_without_gpus_avoids_nodes_with_idle_gpus() -> None:
    policy = built(WHOLE)
    many, none = (
        amounts("a", dict.fromkeys(range(8), GPU_MILLI)),
        amounts("a", dict.fromkeys(range(8), 0)),
    )
    assert policy.rating(none, PLAIN).cost < policy.rating(many, PLAIN).cost


def test_idle_gpus_without_cpu_are_stranded() -> None:
    policy = built(WHOLE, HALF)
    assert policy.stranded(8.0, 0, 256 * GIB) == pytest.approx(8, abs=0.01)
    assert policy.stranded(8.0, 1_000_000, 1 << 50) == pytest.approx(0, abs=0.01)
    assert policy.stranded(0.0, 0, 0) == 0


@given(st.floats(0, 16), st.integers(0, 200_000), st.integers(0, 1 << 40))
def test_more_cpu_never_strands_more_gpus(idle: float, cpu: int, memory: int) -> None:
    policy = built(WHOLE, HALF)
    found = policy.stranded(idle, cpu, memory)
    assert 0 <= found <= idle
    assert policy.stranded(idle, cpu + 1000, memory) <= found + 1e-9


def test_a_gpu_of_a_model_that_other_pods_require_costs_more() -> None:
    nodes = [amounts(name, {0: GPU_MILLI}, model=name).capacity for name in ("T4", "G2")]
    policy = residual({PodKind(1000, GIB, 1, GPU_MILLI, ("T4",)): 5, WHOLE: 5}, nodes)
    assert policy.models == pytest.approx({"T4": 0.5})
    assert policy.rating(amounts("n", {0: GPU_MILLI}, model="G2"), WHOLE).cost < (
        policy.rating(amounts("n", {0: GPU_MILLI}, model="T4"), WHOLE).cost
    )


def test_nodes_with_equal_amounts_are_ordered_by_their_names() -> None:
    policy = built(WHOLE)
    costs = {policy.rating(amounts(name, {0: GPU_MILLI}), WHOLE).cost for name in "abcdef"}
    assert len(costs) == 6


@pytest.mark.parametrize("policy", PlacementPolicy, ids=lambda each: each.value)
def test_every_placement_has_points_in_the_order_of_its_costs(policy: PlacementPolicy) -> None:
    free = [
        amounts(name, {0: first, 1: second}, cpu)
        for name, first, second, cpu in product(
            "ab", (500, 700, GPU_MILLI), (500, GPU_MILLI), (9_000, 64_000)
        )
    ]
    counts = {WHOLE: 5, HALF: 10, PLAIN: 3}
    decided = placement(policy, counts, [each.capacity for each in free])
    for kind in (HALF, PLAIN):
        found = sorted((decided.rating(each, kind) for each in free), key=lambda it: it.cost)
        assert all(0 <= each.points <= 100 for each in found)
        assert [each.points for each in found] == sorted((it.points for it in found), reverse=True)
        assert all(len(each.cards) == (1 if kind.shared else 0) for each in found)


@pytest.mark.parametrize("policy", PlacementPolicy, ids=lambda each: each.value)
def test_a_cluster_without_gpus_or_demand_is_scored(policy: PlacementPolicy) -> None:
    empty = FreeAmounts(node_capacity("n", 0, 0, 0, ""), 0, 0, {})
    placement(policy, {}, []).rating(empty, PodKind(0, 0))
    placement(policy, {PLAIN: 1}, [empty.capacity]).rating(empty, PLAIN)
