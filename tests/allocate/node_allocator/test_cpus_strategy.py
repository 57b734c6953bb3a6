"""The strategy in force chooses between the NUMA nodes that the NUMA policy leaves equal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.allocate import node_score
from agent.allocate.node_allocation import Amounts, PodAllocation, TopologyOptions
from agent.allocate.node_allocator.cpus import CpuOffer, cpu_offer
from agent.allocate.numa.hint import ids
from agent.allocate.policies_in_force import NodePolicies, PolicySource
from agent.model.cpu.policies import NUMA_STRATEGIES, NumaPolicy, Strategy
from agent.model.pod.resource_request import ResourceRequest
from agent.model.settings.plugin_args import decode
from tests.allocate.nodes import GIB, allocated, claim, ls_pod, node_options, offered, owner

MOST, LEAST, EVENLY = NUMA_STRATEGIES
POLICIES = [NumaPolicy.BEST_EFFORT, NumaPolicy.RESTRICTED, NumaPolicy.SINGLE_NUMA_NODE]


def strategy_of(offer: CpuOffer) -> tuple[Strategy, PolicySource]:
    """The strategy in the explanation of the offer."""
    for each in offer.why.policies:
        if each.policy == "numa strategy":
            return Strategy(each.value), each.source
    raise AssertionError(offer.why.policies)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("strategy", "cpus"), [(MOST, "2-3"), (LEAST, "8-9"), (EVENLY, "8-9"), (None, "8-9")]
)
@pytest.mark.parametrize("configured", [None, LEAST, MOST])
def test_the_label_chooses_the_numa_node_before_the_configuration(
    policy: NumaPolicy, strategy: Strategy | None, cpus: str, configured: Strategy | None
) -> None:
    """Of two NUMA nodes on which the pod fits, another pod is on the first."""
    node = node_options(policies=NodePolicies(numa_label=policy, strategy_label=strategy))
    if configured is not None:
        args = decode({"kind": "NodeNUMAResourceArgs", "scoringStrategy": {"type": configured}})
        node = replace(node, profile=node_score.profile(args))
        cpus = "2-3" if (strategy or configured) is MOST else cpus
    held = claim("b", "0-1", {0: {"cpu": 2000, "memory": GIB}})
    got = offered(node, owner(2, 1), held)
    assert str(got.allocation.cpus) == cpus
    if strategy is not None:
        assert strategy_of(got) == (strategy, PolicySource.NODE_LABEL)
    else:
        assert strategy_of(got) == (configured or LEAST, PolicySource.DEFAULT)


def test_the_kubelets_option_chooses_the_emptier_numa_node() -> None:
    node = node_options(policies=NodePolicies(numa_kubelet=NumaPolicy.RESTRICTED))
    profile = replace(node.profile, strategy=MOST)
    held = claim("b", "0-1", {0: {"cpu": 2000}})
    assert str(offered(replace(node, profile=profile), owner(2), held).allocation.cpus) == "2-3"
    evenly = NodePolicies(numa_kubelet=NumaPolicy.RESTRICTED, distribute_across_numa=True)
    got = offered(replace(node, profile=profile, policies=evenly), owner(2), held)
    assert str(got.allocation.cpus) == "8-9"
    assert strategy_of(got) == (EVENLY, PolicySource.KUBELET)


@pytest.mark.parametrize(
    ("strategy", "amounts"),
    [(MOST, {0: {"cpu": 8000}, 1: {"cpu": 2000}}), (EVENLY, {0: {"cpu": 5000}, 1: {"cpu": 5000}})],
)
def test_distribute_evenly_splits_amounts_that_the_profile_would_pack(
    strategy: Strategy, amounts: Amounts
) -> None:
    node = node_options(
        policies=NodePolicies(numa_label=NumaPolicy.RESTRICTED, strategy_label=strategy)
    )
    packed = replace(node, profile=replace(node.profile, packed=True))
    assert offered(packed, ls_pod(10_000)).allocation.amounts == amounts


def test_a_set_of_numa_nodes_is_chosen_by_its_score_and_not_by_its_ids() -> None:
    """A pod of two NUMA nodes: 1 and 2 have the lower mask, 0 and 3 are the fuller ones."""
    node = node_options(
        (4, 1, 4, 2), policies=NodePolicies(numa_label=NumaPolicy.RESTRICTED, strategy_label=MOST)
    )
    held = claim("b", amounts={0: {"cpu": 2000}, 3: {"cpu": 2000}})
    assert offered(node, ls_pod(12_000), held).allocation.amounts.keys() == {0, 3}


shapes = st.sampled_from([(2, 1, 2, 2), (2, 2, 2, 1), (1, 3, 2, 2)])
labels = st.sampled_from([None, *NUMA_STRATEGIES])


@st.composite
def cases(draw: st.DrawFn) -> tuple[TopologyOptions, list[PodAllocation], ResourceRequest]:
    """A node with a NUMA policy, pods that share CPUs of its NUMA nodes, and a new pod."""
    args = decode(
        {
            "kind": draw(st.sampled_from(["NodeNUMAResourceArgs", "CPUOrchestrationPluginArgs"])),
            "scoringStrategy": {"type": draw(st.sampled_from(["MostAllocated", "LeastAllocated"]))},
            "numaScoringStrategy": {
                "type": draw(st.sampled_from(["MostAllocated", "LeastAllocated"]))
            },
        }
    )
    node = node_options(
        draw(shapes),
        profile=node_score.profile(args),
        policies=NodePolicies(
            numa_label=draw(st.sampled_from(POLICIES)),
            strategy_label=draw(labels),
            distribute_across_numa=draw(st.booleans()),
        ),
    )
    held = []
    for id_, zone in node.numa_allocatable.items():
        used = {
            "cpu": draw(st.integers(0, zone["cpu"] // 500)) * 500,
            "memory": draw(st.integers(0, 16)) * GIB,
        }
        held.append(claim(f"p{id_}", amounts={id_: used}))
    builder = draw(st.sampled_from([owner, ls_pod]))
    count = draw(st.integers(1, 8))
    return node, held, builder(count if builder is owner else 700 * count, draw(st.integers(1, 20)))


@given(cases())
def test_an_offer_follows_the_strategy_that_it_names(
    case: tuple[TopologyOptions, list[PodAllocation], ResourceRequest],
) -> None:
    node, held, request = case
    got = cpu_offer(node, allocated(node, held), request)
    if not isinstance(got, CpuOffer) or got.why.merged is None or not got.why.merged.preferred:
        return
    mask = got.why.merged.mask
    assert mask is not None
    chosen = ids(mask)
    assert got.allocation.amounts.keys() <= set(chosen)
    strategy, _ = strategy_of(got)

    def has_left(id_: int) -> bool:
        """A NUMA node without memory or CPU can't give all resources."""
        used = next(each.amounts[id_] for each in held if id_ in each.amounts)
        return all(node.numa_allocatable[id_][name] > used[name] for name in ("cpu", "memory"))

    equal = [
        each.nodes
        for each in got.why.candidates
        if each.refusal is None and len(each.nodes) == len(chosen)
    ]
    equal = [nodes for nodes in equal if all(has_left(id_) for id_ in nodes)]

    def utilization(nodes: tuple[int, ...]) -> int:
        points = 0
        for name in ("cpu", "memory"):
            capacity = sum(node.numa_allocatable[id_][name] for id_ in nodes)
            used = request.requests[name]
            used += sum(each.amounts.get(id_, {}).get(name, 0) for each in held for id_ in nodes)
            points += (used if strategy is MOST else capacity - used) * 100 // capacity
        return points // 2

    best = max(map(utilization, equal))
    assert utilization(chosen) == best
    assert mask == min(
        sum(1 << id_ for id_ in nodes) for nodes in equal if utilization(nodes) == best
    )
