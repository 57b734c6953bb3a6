"""Plans: their measures and invariants, and how far they are from the best ones of small nodes."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings

from agent.allocate.rebind.arrangement import Arrangement, Measures, PlacedNode
from agent.allocate.rebind.planner import NoPlan, RebindPlan, plan
from agent.model.cpu.cpuset import CpuSet
from agent.model.cpu.policies import ExclusivePolicy
from tests.allocate.rebind import brute_force
from tests.allocate.rebind.nodes import (
    LARGE,
    ONE,
    SIXTEEN,
    TWO,
    fragmented,
    ls_pod,
    node,
    owner,
    small_nodes,
)


def move_texts(found: RebindPlan | NoPlan) -> list[str]:
    if isinstance(found, NoPlan):
        return list(found.reasons)
    return [
        f"{move.uid} {move.source.cpus or move.source.cpu_milli}"
        f" > {move.target.cpus or move.target.cpu_milli}"
        for move in found.moves
    ]


PLANS: dict[str, tuple[PlacedNode, list[str]]] = {
    "one core instead of two": (node(ONE, owner("a", "0,2")), ["a 0,2 > 0-1"]),
    "one NUMA node instead of two": (node(TWO, owner("a", "1,4")), ["a 1,4 > 0-1"]),
    "two halves of cores on one core": (
        node(ONE, owner("a", "0"), owner("b", "2"), owner("c", "4-7")),
        ["a 0 > 3"],
    ),
    "two pods exchange CPUs through a free one": (
        node(TWO, owner("a", "0,4"), owner("b", "1,5"), owner("c", "2-3"), owner("d", "6")),
        ["a 0,4 > 4,7", "b 1,5 > 0-1", "a 4,7 > 4-5"],
    ),
    "a NUMA node becomes free": (
        node(TWO, owner("a", "0-1"), owner("b", "4-5")),
        ["a 0-1 > 6-7"],
    ),
    "a pod makes room": (
        node(
            TWO,
            owner("a", "0,4", near=frozenset({0})),
            owner("b", "1"),
            owner("c", "2-3"),
            owner("d", "6-7"),
        ),
        ["a 0,4 > 0,5", "b 1 > 4", "a 0,5 > 0-1"],
    ),
    "spread pods keep one CPU of each core": (
        node(ONE, owner("a", "0,2", spread=True), owner("b", "4,6", spread=True)),
        ["a 0,2 > 5,7"],
    ),
    "cores are not shared with a pod of the same exclusive policy": (
        node(
            ONE,
            owner("a", "0", exclusive=ExclusivePolicy.PCPU_LEVEL),
            owner("b", "2", exclusive=ExclusivePolicy.PCPU_LEVEL),
        ),
        ["no moves were found that improve the places of pods"],
    ),
    "a pod that shares CPUs of two NUMA nodes": (
        node(
            TWO,
            owner("a", "0-1"),
            ls_pod("s", {0: 500, 1: 500}),
            rooms={0: {"cpu": 4000}, 1: {"cpu": 4000}},
        ),
        ["s {0: 500, 1: 500} > {0: 1000}"],
    ),
    "not where shared CPUs would be insufficient": (
        node(
            TWO,
            owner("a", "0-1"),
            owner("b", "4-5"),
            ls_pod("s", {0: 1500}),
            ls_pod("t", {1: 1500}),
            rooms={0: {"cpu": 4000}, 1: {"cpu": 4000}},
        ),
        ["no moves were found that improve the places of pods"],
    ),
    "memory follows a pod": (
        node(
            TWO,
            owner("a", "3-4", memory={0: {"memory": 5}, 1: {"memory": 3}}),
            rooms={0: {"memory": 7}, 1: {"memory": 8}},
        ),
        ["a 3-4 > 4-5"],
    ),
    "not to another NUMA node than its devices": (
        node(TWO, owner("a", "0-1", near=frozenset({0})), owner("b", "4-5", near=frozenset({1}))),
        ["no moves were found that improve the places of pods"],
    ),
    "a fixed pod stays": (
        node(ONE, owner("a", "0,2", fixed="it is never moved")),
        ["pod default/a is not moved: it is never moved"],
    ),
    "no better placement": (node(ONE, owner("a", "0-1")), ["no pods could be placed better"]),
    "no pods": (node(ONE), ["no pod owns CPUs or is bound to NUMA nodes"]),
    "no CPU in between": (
        node(ONE, owner("a", "0,2"), owner("b", "1,3"), owner("c", "4-7")),
        ["pods would have to exchange their CPUs, and no CPU is free in between"],
    ),
}


@pytest.mark.parametrize("case", PLANS)
def test_plans(case: str) -> None:
    before, expected = PLANS[case]
    assert move_texts(plan(before)) == expected


def test_memory_is_split_by_the_cpus_of_a_numa_node() -> None:
    pod = owner("a", "0,2,4,6,8-13", memory={0: {"memory": 5}, 1: {"memory": 5}})
    found = plan(node(SIXTEEN, pod))
    assert isinstance(found, RebindPlan)
    (move,) = found.moves
    assert move.target.cpus == CpuSet.parse("0-3,8-13")
    assert move.target.memory == {0: {"memory": 4}, 1: {"memory": 6}}


def test_a_plan_has_its_measures_before_and_after() -> None:
    found = plan(node(TWO, owner("a", "1,4")))
    assert isinstance(found, RebindPlan)
    assert (found.before, found.after) == (Measures(1, 1, 2, 2), Measures(0, 0, 1, 1))


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_no_more_pods_move_than_permitted(limit: int) -> None:
    found = plan(fragmented(LARGE, 60, 60), limit)
    assert isinstance(found, RebindPlan)
    assert 1 <= len(found.uids) <= limit
    assert found.after < found.before


def test_no_pod_may_move() -> None:
    assert plan(node(ONE, owner("a", "0,2")), 0) == NoPlan(("no pod may move now",))


@pytest.mark.parametrize("limit", [None, 2])
def test_few_plans_of_small_nodes_are_not_the_best(limit: int | None) -> None:
    """No plan is better than the best of all places, and few are worse."""
    counts = Counter[str]()

    @given(small_nodes())
    @settings(max_examples=100, deadline=None, derandomize=True, database=None)
    def compare(before: PlacedNode) -> None:
        found = plan(before, limit)
        best = brute_force.best(before, limit)
        if isinstance(found, RebindPlan):
            reached = found.after, len(found.uids)
        elif "exchange" in found.reasons[0]:
            return
        else:
            reached = Arrangement(before).before, 0
        assert reached >= best
        counts["worse places"] += reached[0] > best[0]
        counts["more moves"] += reached[0] == best[0] and reached[1] > best[1]

    compare()
    assert counts["worse places"] <= 2
    assert counts["more moves"] <= 2


@pytest.mark.parametrize(("pods", "free"), [(200, 16), (100, 64), (60, 40), (30, 100)])
def test_a_large_node(pods: int, free: int) -> None:
    before = fragmented(LARGE, pods, free, seed=pods, ls_pods=250 - pods)
    found = plan(before)
    assert isinstance(found, RebindPlan)
    assert found == plan(before)
    assert found.after.no_worse_than(found.before)
    assert found.after.numa_crossings < found.before.numa_crossings / 4
    check_moves(before, found)


@given(small_nodes())
@settings(max_examples=60, deadline=None)
def test_between_moves_no_cpu_has_two_owners(before: PlacedNode) -> None:
    found = plan(before)
    if isinstance(found, RebindPlan):
        check_moves(before, found)


def check_moves(before: PlacedNode, found: RebindPlan) -> None:
    owned = {pod.uid: CpuSet.from_int(pod.place) for pod in before.pods if pod.owner}
    assignable = CpuSet.from_int(before.assignable)
    for move in found.moves:
        if move.uid not in owned:
            assert sum(move.source.cpu_milli.values()) == sum(move.target.cpu_milli.values())
            continue
        assert owned[move.uid] == move.source.cpus
        others = [cpus for uid, cpus in owned.items() if uid != move.uid]
        assert not any(move.target.cpus & other for other in others)
        assert len(move.target.cpus) == len(move.source.cpus)
        assert move.target.cpus <= assignable | move.source.cpus
        owned[move.uid] = move.target.cpus
