"""FullPCPUs, required or only preferred, breaks no more cores than needed among the NUMA nodes that
the NUMA policy leaves equal."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.allocate import node_score
from agent.allocate.node_allocation import Amounts, NodeAllocation, PodAllocation, TopologyOptions
from agent.allocate.node_allocator.allocator import NodeAllocator
from agent.allocate.node_allocator.answer import NodeOffer
from agent.allocate.node_allocator.cpus import CpuOffer, cpu_offer
from agent.allocate.policies_in_force import NodePolicies
from agent.model.cpu.cpuset import CpuSet
from agent.model.cpu.policies import (
    NUMA_STRATEGIES,
    BindPolicy,
    ExclusivePolicy,
    NumaExclusive,
    NumaPolicy,
    Strategy,
)
from agent.model.pod.annotations import NumaSpec, ResourceSpec
from agent.model.pod_request import request_of
from agent.model.settings.plugin_args import decode
from tests.allocate.devices.builders import CARDS, gpu
from tests.allocate.node_allocator.builders import make_properties, pod
from tests.allocate.nodes import GIB, allocated, claim, ls_pod, node_options, offered, owner

PROFILE = node_score.profile(decode({"kind": "CPUOrchestrationPluginArgs"}))
POLICIES = [NumaPolicy.BEST_EFFORT, NumaPolicy.RESTRICTED, NumaPolicy.SINGLE_NUMA_NODE]
SPREAD = ResourceSpec(BindPolicy.SPREAD_BY_PCPUS)
LEAST = Strategy.LEAST_ALLOCATED


def singles(node: TopologyOptions, cpus: str) -> list[PodAllocation]:
    """A pod on each of these CPUs."""
    layout = node.layout
    assert layout is not None
    return [
        claim(f"p{cpu}", str(cpu), {layout.node_ids(1 << cpu)[0]: {"cpu": 1000}})
        for cpu in CpuSet.parse(cpus)
    ]


def node_with(
    shape: tuple[int, int, int, int] = (2, 1, 4, 2),
    policy: NumaPolicy = NumaPolicy.BEST_EFFORT,
    strategy: Strategy | None = None,
) -> TopologyOptions:
    policies = NodePolicies(numa_label=policy, strategy_label=strategy)
    return node_options(shape, profile=PROFILE, policies=policies)


@pytest.mark.parametrize("policy", [NumaPolicy.NONE, *POLICIES])
@pytest.mark.parametrize("strategy", [None, *NUMA_STRATEGIES])
def test_four_whole_cores_come_before_the_siblings_of_four_strangers(
    policy: NumaPolicy, strategy: Strategy | None
) -> None:
    node = node_with(policy=policy, strategy=strategy)
    held = singles(node, "0,2,4,6")
    assert str(offered(node, owner(4), *held).allocation.cpus) == "8-11"


def test_a_pod_that_spreads_over_cores_follows_the_strategy() -> None:
    node = node_with()
    held = singles(node, "0,2,4,6")
    assert str(offered(node, owner(4, spec=SPREAD), *held).allocation.cpus) == "1,3,5,7"


@pytest.mark.parametrize("policy", [NumaPolicy.BEST_EFFORT, NumaPolicy.RESTRICTED])
@pytest.mark.parametrize(
    ("strategy", "amounts"),
    [
        (None, {0: {"cpu": 8000}, 1: {"cpu": 2000}}),
        (LEAST, {0: {"cpu": 4000}, 1: {"cpu": 6000}}),
        (Strategy.DISTRIBUTE_EVENLY, {0: {"cpu": 4000}, 1: {"cpu": 6000}}),
    ],
)
def test_cpus_of_several_numa_nodes_are_split_by_whole_cores(
    policy: NumaPolicy, strategy: Strategy | None, amounts: Amounts
) -> None:
    """MostAllocated, the default, fills one NUMA node after the other."""
    found = offered(node_with(policy=policy, strategy=strategy), owner(10)).allocation
    assert found.amounts == amounts
    assert node_options().layout.whole(found.cpus.mask).bit_count() == 5  # type: ignore[union-attr]


def test_single_cpus_come_from_the_numa_nodes_that_have_no_whole_core_left() -> None:
    """NUMA node 0 has two whole cores, node 1 the siblings of four strangers."""
    node = node_with(strategy=LEAST)
    held = [
        claim("a", "0-3", {0: {"cpu": 4000}}),
        *singles(node, "8,10,12,14"),
    ]
    found = offered(node, owner(6), *held).allocation
    assert found.amounts == {0: {"cpu": 4000}, 1: {"cpu": 2000}}


def test_the_exclusive_policy_outranks_whole_cores() -> None:
    node = node_with(strategy=LEAST)
    alone = ResourceSpec(exclusive=ExclusivePolicy.NUMA_NODE_LEVEL)
    held = [
        claim("a", "8-9", {1: {"cpu": 2000}}, ExclusivePolicy.NUMA_NODE_LEVEL),
        *singles(node, "0,2,4,6"),
    ]
    found = offered(node, owner(2, spec=alone), *held)
    assert str(found.allocation.cpus) == "1,3"
    assert [(each.nodes, each.whole_cores) for each in found.why.candidates] == [
        ((0,), 0),
        ((1,), 1),
    ]


def test_amounts_that_others_hold_leave_fewer_whole_cores() -> None:
    """A pod that shares CPUs leaves 2 CPUs of NUMA node 1, one core; node 0 has two."""
    node = node_with()
    held = [claim("a", "0-3", {0: {"cpu": 4000}}), claim("b", amounts={1: {"cpu": 6500}})]
    found = offered(node, owner(5), *held)
    assert found.allocation.amounts == {0: {"cpu": 4000}, 1: {"cpu": 1000}}
    assert found.why.candidates[-1].whole_cores == 2


def test_a_pod_of_several_numa_nodes_by_its_exclusive_policy_has_cpus_of_each() -> None:
    """One whole core would make it a pod of one NUMA node beside a pod of two."""
    across = claim("b", "6-9", {0: {"cpu": 2000}, 1: {"cpu": 2000}})
    request = owner(2, numa=NumaSpec(exclusive=NumaExclusive.REQUIRED))
    node = node_with(policy=NumaPolicy.RESTRICTED)
    found = offered(node, request, across).allocation
    assert found.amounts == {0: {"cpu": 1000}, 1: {"cpu": 1000}}


@pytest.mark.parametrize("policy", [NumaPolicy.BEST_EFFORT, NumaPolicy.RESTRICTED])
def test_a_pod_has_cpus_of_each_numa_node_whose_memory_is_bound(policy: NumaPolicy) -> None:
    node = replace(node_with(policy=policy), counts_memory=True)
    found = offered(node, owner(2, 20)).allocation
    assert {id_: each["cpu"] for id_, each in found.amounts.items()} == {0: 1000, 1: 1000}
    assert sum(each["memory"] for each in found.amounts.values()) == 20 * GIB


def test_a_pod_of_several_numa_nodes_by_its_memory_has_whole_cores_of_each() -> None:
    """Packed, its 4 CPUs would be on one NUMA node."""
    node = replace(node_with(), counts_memory=True)
    found = offered(node, owner(4, 20)).allocation
    assert {id_: each["cpu"] for id_, each in found.amounts.items()} == {0: 2000, 1: 2000}


@pytest.mark.parametrize(
    ("distribute", "amounts"),
    [
        (None, {0: {"cpu": 2000}, 1: {"cpu": 4000}}),
        (False, {0: {"cpu": 6000}}),
    ],
)
def test_a_pod_with_devices_of_several_numa_nodes_has_whole_cores_of_each(
    distribute: bool | None, amounts: Amounts
) -> None:
    """Unless the configuration packs amounts."""
    body: dict[str, object] = {"kind": "CPUOrchestrationPluginArgs"}
    if distribute is not None:
        body["distributeAcrossNUMA"] = distribute
    properties = make_properties(
        devices=[gpu(minor, minor // 2) for minor in range(4)],
        profile=node_score.profile(decode(body)),
    )
    found = NodeAllocator(properties).offer(request_of(pod("a", {"cpu": 6, CARDS: 4}, "LSR")))
    assert isinstance(found, NodeOffer)
    assert found.assigned_pod().allocation.amounts == amounts


def test_cpus_where_the_memory_is_are_whole_cores_first() -> None:
    """Without a NUMA policy: the CPUs of NUMA nodes 1 and 2 have the memory, those of node 0 have
    not."""
    node = replace(node_with((3, 1, 4, 2), NumaPolicy.NONE), counts_memory=True)
    held = [
        claim("a", "0-3", {0: {"cpu": 4000, "memory": 16 * GIB}}),
        *singles(node, "8,10,12,14"),
    ]
    assert str(offered(node, owner(4, 1), *held).allocation.cpus) == "16-19"


def test_packed_memory_follows_the_cpus() -> None:
    """NUMA node 1 has more memory, node 0 gives more CPUs."""
    node = node_with()
    held = [claim("a", amounts={0: {"memory": GIB}}), claim("b", "8-9", {1: {"cpu": 2000}})]
    assert offered(node, owner(10, 18), *held).allocation.amounts == {
        0: {"cpu": 8000, "memory": 15 * GIB},
        1: {"cpu": 2000, "memory": 3 * GIB},
    }


@pytest.mark.parametrize(
    ("kind", "strategy", "distribute", "packs"),
    [
        ("CPUOrchestrationPluginArgs", "MostAllocated", None, True),
        ("CPUOrchestrationPluginArgs", "LeastAllocated", None, False),
        ("CPUOrchestrationPluginArgs", "MostAllocated", True, False),
        ("CPUOrchestrationPluginArgs", "LeastAllocated", False, True),
        ("NodeNUMAResourceArgs", "MostAllocated", None, False),
        ("NodeNUMAResourceArgs", "MostAllocated", False, True),
    ],
)
def test_most_allocated_packs_amounts_unless_the_configuration_says_otherwise(
    kind: str, strategy: str, distribute: bool | None, packs: bool
) -> None:
    body = {"kind": kind, "scoringStrategy": {"type": strategy}}
    if distribute is not None:
        body["distributeAcrossNUMA"] = distribute  # type: ignore[assignment]
    node = node_options(
        profile=node_score.profile(decode(body)),
        policies=NodePolicies(numa_label=NumaPolicy.RESTRICTED),
    )
    packed, even = [8000, 4000], [6000, 6000]
    found = offered(node, ls_pod(12_000)).allocation
    assert [each["cpu"] for each in found.amounts.values()] == (packed if packs else even)


shapes = st.sampled_from([(2, 1, 4, 2), (2, 2, 3, 2), (1, 4, 2, 2), (2, 1, 2, 4)])


@st.composite
def fragmented_nodes(draw: st.DrawFn) -> tuple[TopologyOptions, NodeAllocation]:
    """A node on which other pods own single CPUs."""
    node = node_with(
        draw(shapes), draw(st.sampled_from(POLICIES)), draw(st.sampled_from(NUMA_STRATEGIES))
    )
    assert node.layout is not None
    taken = draw(st.sets(st.sampled_from(sorted(CpuSet.from_int(node.layout.cpus)))))
    return node, allocated(node, singles(node, str(CpuSet(taken))))


@given(fragmented_nodes(), st.integers(1, 24))
def test_no_more_cores_are_broken_than_needed_among_numa_nodes_that_the_policy_holds_equal(
    case: tuple[TopologyOptions, NodeAllocation], count: int
) -> None:
    node, node_allocation = case
    layout = node.layout
    assert layout is not None
    found = cpu_offer(node, node_allocation, owner(count))
    if not isinstance(found, CpuOffer):
        return
    free, mine = node_allocation.free_cpus(), found.allocation.cpus.mask
    most = 0
    for nodes in combinations((area.id for area in layout.nodes), len(layout.node_ids(mine))):
        here = free & layout.of_nodes(nodes)
        if here.bit_count() >= count:
            most = max(most, min(count // layout.threads, layout.whole(here).bit_count()))
    assert mine.bit_count() == count
    assert layout.whole(mine).bit_count() == most
