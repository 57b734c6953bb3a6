"""Beside the scores of the plugin in tests/conformance/test_vectors.py."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocate.nrt.node import ZonedNode
from agent.allocate.nrt.score import Spread, score, spread
from agent.model.cpu.policies import Strategy
from tests.allocate.nrt.values import CPU, container, node, pod, sidecar

LEAST = Strategy.LEAST_ALLOCATED
MOST = Strategy.MOST_ALLOCATED
BALANCED = Strategy.BALANCED_ALLOCATION
FEWEST = Strategy.LEAST_NUMA_NODES

LOCAL = {0: {0: 10, 1: 20}, 1: {0: 20, 1: 10}}
TWO = {0: {"cpu": 4 * CPU, "memory": 100}, 1: {"cpu": 8 * CPU, "memory": 100}}


@pytest.mark.parametrize(
    ("strategy", "weights", "expected"),
    [
        (LEAST, {}, (50 + 80) // 2),
        (MOST, {}, (25 + 20) // 2),
        (LEAST, {"cpu": 3}, (3 * 50 + 80) // 4),
        (MOST, {"memory": 4}, (25 + 4 * 20) // 5),
        (MOST, {"memory": 0}, (25 + 20) // 2),
        (BALANCED, {"cpu": 9}, 95),
    ],
)
def test_a_nodes_score_is_that_of_its_worst_numa_node(
    strategy: Strategy, weights: dict[str, int], expected: int
) -> None:
    """2 CPUs of 4 or of 8, 20 of 100 bytes. The variance of two parts is half of the square of
    their difference: (0.3 ** 2) / 2 in NUMA node 0."""
    assert score(node(TWO), pod(container(cpu=2 * CPU, memory=20)), strategy, weights) == expected


@pytest.mark.parametrize(
    ("cpus", "most", "expected"),
    [(4, None, 94), (12, None, 82), (13, None, 0), (4, 2, 75), (12, 2, 25), (4, 16, 97)],
)
def test_fewer_numa_nodes_score_higher(cpus: int, most: int | None, expected: int) -> None:
    node_ = node(TWO, "none", "pod", LOCAL, max_numa_nodes=most)
    assert score(node_, pod(container(cpu=cpus * CPU, memory=1)), FEWEST) == expected


def test_unreported_distances_count_as_the_longest() -> None:
    requested = pod(container(cpu=CPU, memory=1))
    assert score(node(TWO, costs={0: {0: 10}}), requested, FEWEST) == 94
    only_far = node({**TWO, 0: {"cpu": 0, "memory": 1}}, costs={0: {0: 10}})
    assert score(only_far, requested, FEWEST) == 88


def test_containers_that_run_at_once_reduce_the_amounts_for_later_ones() -> None:
    node_ = node({0: TWO[0], 1: TWO[0]}, "none", "container", LOCAL)
    three = [container(f"c{n}", cpu=3 * CPU, memory=1) for n in range(3)]
    assert score(node_, pod(*three), FEWEST) == 0
    assert score(node_, pod(*three[:2], init=(three[2],)), FEWEST) == 94
    side = sidecar(cpu=3 * CPU, memory=1)
    assert score(node_, pod(*three[:2], init=(side,)), FEWEST) == 0


amounts = st.integers(0, 4)


@st.composite
def nodes(draw: st.DrawFn) -> ZonedNode:
    """A few NUMA nodes with any ids and distances. Not every node reports every resource."""
    ids = draw(st.lists(st.integers(0, 80), min_size=1, max_size=5, unique=True))
    resources = st.fixed_dictionaries({"cpu": amounts}, optional={"memory": amounts})
    zones = {each: draw(resources) for each in ids}
    far = st.sampled_from([10, 12, 20, 32])
    costs = {each: {other: draw(far) for other in ids} for each in ids}
    return node(zones, costs=costs)


def by_enumeration(node_: ZonedNode, requested: dict[str, int]) -> Spread | None:
    """The best of all sets, in their order."""

    def span(indices: tuple[int, ...]) -> int:
        return sum(node_.distances[i][j] for i in indices for j in indices)

    for count in range(1, len(node_.zones) + 1):
        sets = list(combinations(range(len(node_.zones)), count))
        fitting = [
            indices
            for indices in sets
            if all(
                all(node_.zones[i] in node_.available[name] for i in indices)
                and sum(node_.available[name][node_.zones[i]] for i in indices) >= amount
                for name, amount in requested.items()
            )
        ]
        if fitting:
            best = min(fitting, key=span)
            closest = span(best) == min(map(span, sets))
            return Spread(tuple(node_.zones[i] for i in best), closest)
    return None


@given(nodes(), st.integers(1, 9), st.integers(0, 9))
def test_the_search_equals_a_full_enumeration(node_: ZonedNode, cpu: int, memory: int) -> None:
    requested = {"cpu": cpu}
    if "memory" in node_.available:
        requested["memory"] = memory
    assert spread(node_, node_.available, requested) == by_enumeration(node_, requested)


def test_many_equal_numa_nodes_are_searched_quickly() -> None:
    """There are 2.3 billion sets of half of them."""
    zones = {each: {"cpu": 1} for each in range(34)}
    costs = {i: {j: 10 if i == j else 20 for j in range(34)} for i in range(34)}
    node_ = node(zones, costs=costs)
    found = spread(node_, node_.available, {"cpu": 17})
    assert found == Spread(tuple(range(17)), True)
    assert spread(node_, node_.available, {"cpu": 35}) is None
