from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.allocate.accumulator import AllocationStep
from agent.allocate.node_allocation import PodAllocation, TopologyOptions
from agent.allocate.node_allocator.cpus import (
    CpuOffer,
    MaskScores,
    burst_amounts,
    burst_nodes,
    cpu_offer,
    unavailable,
)
from agent.allocate.numa.hint import MergeCause
from agent.allocate.policies_in_force import (
    PROFILES,
    NodePolicies,
    PolicyInForce,
    PolicyKind,
    PolicySource,
)
from agent.allocate.refusal import Reason, Refusal
from agent.model.cpu import layout
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
from agent.model.pod.qos import QoS
from agent.model.pod.resource_request import ResourceRequest
from conformance import machines
from tests.allocate.nodes import GIB, allocated, claim, ls_pod, node_options, offered, owner

SPREAD = BindPolicy.SPREAD_BY_PCPUS
FULL = BindPolicy.FULL_PCPUS


def numa(policy: NumaPolicy, *shape: tuple[int, int, int, int], **more: object) -> TopologyOptions:
    return node_options(*shape, policies=NodePolicies(numa_label=policy), **more)


def declined(node: TopologyOptions, request: ResourceRequest, *held: PodAllocation) -> Refusal:
    got = cpu_offer(node, allocated(node, held), request)
    assert isinstance(got, Refusal), got
    return got


def reasons(got: Refusal) -> list[tuple[Reason, str, int | None, int | None]]:
    return [(each.reason, each.resource, each.requested, each.available) for each in got.reasons]


PLAIN = node_options()
AMPLIFIED = node_options(cpu_ratio=2.0, cpu_milli=32_000)
EVENLY = node_options(policies=NodePolicies(distribute_across_numa=True))
ONE_NUMA_NODE = numa(NumaPolicy.SINGLE_NUMA_NODE, (1, 1, 4, 2))
BINDS = node_options(policies=NodePolicies(bind_label=FULL))
RESTRICTED, BEST = numa(NumaPolicy.RESTRICTED), numa(NumaPolicy.BEST_EFFORT)
OFFERS = {
    "evenly over the NUMA nodes it needs": (EVENLY, owner(12), "0-5,8-13", {}),
    "amounts on a machine with one NUMA node": (
        ONE_NUMA_NODE,
        ls_pod(2000),
        "",
        {0: {"cpu": 2000}},
    ),
    "a resource that no NUMA node reports is not allocated": (
        BEST,
        ResourceRequest("a", "ns/a", requests={"cpu": 1000, "example.com/x": 3}),
        "",
        {0: {"cpu": 1000}},
    ),
    "a node with a bind policy allocates no CPUs to BE pods": (
        BINDS,
        ResourceRequest("a", "ns/a", QoS.BE, requests={"cpu": 2000}),
        "",
        {},
    ),
    "no requests": (RESTRICTED, ResourceRequest("a", "ns/a"), "", {}),
}


@pytest.mark.parametrize("name", OFFERS)
def test_offers(name: str) -> None:
    node, requested, cpus, amounts = OFFERS[name]
    got = offered(node, requested).allocation
    assert (str(got.cpus), got.amounts) == (cpus, amounts)


