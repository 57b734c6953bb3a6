from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.allocate import node_allocation
from agent.allocate.node_allocation import (
    NodeAllocation,
    PodAllocation,
    TopologyOptions,
    pod_allocation,
)
from agent.allocate.numa.hint import NodeStatus
from agent.model.cpu.cpuset import EMPTY, CpuSet
from agent.model.cpu.policies import ExclusivePolicy
from agent.model.pod.annotations import RESOURCE_SPEC, RESOURCE_STATUS, AnnotationError
from tests.allocate.nodes import GIB, allocated, claim, node_options


def node_with(node: TopologyOptions, *claims: PodAllocation) -> NodeAllocation:
    made = NodeAllocation(node)
    for each in claims:
        made.add(each)
    return made


def free(made: NodeAllocation) -> str:
    return str(CpuSet.from_int(made.free_cpus()))


def test_owners_may_get_the_kubelets_reserved_cpus_where_the_agent_allows_it() -> None:
    node = node_options(
        never_owned=CpuSet.parse("0"), kubelet_reserved=CpuSet.parse("0-1"), owners_on_reserved=True
    )
    assert free(node_with(node)) == "1-15"


def test_a_cpu_is_free_while_fewer_pods_hold_it_than_may_share_it() -> None:
    node = node_options(max_ref=2)
    assert free(node_with(node, claim("a", "0-3"), claim("b", "2-5"))) == "0-1,4-15"


def test_reserved_cpus_are_subtracted_from_their_numa_node() -> None:
    made = node_with(node_options(never_owned=CpuSet.parse("0,8-9")))
    assert [made.options.totals[node]["cpu"] for node in (0, 1)] == [7000, 6000]


def test_owned_cpus_without_amounts_are_subtracted_too() -> None:
    made = node_with(node_options(), claim("owns", "8-9"))
    assert made.available()[1]["cpu"] == 6000
    assert made.left_by_records()[1]["cpu"] == 8000


def test_amplified_cpu_is_overcommitted_except_for_owned_cpus() -> None:
    made = node_with(
        node_options(cpu_ratio=1.5),
        claim("owns", "0-1", {0: {"cpu": 2000}}),
        claim("bare", "8"),
        claim("shares", amounts={0: {"cpu": 500}}),
    )
    assert made.options.totals[0]["cpu"] == 12_000
    assert made.available()[0]["cpu"] == 12_000 - 3000 - 500
    assert made.available()[1]["cpu"] == 12_000 - 1500


def test_numa_nodes_of_pods_within_one_and_across_several() -> None:
    shape = (4, 1, 2, 2)
    made = node_with(node_options(shape), claim("within", "0-1"), claim("across", "6-9"))
    assert made.numa_status() == {
        0: NodeStatus.SINGLE,
        1: NodeStatus.SHARED,
        2: NodeStatus.SHARED,
        3: NodeStatus.IDLE,
    }


def test_amounts_of_a_missing_numa_node_are_ignored() -> None:
    made = node_with(node_options(), claim("old", "40-41", {7: {"cpu": 2000}}))
    assert free(made) == "0-15"
    assert sorted(made.available()) == [0, 1]


def test_an_overcommitted_numa_node_does_not_reduce_the_others() -> None:
    made = node_with(node_options(), claim("b", "0-7", {0: {"cpu": 9000, "memory": 17 * GIB}}))
    for left in (made.left_by_records(), made.available()):
        assert left == {0: {"cpu": 0, "memory": 0}, 1: {"cpu": 8000, "memory": 16 * GIB}}


def test_a_pod_is_charged_for_the_cpus_it_holds_regardless_of_its_request() -> None:
    made = node_with(node_options(cpu_ratio=1.5))
    assert made.paid(replace(claim("b", "0-1"), cpu_milli=0)) == 3000
    assert made.paid(replace(claim("b", "0-1"), cpu_milli=2500)) == 3500
    assert made.paid(replace(claim("b"), cpu_milli=-5)) == 0


@pytest.mark.parametrize("ratio", [math.nan, math.inf, -math.inf, 1001.0])
def test_an_invalid_amplification_ratio_is_refused(ratio: float) -> None:
    with pytest.raises(ValueError, match="cpu_ratio"):
        node_options(cpu_ratio=ratio)
    with pytest.raises(ValueError, match="cpu_ratio"):
        replace(node_options(), cpu_ratio=ratio)


@pytest.mark.parametrize("ratio", [-2.0, 0.0, 0.5, 1.0])
def test_a_ratio_up_to_1_amplifies_nothing(ratio: float) -> None:
    assert node_options(cpu_ratio=ratio).totals == node_options().totals


