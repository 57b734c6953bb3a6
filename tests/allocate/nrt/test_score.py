"""Beside the scores of the plugin in tests/conformance/test_vectors.py."""

from __future__ import annotations

import pytest

from agent.allocate.nrt.score import score
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
