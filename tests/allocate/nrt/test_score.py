from __future__ import annotations

import pytest

from agent.allocate.nrt.score import score
from agent.model.cpu.policies import ZONE_STRATEGIES, Strategy
from tests.allocate.nrt.values import CPU, container, node, pod, sidecar

LEAST = Strategy.LEAST_ALLOCATED
MOST = Strategy.MOST_ALLOCATED
BALANCED = Strategy.BALANCED_ALLOCATION
FEWEST = Strategy.LEAST_NUMA_NODES

LOCAL = {0: {0: 10, 1: 20}, 1: {0: 20, 1: 10}}
TWO = {0: {"cpu": 4 * CPU, "memory": 100}, 1: {"cpu": 8 * CPU, "memory": 100}}


@pytest.mark.parametrize("strategy", ZONE_STRATEGIES)
def test_pods_that_are_not_guaranteed_score_equally_on_every_node(strategy: Strategy) -> None:
    burstable = pod(container(cpu=99 * CPU, limited=False))
    assert score(node(TWO), burstable, strategy) == 100
    assert score(None, burstable, strategy) == 100


@pytest.mark.parametrize("strategy", ZONE_STRATEGIES)
def test_a_node_without_a_report_scores_lowest(strategy: Strategy) -> None:
    assert score(None, pod(container(cpu=CPU, memory=1)), strategy) == 0


@pytest.mark.parametrize(
    ("strategy", "policy", "expected"),
    [
        (LEAST, "restricted", 0),
        (MOST, "best-effort", 0),
        (BALANCED, "none", 0),
        (FEWEST, "none", 94),
        (FEWEST, "restricted", 94),
        (FEWEST, "single-numa-node", 94),
    ],
)
def test_single_numa_nodes_count_only_under_that_policy(
    strategy: Strategy, policy: str, expected: int
) -> None:
    assert score(node(TWO, policy, costs=LOCAL), pod(container(cpu=CPU, memory=1)), strategy) == (
        expected
    )


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


def test_a_numa_node_with_nothing_available_does_not_count() -> None:
    node_ = node({**TWO, 2: {"cpu": 0, "memory": 0}})
    assert score(node_, pod(container(cpu=8 * CPU, memory=100)), MOST) == 50
    assert score(node({2: {}}), pod(container(cpu=8 * CPU, memory=100)), MOST) == 0


def test_a_fraction_of_a_cpu_scores_as_one_but_must_fit() -> None:
    node_ = node({0: {"cpu": 3500, "memory": 100}})
    assert score(node_, pod(container(cpu=500, memory=100)), MOST) == (25 + 100) // 2
    assert score(node_, pod(container(cpu=4 * CPU, memory=100)), MOST) == 50


def test_one_resource_is_balanced() -> None:
    cpu_only = pod(container(cpu=2 * CPU), kube_class="guaranteed")
    assert score(node(TWO), cpu_only, BALANCED) == 100
    assert score(node({0: {"cpu": CPU}}), cpu_only, BALANCED) == 0


@pytest.mark.parametrize("strategy", [LEAST, MOST, BALANCED])
def test_containers_without_requests_do_not_count(strategy: Strategy) -> None:
    without = pod(container("a", cpu=CPU, memory=1), kube_class="guaranteed")
    with_empty = pod(container("a", cpu=CPU, memory=1), container("b"), kube_class="guaranteed")
    assert score(node(TWO), with_empty, strategy) == score(node(TWO), without, strategy)
    nothing = pod(container(), kube_class="guaranteed")
    assert score(node(TWO), nothing, strategy) == 0