def test_a_max_ref_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="max_ref: 0 pods"):
        node_options(max_ref=0)


def test_a_numa_node_has_no_cpu_when_more_is_reserved_than_it_has() -> None:
    node = node_options(never_owned=CpuSet.parse("0-7"))
    assert node.totals[0]["cpu"] == 0
    smaller = replace(node, numa_allocatable={0: {"cpu": 5000}, 1: {"cpu": 8000}})
    assert {each: held["cpu"] for each, held in smaller.totals.items()} == {0: 0, 1: 8000}


def test_cpu_is_amplified_without_a_cpu_topology_too() -> None:
    node = replace(node_options(cpu_ratio=1.5), layout=None)
    assert [held["cpu"] for held in node.totals.values()] == [12_000, 12_000]


def test_a_pod_of_cpus_and_amounts() -> None:
    status = (
        '{"cpuset": "0-1", "numaNodeResources": ['
        '{"node": 1, "resources": {"cpu": "2", "memory": "1Gi", "batch.io/x": 3}}]}'
    )
    spec = '{"preferredCPUExclusivePolicy": "PCPULevel"}'
    claim = pod_allocation("u", "ns/p", {RESOURCE_STATUS: status, RESOURCE_SPEC: spec}, 2000)
    assert claim == PodAllocation(
        "u",
        "ns/p",
        CpuSet((0, 1)),
        ExclusivePolicy.PCPU_LEVEL,
        {1: {"cpu": 2000, "memory": 1 << 30, "batch.io/x": 3}},
        2000,
    )


def test_an_exclusive_policy_counts_with_cpus_only() -> None:
    spec = {RESOURCE_SPEC: '{"preferredCPUExclusivePolicy": "NUMANodeLevel"}'}
    assert pod_allocation("u", "ns/p", spec) == PodAllocation("u", "ns/p")


def test_amounts_of_a_repeated_numa_node_are_added() -> None:
    one = '{"node": 0, "resources": {"cpu": "1"}}'
    status = f'{{"numaNodeResources": [{one}, {one}]}}'
    assert pod_allocation("u", "ns/p", {RESOURCE_STATUS: status}).amounts == {0: {"cpu": 2000}}


def test_a_pod_on_the_pools_of_an_older_koordinator_holds_its_cpu_there() -> None:
    """cpuSharedPools has no amounts (fine-grained CPU orchestration proposal, Resource status)."""
    notes = {RESOURCE_STATUS: '{"cpuSharedPools": [{"socket": 0, "node": 1}]}'}
    held = pod_allocation("u", "ns/p", notes, 5000)
    assert held == PodAllocation("u", "ns/p", amounts={1: {"cpu": 5000}}, cpu_milli=5000)
    left = allocated(node_options(), [held]).available()
    assert (left[0]["cpu"], left[1]["cpu"]) == (8000, 3000)


@pytest.mark.parametrize(
    ("more", "amounts"),
    [
        ('"cpuset": "0-3"', {}),
        ('"numaNodeResources": [{"node": 0, "resources": {"cpu": "1"}}]', {0: {"cpu": 1000}}),
        (
            '"numaNodeResources": [{"node": 1, "resources": {"memory": "1"}}]',
            {1: {"memory": 1, "cpu": 4000}},
        ),
    ],
)
def test_own_cpus_and_amounts_have_precedence_over_pools(more: str, amounts: object) -> None:
    notes = {RESOURCE_STATUS: f'{{"cpuSharedPools": [{{"socket": 0, "node": 1}}], {more}}}'}
    assert pod_allocation("u", "ns/p", notes, 4000).amounts == amounts


def test_negative_amounts_are_ignored() -> None:
    parts = '{"node": 0, "resources": {"cpu": "-4"}}, {"node": 0, "resources": {"cpu": "1"}}'
    held = pod_allocation("u", "ns/p", {RESOURCE_STATUS: f'{{"numaNodeResources": [{parts}]}}'})
    assert held.amounts == {0: {"cpu": 1000}}
    assert allocated(node_options(), [held]).available()[0]["cpu"] == 7000


def test_cpus_count_with_any_spec_of_the_pod() -> None:
    notes = {RESOURCE_STATUS: '{"cpuset": "0-3"}', RESOURCE_SPEC: "{"}
    assert pod_allocation("u", "ns/p", notes) == PodAllocation("u", "ns/p", CpuSet(range(4)))


def test_cpus_count_with_invalid_amounts() -> None:
    part = '{"node": 0, "resources": {"cpu": "four"}}'
    notes = {RESOURCE_STATUS: f'{{"cpuset": "0-3", "numaNodeResources": [{part}]}}'}
    assert pod_allocation("u", "ns/p", notes) == PodAllocation("u", "ns/p", CpuSet(range(4)))


