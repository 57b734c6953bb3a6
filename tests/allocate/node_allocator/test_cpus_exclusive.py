"""A pod's exclusive policy chooses between the NUMA nodes that the NUMA policy leaves equal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocate.accumulator import CpuExclusivity
from agent.allocate.node_allocation import PodAllocation, TopologyOptions
from agent.allocate.node_allocator.cpus import CpuOffer, cpu_offer
from agent.allocate.numa.hint import ids
from agent.allocate.policies_in_force import NodePolicies
from agent.model.cpu.policies import (
    NUMA_STRATEGIES,
    BindPolicy,
    ExclusivePolicy,
    NumaPolicy,
    Strategy,
)
from agent.model.pod.annotations import ResourceSpec
from tests.allocate.nodes import allocated, claim, node_options, owner

NONE, CORE, NODE = ExclusivePolicy
SPREAD = BindPolicy.SPREAD_BY_PCPUS
POLICIES = [NumaPolicy.BEST_EFFORT, NumaPolicy.RESTRICTED, NumaPolicy.SINGLE_NUMA_NODE]


def placed(node: TopologyOptions, spec: ResourceSpec, pods: int) -> list[str]:
    """The CPUs of pods of two CPUs, one after the other."""
    node_allocation = allocated(node)
    found = []
    for number in range(pods):
        got = cpu_offer(node, node_allocation, owner(2, uid=f"p{number}", spec=spec))
        assert isinstance(got, CpuOffer), got
        node_allocation.add(got.allocation)
        found.append(str(got.allocation.cpus))
    return found


@pytest.mark.parametrize("policy", NumaPolicy)
@pytest.mark.parametrize(
    ("exclusive", "cpus"),
    [
        pytest.param(NONE, ["0,2", "1,3", "4,6", "5,7", "8,10"], id="the fuller NUMA node"),
        pytest.param(CORE, ["0,2", "4,6", "8,10", "12,14", "1,3"], id="other cores first"),
        pytest.param(
            NODE, ["0,2", "8,10", "4,6", "12,14", "1,3"], id="the other NUMA node, then other cores"
        ),
    ],
)
def test_spread_pods_under_every_policy(
    policy: NumaPolicy, exclusive: ExclusivePolicy, cpus: list[str]
) -> None:
    """Two NUMA nodes of four cores (0 and 1, 2 and 3, ... are siblings); MostAllocated."""
    node = node_options(
        policies=NodePolicies(numa_label=policy, strategy_label=Strategy.MOST_ALLOCATED)
    )
    assert placed(node, ResourceSpec(SPREAD, exclusive=exclusive), 5) == cpus


@pytest.mark.parametrize("policy", POLICIES)
def test_a_downgraded_pod_avoids_the_cores_of_both_exclusive_policies(policy: NumaPolicy) -> None:
    """Only NUMA node 1 has enough other cores."""
    node = node_options(policies=NodePolicies(numa_label=policy))
    held = [
        claim("a", "0,2", {0: {"cpu": 2000}}, NODE),
        claim("b", "4", {0: {"cpu": 1000}}, CORE),
        claim("c", "8,10", {1: {"cpu": 2000}}, NODE),
        claim("d", "9,11", {1: {"cpu": 2000}}),
    ]
    spec = ResourceSpec(SPREAD, exclusive=NODE)
    got = cpu_offer(node, allocated(node, held), owner(2, uid="e", spec=spec))
    assert isinstance(got, CpuOffer)
    assert str(got.allocation.cpus) == "12,14"
    judged = {each.nodes: each.exclusivity for each in got.why.candidates}
    assert judged == {(0,): CpuExclusivity.SAME_CORES, (1,): CpuExclusivity.OTHER_CORES}


specs = st.builds(
    lambda bind, exclusive: ResourceSpec(bind, exclusive=exclusive),
    st.sampled_from([BindPolicy.FULL_PCPUS, SPREAD]),
    st.sampled_from([CORE, NODE]),
)


@given(
    st.sampled_from([(2, 1, 4, 2), (2, 2, 2, 2)]),
    st.sampled_from(POLICIES),
    st.sampled_from(NUMA_STRATEGIES),
    st.lists(st.tuples(st.integers(1, 3), specs), max_size=5),
    st.integers(1, 6),
    specs,
)
def test_the_chosen_numa_nodes_suit_the_exclusive_policy_best(
    shape: tuple[int, int, int, int],
    policy: NumaPolicy,
    strategy: Strategy,
    before: list[tuple[int, ResourceSpec]],
    count: int,
    spec: ResourceSpec,
) -> None:
    node = node_options(shape, policies=NodePolicies(numa_label=policy, strategy_label=strategy))
    node_allocation = allocated(node)
    held: list[PodAllocation] = []
    for number, (cpus, spec_before) in enumerate(before):
        got = cpu_offer(node, node_allocation, owner(cpus, uid=f"p{number}", spec=spec_before))
        if isinstance(got, CpuOffer):
            node_allocation.add(got.allocation)
            held.append(got.allocation)
    got = cpu_offer(node, node_allocation, owner(count, uid="last", spec=spec))
    if not isinstance(got, CpuOffer) or got.why.merged is None or not got.why.merged.preferred:
        return
    assert got.why.merged.mask is not None
    chosen = ids(got.why.merged.mask)
    judged = {
        each.nodes: each.exclusivity
        for each in got.why.candidates
        if each.exclusivity is not None and len(each.nodes) == len(chosen)
    }
    assert judged[chosen] is max(judged.values())
    made = node.layout
    assert made is not None
    actual = got.allocation.cpus.mask
    cpus_of = {
        exclusive: sum(each.cpus.mask for each in held if each.exclusive is exclusive)
        for exclusive in (CORE, NODE)
    }
    avoided = cpus_of[spec.exclusive]
    on_cores = bool(made.touched(actual) & made.touched(avoided))
    if spec.exclusive is CORE:
        assert judged[chosen] is (
            CpuExclusivity.SAME_CORES if on_cores else CpuExclusivity.SATISFIED
        )
        return
    on_nodes = bool(actual & made.of_nodes(made.node_ids(avoided)))
    on_cores = bool(made.touched(actual) & made.touched(avoided | cpus_of[CORE]))
    assert (judged[chosen] is CpuExclusivity.SATISFIED) == (not on_nodes)
    assert (judged[chosen] is CpuExclusivity.SAME_CORES) == (on_nodes and on_cores)