def test_container_scope_uses_the_mean_of_containers_and_pod_scope_their_sum() -> None:
    requested = pod(container("a", cpu=CPU, memory=25), container("b", cpu=3 * CPU, memory=25))
    assert score(node(TWO), requested, LEAST) == ((75 + 75) // 2 + (25 + 75) // 2) // 2
    assert score(node(TWO, scope="pod"), requested, LEAST) == (0 + 50) // 2


def test_sidecars_count_with_containers_in_pod_scope() -> None:
    requested = pod(container(cpu=CPU, memory=50), init=(sidecar(cpu=3 * CPU, memory=50),))
    assert score(node(TWO, scope="pod"), requested, MOST) == (50 + 100) // 2


class TestFewestNumaNodes:
    @pytest.mark.parametrize(
        ("cpus", "most", "expected"),
        [(4, None, 94), (12, None, 82), (13, None, 0), (4, 2, 75), (12, 2, 25), (4, 16, 97)],
    )
    def test_fewer_numa_nodes_score_higher(
        self, cpus: int, most: int | None, expected: int
    ) -> None:
        node_ = node(TWO, "none", "pod", LOCAL, max_numa_nodes=most)
        assert score(node_, pod(container(cpu=cpus * CPU, memory=1)), FEWEST) == expected

    def test_no_score_is_negative(self) -> None:
        three = {n: {"cpu": CPU, "memory": 1} for n in range(3)}
        node_ = node(three, "none", max_numa_nodes=2)
        assert score(node_, pod(container(cpu=3 * CPU, memory=1)), FEWEST) == 0

    def test_closer_numa_nodes_score_higher(self) -> None:
        """Nodes 0 and 1 are close together, and so are 2 and 3."""
        costs = {
            i: {j: 10 if i == j else 12 if i // 2 == j // 2 else 32 for j in range(4)}
            for i in range(4)
        }
        requested = pod(container(cpu=8 * CPU, memory=1))

        def score_of(*cpus: int) -> int:
            zones = {n: {"cpu": each * CPU, "memory": 1} for n, each in enumerate(cpus)}
            return score(node(zones, "restricted", costs=costs), requested, FEWEST)

        assert score_of(4, 4, 4, 4) == score_of(0, 0, 4, 4) == 100 - 2 * 12 + 6
        assert score_of(4, 0, 4, 0) == 100 - 2 * 12

    def test_unreported_distances_count_as_the_longest(self) -> None:
        requested = pod(container(cpu=CPU, memory=1))
        assert score(node(TWO, costs={0: {0: 10}}), requested, FEWEST) == 94
        only_far = node({**TWO, 0: {"cpu": 0, "memory": 1}}, costs={0: {0: 10}})
        assert score(only_far, requested, FEWEST) == 88

    def test_the_container_that_is_spread_most_counts(self) -> None:
        node_ = node(TWO, "none", "container", LOCAL)
        requested = pod(
            container("a", cpu=2 * CPU, memory=1), container("b", cpu=9 * CPU, memory=1)
        )
        assert score(node_, requested, FEWEST) == 82

    def test_containers_reduce_the_amounts_for_later_ones(self) -> None:
        node_ = node({0: TWO[0], 1: TWO[0]}, "none", "container", LOCAL)
        three = [container(f"c{n}", cpu=3 * CPU, memory=1) for n in range(3)]
        assert score(node_, pod(*three[:2]), FEWEST) == 94
        assert score(node_, pod(*three), FEWEST) == 0
        assert score(node_, pod(*three[:2], init=(three[2],)), FEWEST) == 94
        side = sidecar(cpu=3 * CPU, memory=1)
        assert score(node_, pod(*three[:2], init=(side,)), FEWEST) == 0

    def test_resources_that_no_numa_node_reports_do_not_count(self) -> None:
        node_ = node(TWO, costs=LOCAL)
        storage = {"ephemeral-storage": 5}
        assert score(node_, pod(container(cpu=CPU, memory=1, **storage)), FEWEST) == 94
        none = node({0: {"hugepages-2Mi": 1}})
        assert score(none, pod(container(cpu=CPU, memory=1)), FEWEST) == 100

    def test_numa_nodes_without_a_resource_do_not_contribute(self) -> None:
        zones = {0: {"cpu": 4 * CPU, "memory": 100}, 1: {"cpu": 4 * CPU}}
        node_ = node(zones, costs=LOCAL)
        assert score(node_, pod(container(cpu=4 * CPU, memory=1)), FEWEST) == 94
        assert score(node_, pod(container(cpu=5 * CPU, memory=1)), FEWEST) == 0

    def test_numa_nodes_without_cpus_give_memory(self) -> None:
        zones = {0: {"cpu": 4 * CPU, "memory": 100}, 9: {"cpu": 0, "memory": 100}}
        node_ = node(zones, costs={0: {0: 10, 9: 20}, 9: {0: 20, 9: 10}})
        assert score(node_, pod(container(cpu=4 * CPU, memory=150)), FEWEST) == 82