@pytest.mark.parametrize("amount", ['"1Zi"', '""', "true", "null"])
def test_an_invalid_amount_is_named(amount: str) -> None:
    status = f'{{"numaNodeResources": [{{"node": 3, "resources": {{"memory": {amount}}}}}]}}'
    with pytest.raises(AnnotationError, match=r"node 3, 'memory'|numaNodeResources.0..resources"):
        pod_allocation("u", "ns/p", {RESOURCE_STATUS: status})


amounts = st.dictionaries(
    st.integers(0, 70),
    st.dictionaries(
        st.sampled_from(["cpu", "memory", "hugepages-2Mi"]), st.integers(1, 1 << 40), min_size=1
    ),
    max_size=4,
)
cpusets = st.frozensets(st.integers(0, 40)).map(CpuSet)


@given(cpusets, amounts)
def test_annotations_of_an_allocation_are_decoded_to_the_same_allocation(
    cpus: CpuSet, node_amounts: dict[int, dict[str, int]]
) -> None:
    claim = PodAllocation("u", "ns/p", cpus, amounts=node_amounts)
    assert pod_allocation("u", "ns/p", claim.annotations()) == claim
    assert bool(claim.annotations()) == bool(cpus != EMPTY or node_amounts)


nodes = st.dictionaries(st.integers(0, 70), st.integers(0, 40), max_size=6)
units = st.integers(1, 4)


@pytest.mark.parametrize(
    ("requested", "available", "unit", "shares"),
    [
        (8, {0: 8, 1: 8}, 1, {0: 4, 1: 4}),
        (7, {0: 8, 1: 8}, 1, {0: 3, 1: 4}),
        (8, {0: 1, 1: 8}, 1, {0: 1, 1: 7}),
        (12, {2: 9, 5: 2, 7: 9}, 1, {2: 5, 5: 2, 7: 5}),
        (6, {0: 8, 1: 8}, 2, {0: 2, 1: 4}),
        (6, {0: 3, 1: 8}, 2, {0: 2, 1: 4}),
        (9, {0: 3, 1: 3}, 1, {0: 3, 1: 3}),
        (3, {0: 0, 1: 8}, 1, {1: 3}),
        (1, {}, 1, {}),
    ],
)
def test_evenly(
    requested: int, available: dict[int, int], unit: int, shares: dict[int, int]
) -> None:
    assert node_allocation.split_evenly(requested, available, unit) == shares


def test_order_follows_availability_when_the_mask_does_not_start_at_node_0() -> None:
    assert node_allocation.split_evenly(10, {1: 9, 3: 2}) == {3: 2, 1: 8}


@pytest.mark.parametrize(
    ("requested", "available", "shares"),
    [
        (8, {0: 8, 1: 9}, {1: 8}),
        (12, {0: 8, 1: 8, 2: 3}, {0: 8, 1: 4}),
        (30, {0: 8, 1: 9}, {1: 9, 0: 8}),
    ],
)
def test_packed(requested: int, available: dict[int, int], shares: dict[int, int]) -> None:
    assert node_allocation.split_packed(requested, available) == shares


@given(
    st.integers(0, 100),
    nodes,
    units,
    st.sampled_from([node_allocation.split_evenly, node_allocation.split_packed]),
)
def test_amounts_are_split_completely_and_within_what_is_available(
    requested, available, unit, split
) -> None:
    shares = split(requested, available, unit)
    room = sum(amount // unit for amount in available.values())
    assert sum(shares.values()) == min(requested // unit, room) * unit
    assert all(0 < share <= available[node] and not share % unit for node, share in shares.items())


@given(st.integers(0, 100), nodes, units)
def test_even_shares_differ_by_more_than_a_unit_only_when_the_smaller_node_is_full(
    requested: int, available: dict[int, int], unit: int
) -> None:
    shares = node_allocation.split_evenly(requested, available, unit)
    for poorer, richer in itertools.permutations(available, 2):
        if shares.get(richer, 0) - shares.get(poorer, 0) > unit:
            assert available[poorer] - shares.get(poorer, 0) < unit


@given(st.integers(1, 100), nodes)
def test_packed_amounts_use_the_fewest_nodes(requested: int, available: dict[int, int]) -> None:
    shares = node_allocation.split_packed(requested, available)
    if shares:
        fewer = itertools.combinations(available.values(), len(shares) - 1)
        assert all(sum(each) < sum(shares.values()) for each in fewer)
