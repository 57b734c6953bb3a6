"""Two NUMA nodes of 8 CPUs and 16 GiB on a node with twice as much, and the amounts of its pods."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.allocate import node_score
from agent.allocate.node_allocation import NodeAllocation, PodAllocation, TopologyOptions
from agent.allocate.node_score import ScoreInput, WholeNode, by_count, profile
from agent.allocate.policies_in_force import PROFILES, NodePolicies
from agent.model.cpu.policies import NODE_STRATEGIES, BindPolicy, NumaPolicy, Strategy
from agent.model.pod.resource_request import ResourceRequest
from agent.model.settings.plugin_args import Rules, decode, defaults
from tests.allocate.nodes import GIB, claim, ls_pod, node_options, owner

MOST = Strategy.MOST_ALLOCATED
LEAST = Strategy.LEAST_ALLOCATED
BALANCED = Strategy.BALANCED_ALLOCATION
SINGLE = NodePolicies(numa_label=NumaPolicy.SINGLE_NUMA_NODE)
BEST_EFFORT = NodePolicies(numa_label=NumaPolicy.BEST_EFFORT)


def scored(
    request: ResourceRequest,
    got: PodAllocation,
    *held: PodAllocation,
    on: TopologyOptions | None = None,
    requested: dict[str, int] | None = None,
    rules: Rules = Rules.PROPOSAL,
    **strategy: Any,
) -> int:
    node = on or node_options()
    node_allocation = NodeAllocation(node)
    for each in held:
        node_allocation.add(each)
    body: dict[str, Any] = {"kind": rules.value}
    if strategy:
        body["scoringStrategy"] = strategy
        body["numaScoringStrategy"] = {"type": strategy.get("type")}
    whole = WholeNode({"cpu": 16_000, "memory": 32 * GIB}, requested or {})
    return node_score.score(decode(body), ScoreInput(node, node_allocation, whole), request, got)


def by_resources(kind: Strategy) -> dict[str, Any]:
    return {"type": kind.value, "measures": ["Resources"]}


def test_a_pod_bound_to_no_numa_node_is_scored_on_the_whole_node() -> None:
    requested = {"cpu": 4000, "memory": 8 * GIB}
    got = claim("a")
    request_ = ls_pod(4000, 8)
    assert scored(request_, got, requested=requested, **by_resources(MOST)) == 50
    request_ = ls_pod(8000, 0)
    assert scored(request_, got, requested=requested, **by_resources(MOST)) == (75 + 25) // 2
    assert scored(request_, got, requested=requested, **by_resources(LEAST)) == (25 + 75) // 2
    assert scored(request_, got, requested=requested, **by_resources(BALANCED)) == 75


def test_a_pod_bound_to_a_numa_node_is_scored_there() -> None:
    held = claim("b", amounts={1: {"cpu": 4000, "memory": 4 * GIB}})
    got = claim("a", amounts={1: {"cpu": 2000, "memory": 8 * GIB}})
    assert scored(ls_pod(2000, 8), got, held, **by_resources(MOST)) == 75
    got = claim("a", amounts={0: {"cpu": 2000, "memory": 8 * GIB}})
    assert scored(ls_pod(2000, 8), got, held, **by_resources(MOST)) == (25 + 50) // 2


def test_an_owner_with_bound_memory_is_scored_with_its_cpus() -> None:
    got = claim("a", "8-11", {1: {"memory": 8 * GIB}})
    assert scored(owner(4, 8), got, **by_resources(MOST)) == 50


def test_the_worst_of_several_numa_nodes_counts() -> None:
    held = claim("b", amounts={1: {"cpu": 4000, "memory": 8 * GIB}})
    got = claim("a", amounts={each: {"cpu": 2000, "memory": 4 * GIB} for each in (0, 1)})
    assert scored(ls_pod(4000, 8), got, held, **by_resources(MOST)) == 25
    assert scored(ls_pod(4000, 8), got, held, **by_resources(LEAST)) == 25


def test_owned_cpus_are_in_use_regardless_of_recorded_amounts() -> None:
    got = claim("a", "4-5", {0: {"cpu": 2000, "memory": 4 * GIB}})
    assert scored(owner(2, 4), got, claim("b", "0-3"), **by_resources(MOST)) == (75 + 25) // 2


def test_bound_cpus_count_amplified() -> None:
    node = node_options(cpu_ratio=2.0)
    shares = claim("a", amounts={0: {"cpu": 4000}})
    binds = claim("a", "0-3", {0: {"cpu": 4000}})
    only_cpu = {**by_resources(MOST), "resources": [{"name": "cpu"}]}
    assert scored(ls_pod(4000), shares, on=node, **only_cpu) == 25
    assert scored(owner(4), binds, on=node, **only_cpu) == 50
    assert scored(owner(4), claim("a", "0-3"), on=node, **only_cpu) == 50
    before = {"requested": {"cpu": 4000}}
    got = claim("a", "0-1")
    assert scored(owner(2), got, claim("b", "4-7"), on=node, **before, **only_cpu) == 75


def counted(got: PodAllocation, *held: PodAllocation, strategy: Strategy, **more: Any) -> int:
    args = {"type": strategy.value, "measures": ["NUMANodes"]}
    return scored(owner(2), got, *held, **args, **more)


EIGHT = (2, 4, 4, 2)


@pytest.mark.parametrize(
    ("cpus", "held", "strategy", "points"),
    [
        ("0-1,8-9", (), LEAST, 75),
        ("0-1,8-9", (), MOST, 25),
        ("0-1", ("56-63",), MOST, 25),
        ("0-1", ("2-3",), MOST, 12),
        ("0-1", ("8-31",), BALANCED, 50),
        ("0-1", tuple(f"{8 * n}" for n in range(1, 8)), BALANCED, 100),
    ],
)
def test_the_count_is_the_share_of_numa_nodes_in_use(
    cpus: str, held: tuple[str, ...], strategy: Strategy, points: int
) -> None:
    others = [claim(f"p{number}", each) for number, each in enumerate(held)]
    assert counted(claim("a", cpus), *others, on=node_options(EIGHT), strategy=strategy) == points


def test_the_count_in_the_proposals_example() -> None:
    """One of four NUMA nodes is in use, and one more is needed."""
    taken = claim("b", "0-7")
    assert counted(claim("a", "8-9"), taken, on=node_options((1, 4, 4, 2)), strategy=MOST) == 50


def test_amounts_use_a_numa_node_too() -> None:
    sharing = claim("b", amounts={1: {"memory": GIB}})
    assert counted(claim("a", "0-1"), sharing, strategy=MOST) == 100


@pytest.mark.parametrize("strategy", NODE_STRATEGIES)
def test_a_missing_numa_node_is_not_in_use(strategy: Strategy) -> None:
    missing = claim("b", amounts={7: {"cpu": 1000}})
    alone = counted(claim("a", "0-1"), strategy=strategy)
    assert counted(claim("a", "0-1"), missing, strategy=strategy) == alone == 50


def test_the_nodes_label_names_the_strategy_of_the_count() -> None:
    node = node_options(policies=NodePolicies(strategy_label=Strategy.LEAST_ALLOCATED))
    assert counted(claim("a", "0-1"), claim("b", "8-9"), on=node, strategy=MOST) == 0
    even = node_options(policies=NodePolicies(strategy_label=Strategy.DISTRIBUTE_EVENLY))
    assert counted(claim("a", "0-1"), claim("b", "8-9"), on=even, strategy=MOST) == 100


def test_both_measures_count_half() -> None:
    got = claim("a", "0-3", {0: {"cpu": 4000, "memory": 8 * GIB}})
    assert scored(owner(4, 8), got) == (50 + 50) // 2
    assert scored(owner(4, 8), got, claim("b", "8-9")) == (50 + 100) // 2


def test_the_count_ignores_pods_without_a_known_numa_node() -> None:
    full = {"requested": {"cpu": 16_000}}
    assert scored(ls_pod(8000, 8), claim("a"), claim("b", "0-15"), **full) == (100 + 25) // 2


def test_profiles() -> None:
    koordinator = profile(defaults(Rules.KOORDINATOR))
    assert koordinator.label_first
    assert (koordinator.strategy, koordinator.numa_policy) == (
        Strategy.LEAST_ALLOCATED,
        NumaPolicy.NONE,
    )
    proposal = profile(defaults(Rules.PROPOSAL))
    alike = replace(proposal, scoring=None, weights={}, prefer_l3=False)
    assert alike == PROFILES["proposal"]
    assert proposal.prefer_l3
    assert (proposal.scoring, proposal.weights) == (
        Strategy.MOST_ALLOCATED,
        {"cpu": 1, "memory": 1},
    )
    configured = decode(
        {
            "kind": "CPUOrchestrationPluginArgs",
            "defaultCPUBindPolicy": "SpreadByPCPUs",
            "numaTopologyAlignmentPolicy": "None",
            "scoringStrategy": {"type": "BalancedAllocation", "resources": [{"name": "cpu"}]},
            "numaScoringStrategy": {"type": "MostAllocated"},
        }
    )
    made = profile(configured)
    assert (made.bind, made.numa_policy, made.strategy) == (
        BindPolicy.SPREAD_BY_PCPUS,
        NumaPolicy.NONE,
        Strategy.LEAST_ALLOCATED,
    )
    assert (made.scoring, made.weights) == (Strategy.MOST_ALLOCATED, {"cpu": 1})


@given(st.sampled_from(NODE_STRATEGIES), st.integers(1, 64), st.data())
def test_a_count_is_0_to_100(strategy: Strategy, total: int, data: st.DataObject) -> None:
    assert 0 <= by_count(strategy, data.draw(st.integers(0, total)), total) <= 100
