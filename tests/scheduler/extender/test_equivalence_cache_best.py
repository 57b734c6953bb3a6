"""The best node is found without the results of all nodes, and it is the best of all nodes."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocate.node_allocator.answer import NodeOffer
from agent.model.cpu.policies import NumaPolicy, Strategy
from agent.model.settings import plugin_args
from agent.model.settings.plugin_args import Measure, Rules, SchedulerArgs
from agent.scheduler.extender.equivalence_cache import EquivalenceCache
from agent.scheduler.extender.handlers import best_node
from agent.scheduler.rules import allocator_rules
from agent.scheduler.state.cluster import SchedulerCache
from agent.scheduler.state.pod_info import PodRequirements, RequirementsCheck, Undecided
from tests.fixtures.fleet import (
    CARDS,
    EIGHT,
    SINGLE,
    SMALL,
    WIDE,
    Kind,
    gpu_pod,
    gpu_share_pod,
    ls_pod,
    owner,
)
from tests.scheduler import clusters

MODELS = {
    "a": SMALL,
    "b": SMALL,
    "c": CARDS,
    "d": CARDS,
    "e": EIGHT,
    "f": EIGHT,
    "g": SINGLE,
    "h": WIDE,
}
KINDS = (
    owner(2, 2),
    owner(3, 2, "SpreadByPCPUs"),
    owner(6, 4, "FullPCPUs"),
    owner(26, 4, "FullPCPUs", "LSE"),
    owner(14, 300),
    ls_pod("3", 4),
    ls_pod("1500m", 120, "BestEffort"),
    ls_pod("2", 8, "Restricted"),
    ls_pod("6", 16, "SingleNUMANode"),
    gpu_pod(2, 8, 1),
    gpu_pod(1),
    gpu_share_pod(30),
)


def _variants() -> Iterator[SchedulerArgs]:
    args = plugin_args.defaults(Rules.PROPOSAL)
    for kind in Strategy:
        node = msgspec.structs.replace(args.node, type=kind)
        for measures in ({Measure.RESOURCES}, {Measure.NUMA_NODES}, set(Measure)):
            yield msgspec.structs.replace(args, node=node, measures=frozenset(measures))
    yield msgspec.structs.replace(args, numa_policy=NumaPolicy.NONE)
    yield plugin_args.defaults(Rules.KOORDINATOR)


VARIANTS = tuple(_variants())
steps = st.tuples(
    st.integers(0, len(KINDS) - 1), st.sampled_from(sorted(MODELS)), st.integers(0, 19)
)


def filled(args: SchedulerArgs, history: list[tuple[int, str, int]]) -> SchedulerCache:
    """Each step reserves for a new pod, or releases the pod that has the name."""
    rules = allocator_rules(args)
    cluster = SchedulerCache(rules=rules)
    for name, model in MODELS.items():
        clusters.add_node(cluster, name, model)
    for kind, node, name in history:
        if not cluster.release(f"uid-p{name}"):
            clusters.reserve(cluster, KINDS[kind], node, f"p{name}")
    return cluster


@given(st.sampled_from(VARIANTS), st.lists(steps, min_size=5, max_size=40))
def test_no_offer_is_better_than_its_bound(
    args: SchedulerArgs, history: list[tuple[int, str, int]]
) -> None:
    cluster = filled(args, history)
    for kind in KINDS:
        request = clusters.pod_request(kind, "new")
        for node in cluster.nodes():
            offer = node.allocator.offer(request)
            if isinstance(offer, NodeOffer):
                assert offer.score <= node.allocator.score_bound(request) <= 100


@given(st.sampled_from(VARIANTS), st.lists(steps, min_size=5, max_size=30))
def test_the_best_node_is_the_best_of_all_results(
    args: SchedulerArgs, history: list[tuple[int, str, int]]
) -> None:
    """Both caches are used again after each change."""
    cluster = filled(args, history[:10])
    names = sorted(MODELS)
    cache, complete = EquivalenceCache(cluster), EquivalenceCache(cluster)
    for kind, node, name in [*history[10:], history[0]]:
        for requested in (KINDS[kind], KINDS[name % len(KINDS)]):
            check = RequirementsCheck(cluster, PodRequirements(clusters.pod_request(requested)))
            assert cache.best(check, names) == best_node(names, complete.results(check, names))
            assert cache.best(check, names[::2]) == best_node(
                names[::2], complete.results(check, names[::2])
            )
        if not cluster.release(f"uid-p{name}"):
            clusters.reserve(cluster, KINDS[kind], node, f"p{name}")


def test_nodes_that_cannot_be_the_best_are_not_checked() -> None:
    """The fullest node is the best. Ten nodes are empty and in one state; others are less full."""
    args = plugin_args.defaults(Rules.PROPOSAL)
    rules = allocator_rules(args)
    cluster = SchedulerCache(rules=rules)
    for number in range(40):
        clusters.add_node(cluster, f"n{number:02d}", SMALL)
    for number in range(30):
        for each in range(1 + number % 3):
            kind = owner(2 + number % 5, 2 + number)
            assert clusters.reserve(cluster, kind, f"n{number:02d}", f"p-{number}-{each}")
    names = [f"n{number:02d}" for number in range(40)]
    cache = EquivalenceCache(cluster)
    check = RequirementsCheck(cluster, PodRequirements(clusters.pod_request(owner(2, 2))))
    best = cache.best(check, names)
    misses = cache.misses
    assert best == best_node(names, EquivalenceCache(cluster).results(check, names))
    assert misses < len(names) / 2
    cache.best(check, names)
    assert cache.misses == misses


@pytest.mark.parametrize("kind", [owner(8, 2), ls_pod("8", 2), gpu_pod(1, 8), owner(2, 200)])
def test_no_offer_is_computed_for_a_full_node(kind: Kind) -> None:
    cluster = SchedulerCache(rules=allocator_rules(plugin_args.defaults(Rules.PROPOSAL)))
    names = [f"n{number}" for number in range(6)]
    for number, name in enumerate(names[1:]):
        clusters.add_node(cluster, name, CARDS)
        for pod, cpus in enumerate((40, 40, 10 + number)):
            assert clusters.reserve(cluster, owner(cpus, 300), name, f"{name}-{pod}")
    clusters.add_node(cluster, names[0], CARDS)
    cache = EquivalenceCache(cluster)
    check = RequirementsCheck(cluster, PodRequirements(clusters.pod_request(kind)))
    assert cache.best(check, names) == names[0]
    assert cache.misses == 1
    assert cache.best(check, names[1:]) is None
    assert cache.misses == 1


@given(st.sampled_from(VARIANTS), st.lists(steps, min_size=5, max_size=15))
def test_a_bind_gets_what_the_node_offers_now(
    args: SchedulerArgs, history: list[tuple[int, str, int]]
) -> None:
    """Offers that were made before a change of the node are not used."""
    cluster = filled(args, history[:-3])
    for kind, node, name in history[-3:]:
        check = RequirementsCheck(cluster, PodRequirements(clusters.pod_request(KINDS[kind])))
        for each in MODELS:
            check.run(each, {})
        if not cluster.release(f"uid-p{name}"):
            clusters.reserve(cluster, KINDS[name % len(KINDS)], node, f"p{name}")
        request = clusters.pod_request(KINDS[kind], "new")
        for each in cluster.nodes():
            assert cluster.offer(each.name, request) == each.allocator.offer(request)


class BoundInBetween(RequirementsCheck, frozen=True):
    """While the bound of the last of the nodes is computed, the first is taken by another pod."""

    def bound(self, node: Undecided) -> int:
        if node.allocator.properties.name == "c":
            left = self.cluster.node("a").allocator.free_cpus().bit_count()
            assert clusters.reserve(self.cluster, owner(left, 2), "a", "other")
        return RequirementsCheck.bound(self, node)


def test_equals_of_a_node_that_changes_during_the_search_are_checked() -> None:
    """The fullest node is the best: `a` and `b` are in one state, and `c` is empty."""
    rules = allocator_rules(plugin_args.defaults(Rules.PROPOSAL))
    cluster = SchedulerCache(rules=rules)
    for name in "abc":
        clusters.add_node(cluster, name, SMALL)
    for name in "ab":
        assert clusters.reserve(cluster, owner(4, 2), name, f"on-{name}")
    pod_request = clusters.pod_request(owner(2, 2))
    check = BoundInBetween(cluster, PodRequirements(pod_request))
    best = EquivalenceCache(cluster).best(check, ["a", "b", "c"])
    assert cluster.reservation("uid-other") is not None
    results = EquivalenceCache(cluster).results(check, ["a", "b", "c"])
    assert best == best_node(["a", "b", "c"], results) == "b"


@pytest.mark.parametrize("kind", [owner(400, 4), gpu_pod(9)])
def test_no_node_is_the_best_if_none_has_room(kind: Kind) -> None:
    cluster = clusters.cluster(MODELS)
    check = RequirementsCheck(cluster, PodRequirements(clusters.pod_request(kind)))
    assert EquivalenceCache(cluster).best(check, [*MODELS, "unknown"]) is None
    assert EquivalenceCache(cluster).best(check, []) is None