HALF_A_CPU = ResourceRequest("a", "ns/a", QoS.LSR, owner=True, requests={"cpu": 1500})
WHOLE_CORES = ResourceSpec(required=FULL)
SINGLE = numa(NumaPolicy.SINGLE_NUMA_NODE)
NO_AMOUNTS = numa(NumaPolicy.RESTRICTED, numa_allocatable={})
HELD = [claim("b", "0-7")]
REFUSED = {
    "half a CPU": (PLAIN, HALF_A_CPU, [], [(Reason.CPU_NOT_INTEGER, "cpu", 1500, None)]),
    "half a core": (
        PLAIN,
        owner(3, spec=WHOLE_CORES),
        [],
        [(Reason.SMT_ALIGNMENT, "cpu", 3000, None)],
    ),
    "more than is free": (PLAIN, owner(9), HELD, [(Reason.NOT_ENOUGH_CPUS, "cpu", 9000, 8000)]),
    "no CPU topology": (
        TopologyOptions(None),
        owner(2),
        [],
        [(Reason.NO_CPU_TOPOLOGY, "", None, None)],
    ),
    "amplified CPU that just fits": (AMPLIFIED, owner(8), [*HELD, claim("c")], []),
    "owned CPUs count amplified": (
        AMPLIFIED,
        owner(9),
        HELD,
        [(Reason.AMPLIFIED_CPU, "cpu", 18_000, 16_000)],
    ),
    "too much for one NUMA node": (
        SINGLE,
        owner(9),
        [],
        [(Reason.NUMA_UNALIGNED, "cpu", 9000, 8000)],
    ),
    "too much for all NUMA nodes": (
        RESTRICTED,
        owner(4, 33),
        [],
        [
            (Reason.NUMA_UNSATISFIED, "cpu", 4000, 16_000),
            (Reason.NUMA_UNSATISFIED, "memory", 33 * GIB, 32 * GIB),
        ],
    ),
    "BestEffort without enough memory on all NUMA nodes": (
        BEST,
        owner(4, 33),
        [],
        [(Reason.NUMA_INSUFFICIENT, "memory", 33 * GIB, 32 * GIB)],
    ),
    "a NUMA policy without NUMA resources": (
        NO_AMOUNTS,
        ls_pod(1000),
        [],
        [(Reason.NO_NUMA_RESOURCES, "", None, None)],
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_have_their_reasons(name: str) -> None:
    node, requested, held, why = REFUSED[name]
    got = cpu_offer(node, allocated(node, held), requested)
    assert (reasons(got) if isinstance(got, Refusal) else []) == why


def test_an_explanation_lists_policies_candidates_and_the_deciding_step() -> None:
    node = node_options(policies=NodePolicies(numa_kubelet=NumaPolicy.RESTRICTED, bind_label=FULL))
    held = claim("b", "0-1", {0: {"cpu": 2000}})
    why = offered(node, owner(8, spec=ResourceSpec(SPREAD)), held).why
    assert why.policies == (
        PolicyInForce(PolicyKind.NUMA, "Restricted", PolicySource.KUBELET),
        PolicyInForce(PolicyKind.NUMA_STRATEGY, "LeastAllocated", PolicySource.DEFAULT),
        PolicyInForce(PolicyKind.CPU_BIND, "FullPCPUs", PolicySource.NODE_LABEL),
    )
    assert {each.nodes for each in why.candidates} <= {(0,), (1,), (0, 1)}
    assert (1,) in {each.nodes for each in why.candidates if each.refusal is None}
    assert why.merged is not None
    assert why.merged.mask == 0b10
    assert AllocationStep.CORES_IN_NODE in why.cpu_steps


def policies(node: TopologyOptions, request: ResourceRequest) -> set[tuple[str, str, PolicySource]]:
    return {(each.policy, each.value, each.source) for each in offered(node, request).why.policies}


def test_an_explanation_lists_the_pods_own_policies() -> None:
    spec = ResourceSpec(exclusive=ExclusivePolicy.PCPU_LEVEL)
    numa_spec = NumaSpec(NumaPolicy.SINGLE_NUMA_NODE)
    assert {
        ("cpu exclusive policy", "PCPULevel", PolicySource.POD),
        ("numa policy", "SingleNUMANode", PolicySource.POD),
        ("numa exclusive policy", "Required", PolicySource.POD),
    } <= policies(node_options(), owner(2, spec=spec, numa=numa_spec))
    burst = ("cpu bind policy", "ConstrainedBurst", PolicySource.POD)
    assert burst in policies(node_options(), ls_pod(1000, spec=BURST, cpu_limit_milli=2000))


def test_an_explanation_has_no_bind_policy_without_a_cpu_request() -> None:
    node = node_options(policies=NodePolicies(bind_label=FULL))
    assert {each[0] for each in policies(node, ls_pod(0, 1))} == {"numa policy", "numa strategy"}


def test_a_pod_without_a_cpu_request_has_no_bind_policy_conflict() -> None:
    forced = node_options(policies=NodePolicies(bind_label=FULL))
    requested = owner(0, memory_gib=4, spec=ResourceSpec(required=SPREAD))
    assert offered(forced, requested).allocation.cpus == CpuSet()
    assert declined(forced, owner(2, spec=requested.spec)).reasons


@pytest.mark.parametrize(
    ("scoring", "weights", "node"),
    [
        (None, {}, 0),
        (Strategy.MOST_ALLOCATED, {}, 1),
        (Strategy.MOST_ALLOCATED, {"memory": 1}, 0),
    ],
)
def test_the_profile_determines_how_numa_nodes_are_compared(
    scoring: Strategy | None, weights: dict[str, int], node: int
) -> None:
    profile = replace(PROFILES["koordinator"], scoring=scoring, weights=weights)
    node_ = numa(NumaPolicy.SINGLE_NUMA_NODE, profile=profile)
    held = [claim("b", amounts={1: {"cpu": 4000}, 0: {"memory": 2 * GIB}})]
    assert offered(node_, ls_pod(2000, 1), *held).allocation.amounts.keys() == {node}


def test_arm_refuses_a_policy_of_the_nodes_label() -> None:
    node = node_options(policies=NodePolicies(arm=True, bind_label=SPREAD))
    assert reasons(declined(node, owner(2))) == [(Reason.ARCHITECTURE, "", None, None)]
    assert offered(node, ls_pod(0, 1))


def test_the_price_counts_numa_nodes_and_split_cores() -> None:
    whole = offered(node_options(), owner(4)).price
    spread = offered(node_options(), owner(4, spec=ResourceSpec(SPREAD))).price
    both = offered(node_options(), owner(12)).price
    assert (whole.numa_nodes, whole.split_cores) == (1, 0)
    assert (spread.numa_nodes, spread.split_cores) == (1, 4)
    assert both.numa_nodes == 2
    assert both.score < whole.score


def test_an_exclusive_pod_does_not_share_a_numa_node_with_pods_across_nodes() -> None:
    required = NumaSpec(NumaPolicy.SINGLE_NUMA_NODE, NumaExclusive.REQUIRED)
    preferred = NumaSpec(NumaPolicy.SINGLE_NUMA_NODE, NumaExclusive.PREFERRED)
    across = claim("b", "6-9", {0: {"cpu": 2000}, 1: {"cpu": 2000}})
    got = declined(node_options(), owner(4, numa=required), across)
    assert (got.reason, got.detail) == (Reason.NUMA_UNALIGNED, MergeCause.NODE_EXCLUSIVE)
    assert offered(node_options(), owner(4, numa=preferred), across)


def test_a_sharing_pod_has_no_exclusive_policy_in_its_claim() -> None:
    request = ls_pod(1000, spec=ResourceSpec(exclusive=ExclusivePolicy.NUMA_NODE_LEVEL))
    assert offered(node_options(), request).allocation.exclusive is ExclusivePolicy.NONE


def test_an_owner_is_divided_by_online_cpus_and_not_by_zone_amounts() -> None:
    """For example while CPUs are offline and the zone still counts them."""
    online = layout.of(cpu for cpu in machines.cpus((2, 1, 4, 2), "adjacent") if cpu.id >= 4)
    got = offered(numa(NumaPolicy.RESTRICTED, layout=online), owner(10)).allocation
    assert got.amounts == {0: {"cpu": 4000}, 1: {"cpu": 6000}}


def test_an_owner_gets_only_cpus_whose_amplified_amount_is_available() -> None:
    node = numa(NumaPolicy.SINGLE_NUMA_NODE, cpu_ratio=1.5)
    ls_pods = claim("b", amounts={0: {"cpu": 11_000}, 1: {"cpu": 9000}})
    assert offered(node, owner(2), ls_pods).allocation.amounts == {1: {"cpu": 2000}}
    assert reasons(declined(node, owner(3), ls_pods)) == [
        (Reason.NUMA_UNSATISFIED, "cpu", 3000, 2666)
    ]


BURST = ResourceSpec(BindPolicy.CONSTRAINED_BURST)


@pytest.mark.parametrize("policy", NumaPolicy)
def test_a_bursting_pod_with_packed_amounts_is_bound_to_all_nodes_that_its_limit_needs(
    policy: NumaPolicy,
) -> None:
    node = numa(policy, profile=replace(PROFILES["koordinator"], packed=True))
    request = ls_pod(1000, 4, spec=BURST, cpu_limit_milli=12_500)
    got = cpu_offer(node, allocated(node), request)
    if policy is NumaPolicy.SINGLE_NUMA_NODE:
        assert isinstance(got, Refusal)
    else:
        assert isinstance(got, CpuOffer)
        assert [amounts["cpu"] for amounts in got.allocation.amounts.values()] == [500, 500]


@pytest.mark.parametrize("policy", NumaPolicy)
def test_a_bursting_pod_without_a_cpu_request_is_bound_to_its_nodes_too(policy: NumaPolicy) -> None:
    request = ResourceRequest("a", "ns/a", cpu_limit_milli=6000, spec=BURST)
    assert offered(numa(policy), request, claim("b", "0-3")).allocation.amounts == {1: {"cpu": 1}}
    memory = replace(request, requests={"memory": GIB})
    held = offered(numa(policy), memory, claim("b", "0-3"))
    assert held.allocation.amounts[1]["cpu"] == 1
    assert held.allocation.cpu_milli == 0


@pytest.mark.parametrize(
    ("policy", "held", "available"),
    [
        (NumaPolicy.RESTRICTED, ["0-3"], 12_000),
        (NumaPolicy.BEST_EFFORT, ["0-3"], 12_000),
        (NumaPolicy.SINGLE_NUMA_NODE, [], 8_000),
    ],
)
def test_a_limit_that_no_pools_of_a_numa_policy_fit_is_the_reason(
    policy: NumaPolicy, held: list[str], available: int
) -> None:
    request = ls_pod(1000, spec=BURST, cpu_limit_milli=14_000)
    found = declined(numa(policy), request, *(claim("b", cpus) for cpus in held))
    assert reasons(found) == [(Reason.NO_POOL_FITS, "cpu", 14_000, available)]


@pytest.mark.parametrize("policy", [NumaPolicy.NONE, NumaPolicy.BEST_EFFORT])
def test_a_bursting_pod_is_not_bound_to_a_numa_node_without_available_cpu(
    policy: NumaPolicy,
) -> None:
    allocated_pod = claim("b", amounts={0: {"cpu": 8000}})
    request = ls_pod(1000, spec=BURST, cpu_limit_milli=9000)
    assert Reason.NO_POOL_FITS in {
        each.reason for each in declined(numa(policy), request, allocated_pod).reasons
    }
    assert offered(
        numa(policy), replace(request, cpu_limit_milli=8000), allocated_pod
    ).allocation.amounts == {1: {"cpu": 1000}}


def test_a_bursting_pod_is_bound_when_numa_nodes_report_no_cpu() -> None:
    node, request = (
        node_options(numa_allocatable={}),
        ls_pod(1000, spec=BURST, cpu_limit_milli=6000),
    )
    got = offered(node, request, claim("b", "0-3"))
    assert got.allocation.amounts == {1: {"cpu": 1000}}
    assert not unavailable(node, allocated(node, [claim("b", "0-3")]), request, got.allocation)


def test_the_kubelets_reserved_cpus_are_in_the_pool_of_a_bursting_pod() -> None:
    node = node_options(
        (1, 1, 4, 2), never_owned=CpuSet.parse("2-3"), kubelet_reserved=CpuSet.parse("0-1")
    )
    assert offered(node, ls_pod(1000, spec=BURST, cpu_limit_milli=6000))
    assert declined(node, ls_pod(1000, spec=BURST, cpu_limit_milli=6500))


@pytest.mark.parametrize("limit", [None, 0])
def test_a_pod_without_a_limit_may_burst_anywhere(limit: int | None) -> None:
    request = ls_pod(1000, spec=BURST, cpu_limit_milli=limit)
    assert offered(node_options(), request).allocation.amounts == {}


@pytest.mark.parametrize("policy", [each for each in NumaPolicy if each is not NumaPolicy.NONE])
@pytest.mark.parametrize("more", [{}, {"memory": GIB}])
def test_an_owner_is_declined_with_the_resource_when_numa_nodes_report_no_cpu(
    policy: NumaPolicy, more: dict[str, int]
) -> None:
    node = numa(policy, numa_allocatable={0: {"memory": GIB}, 1: {"memory": GIB}})
    request = ResourceRequest("a", "ns/a", QoS.LSR, owner=True, requests={"cpu": 2000, **more})
    assert reasons(declined(node, request)) == [(Reason.NO_NUMA_RESOURCES, "cpu", 2000, None)]


@pytest.mark.parametrize("policy", [each for each in NumaPolicy if each is not NumaPolicy.NONE])
def test_two_of_34_numa_nodes_have_cpus(policy: NumaPolicy) -> None:
    two = node_options((2, 1, 36, 1))
    zones = {**two.numa_allocatable, **{node: {"memory": 96 * GIB} for node in range(2, 34)}}
    node = replace(numa(policy), layout=two.layout, numa_allocatable=zones)
    got = offered(node, owner(30, 8), claim("b", "0-9", {0: {"cpu": 10_000}})).allocation
    assert (str(got.cpus), got.amounts) == ("36-65", {1: {"cpu": 30_000, "memory": 8 * GIB}})
    large = ls_pod(60_000, 20)
    if policy is NumaPolicy.SINGLE_NUMA_NODE:
        assert declined(node, large).reasons
    else:
        assert offered(node, large).allocation.amounts.keys() == {0, 1}


MOST, LEAST, _ = NUMA_STRATEGIES


@pytest.mark.parametrize(
    ("limit", "request_milli", "pools", "available", "strategy", "nodes"),
    [
        (4000, 1000, {0: 8000, 1: 4000, 2: 3000}, {0: 8000, 1: 4000, 2: 3000}, MOST, (1,)),
        (4000, 1000, {0: 8000, 1: 4000, 2: 3000}, {0: 8000, 1: 4000, 2: 3000}, LEAST, (0,)),
        (4000, 1000, {0: 8000, 1: 8000}, {0: 2000, 1: 3000}, LEAST, (1,)),
        (4000, 2500, {0: 4000, 1: 8000}, {0: 2000, 1: 3000}, MOST, (1,)),
        (12_000, 1000, {0: 4000, 1: 8000, 5: 6000}, {0: 4000, 1: 8000, 5: 6000}, MOST, (1, 5)),
        (4000, 6000, {0: 4000, 1: 8000}, {0: 4000, 1: 3000}, LEAST, (0, 1)),
    ],
)
def test_nodes_that_fit(limit, request_milli, pools, available, strategy, nodes) -> None:
    assert burst_nodes(limit, request_milli, pools, available, strategy, {}, {}) == nodes


def test_a_limit_beyond_all_pools_is_refused_with_their_sum() -> None:
    got = burst_nodes(9000, 1000, {0: 4000, 1: 4000}, {0: 4000, 1: 4000}, LEAST, {}, {})
    assert got == Refusal(Reason.NO_POOL_FITS, "cpu", 9000, 8000)


def test_pools_that_fit_but_are_allocated_to_others_have_another_reason() -> None:
    got = burst_nodes(4000, 3000, {0: 4000, 1: 4000}, {0: 1000, 1: 1000}, LEAST, {}, {})
    assert got == Refusal(Reason.NUMA_INSUFFICIENT, "cpu", 3000, 2000, (0, 1))


@pytest.mark.parametrize(
    ("memory", "free", "nodes"),
    [
        (10, {0: 10, 1: 10, 2: 10}, (1,)),
        (10, {0: 10, 1: 9, 2: 10}, (0,)),
        (15, {0: 10, 1: 9, 2: 10}, (0, 1)),
        (25, {0: 10, 1: 9, 2: 10}, (0, 1, 2)),
        (30, {0: 10, 1: 9, 2: 10}, 29),
    ],
)
def test_nodes_whose_memory_will_be_bound(
    memory: int, free: dict[int, int], nodes: tuple[int, ...] | int
) -> None:
    pools = {0: 8000, 1: 5000, 2: 3000}
    got = burst_nodes(4000, 1000, pools, pools, MOST, {"memory": memory}, {"memory": free})
    if isinstance(nodes, int):
        assert got == Refusal(Reason.NUMA_INSUFFICIENT, "memory", memory, nodes, (0, 1, 2))
    else:
        assert got == nodes


amounts = st.integers(0, 16).map(lambda cpus: cpus * 1000)


@given(
    st.dictionaries(st.integers(0, 40), amounts, max_size=5),
    st.integers(1, 40_000),
    st.sampled_from(NUMA_STRATEGIES),
)
def test_the_chosen_nodes_fit_and_a_single_fitting_node_is_preferred(
    pools: dict[int, int], limit: int, strategy: Strategy
) -> None:
    got = burst_nodes(limit, 500, pools, pools, strategy, {}, {})
    if isinstance(got, Refusal):
        assert sum(pools.values()) < max(limit, 500)
        return
    assert sum(pools[node] for node in got) >= limit
    assert len(got) == 1 or max(pools.values()) < max(limit, 500)
    assert sum(burst_amounts(500, got, pools).values()) >= 500
    assert all(burst_amounts(500, got, pools)[node] > 0 for node in got)


FOUR = {0: {"cpu": 4000, "memory": 16}}


@pytest.mark.parametrize(
    ("strategy", "mask", "request_cpu", "expected"),
    [
        (Strategy.LEAST_ALLOCATED, 0b01, 1000, (50 + 100) // 2),
        (Strategy.MOST_ALLOCATED, 0b01, 1000, (50 + 0) // 2),
        (Strategy.LEAST_ALLOCATED, 0b11, 3000, (50 + 100) // 2),
        (Strategy.LEAST_ALLOCATED, 0b01, 4000, (0 + 100) // 2),
        (Strategy.MOST_ALLOCATED, 0b01, 4000, (100 + 0) // 2),
        (Strategy.LEAST_ALLOCATED, 0b100, 1000, 0),
    ],
)
def test_scores(strategy: Strategy, mask: int, request_cpu: int, expected: int) -> None:
    available = {0: {"cpu": 3000, "memory": 16}, 1: {"cpu": 4000, "memory": 16}}
    total = {node: {"cpu": 4000, "memory": 16} for node in (0, 1)}
    weights = {"cpu": 1, "memory": 1}
    request = {"cpu": request_cpu}
    assert MaskScores(request, available, total, strategy, weights).of(mask) == expected


def test_scores_weigh_resources() -> None:
    scores = MaskScores(
        {"cpu": 1000, "memory": 16},
        FOUR,
        FOUR,
        Strategy.MOST_ALLOCATED,
        {"cpu": 3, "memory": 1},
    )
    assert scores.of(1) == (3 * 25 + 100) // 4
