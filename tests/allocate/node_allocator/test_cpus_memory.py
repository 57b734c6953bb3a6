"""Memory that will be bound to the NUMA nodes of a pod counts there under any NUMA policy."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.allocate.node_allocation import Amounts, NodeAllocation, TopologyOptions, pod_allocation
from agent.allocate.node_allocator.cpus import CpuOffer, cpu_offer, unavailable
from agent.allocate.numa.hint import ids, subsets
from agent.allocate.policies_in_force import NodePolicies
from agent.allocate.refusal import Reason, Refusal
from agent.model.cpu.policies import (
    NUMA_STRATEGIES,
    BindPolicy,
    ExclusivePolicy,
    NumaPolicy,
    Strategy,
)
from agent.model.pod.annotations import ResourceSpec
from agent.model.pod.resource_request import ResourceRequest
from tests.allocate.nodes import GIB, allocated, claim, ls_pod, node_options, owner

BURST = ResourceSpec(BindPolicy.CONSTRAINED_BURST)
SPREAD = ResourceSpec(BindPolicy.SPREAD_BY_PCPUS)


def node(
    policy: NumaPolicy = NumaPolicy.NONE,
    strategy: Strategy = Strategy.MOST_ALLOCATED,
    shape: tuple[int, int, int, int] = (2, 1, 4, 2),
) -> TopologyOptions:
    """Each NUMA node has 16 GiB and eight CPUs (0-7, 8-15)."""
    policies = NodePolicies(numa_label=policy, strategy_label=strategy)
    return node_options(shape, policies=policies, counts_memory=True)


def placed(
    options: TopologyOptions, node_allocation: NodeAllocation, request: ResourceRequest
) -> CpuOffer:
    got = cpu_offer(options, node_allocation, request)
    assert isinstance(got, CpuOffer), got
    assert not unavailable(options, node_allocation, request, got.allocation)
    node_allocation.add(got.allocation)
    return got


def memory(amounts: Amounts) -> dict[int, int]:
    return {id_: of_node["memory"] // GIB for id_, of_node in amounts.items()}


def test_memory_that_is_not_bound_does_not_count_without_a_numa_policy() -> None:
    options = replace(node(), counts_memory=False)
    node_allocation = allocated(options)
    for uid, cpus in (("a", "0-1"), ("b", "2-3")):
        got = placed(options, node_allocation, owner(2, 15, uid)).allocation
        assert (str(got.cpus), got.amounts) == (cpus, {})


def test_an_exclusive_policy_counts_where_memory_decides() -> None:
    spec = replace(SPREAD, exclusive=ExclusivePolicy.NUMA_NODE_LEVEL)
    options = node(shape=(3, 1, 4, 2))
    node_allocation = allocated(options, [claim("b", amounts={0: {"memory": 16 * GIB}})])
    node_allocation.add(claim("c", "8", {1: {"memory": GIB}}, ExclusivePolicy.NUMA_NODE_LEVEL))
    node_allocation.add(claim("d", "1"))
    assert str(placed(options, node_allocation, owner(2, 2, spec=spec)).allocation.cpus) == "16,18"


def test_an_owner_without_recorded_memory_counts_with_its_request() -> None:
    """Another scheduler placed it, or memory was not bound then."""
    notes = {"scheduling.koordinator.sh/resource-status": '{"cpuset": "0-2,8"}'}
    options = node()
    pod_ = pod_allocation("b", "ns/b", notes, 4000, {"memory": 20 * GIB})
    node_allocation = allocated(options, [pod_])
    left = node_allocation.available()
    assert (left[0]["memory"], left[1]["memory"]) == (GIB, 11 * GIB)
    assert str(placed(options, node_allocation, owner(2, 2)).allocation.cpus) == "10-11"
    node_allocation.remove(pod_)
    node_allocation.remove(placed(options, node_allocation, owner(2, uid="z")).allocation)
    assert node_allocation.available()[0]["memory"] == 16 * GIB
    unbound = replace(options, counts_memory=False)
    assert allocated(unbound, [pod_]).available()[0]["memory"] == 16 * GIB


def test_memory_is_not_bound_to_a_numa_node_that_has_none() -> None:
    """The agent then binds it to no NUMA node."""
    options = node()
    zones = {0: {"cpu": 8000}, 1: options.numa_allocatable[1]}
    options = replace(options, numa_allocatable=zones)
    assert placed(options, allocated(options), owner(2, 40)).allocation.amounts == {}


def test_hugepages_are_bound_with_memory() -> None:
    options = node()
    zones = {id_: {**of, "hugepages-2Mi": 4 << 30} for id_, of in options.numa_allocatable.items()}
    options = replace(options, numa_allocatable=zones)
    node_allocation = allocated(options)
    for uid, cpus in (("a", "0-1"), ("b", "8-9")):
        request = owner(2, 1, uid)
        request = replace(request, requests={**request.requests, "hugepages-2Mi": 3 << 30})
        assert str(placed(options, node_allocation, request).allocation.cpus) == cpus


shapes = st.sampled_from([(2, 1, 2, 2), (1, 3, 2, 2), (2, 2, 2, 1)])
owners = st.builds(
    lambda cpus, gib, spec: owner(cpus, gib, spec=spec),
    st.integers(1, 6),
    st.integers(0, 30),
    st.sampled_from([ResourceSpec(), SPREAD]),
)
bursting = st.builds(
    lambda cpu, gib: ls_pod(500 * cpu, gib, spec=BURST, cpu_limit_milli=1000 * cpu),
    st.integers(1, 5),
    st.integers(0, 30),
)


@given(
    st.sampled_from(NumaPolicy),
    st.sampled_from(NUMA_STRATEGIES),
    shapes,
    st.lists(owners | bursting, max_size=6),
)
def test_the_memory_of_no_numa_node_is_overcommitted(
    policy: NumaPolicy,
    strategy: Strategy,
    shape: tuple[int, int, int, int],
    requests: list[ResourceRequest],
) -> None:
    options = node(policy, strategy, shape)
    node_allocation = allocated(options)
    used = dict.fromkeys(options.numa_allocatable, 0)
    for number, request in enumerate(requests):
        requested = request.requests.get("memory", 0)
        free, left = node_allocation.free_cpus(), node_allocation.available()
        request = replace(request, uid=f"p{number}")
        got = cpu_offer(options, node_allocation, request)
        made = options.layout
        assert made is not None
        if isinstance(got, Refusal):
            if policy is not NumaPolicy.NONE or not request.owner:
                continue
            count = request.requests["cpu"] // 1000
            for mask in subsets(options.numa_allocatable):
                cpus = (free & made.of_nodes(ids(mask))).bit_count()
                have = sum(left[id_]["memory"] for id_ in ids(mask))
                each = all(free & made.of_nodes((id_,)) for id_ in ids(mask))
                wide = mask.bit_count() * made.threads > count and mask.bit_count() > 1
                assert cpus < count or have < requested or not each or wide, ids(mask)
            continue
        assert not unavailable(options, node_allocation, request, got.allocation)
        node_allocation.add(got.allocation)
        node_memory = {id_: of.get("memory", 0) for id_, of in got.allocation.amounts.items()}
        assert sum(node_memory.values()) == requested
        if request.owner:
            assert {id_ for id_, amount in node_memory.items() if amount} <= set(
                made.node_ids(got.allocation.cpus.mask)
            )
        for id_, amount in node_memory.items():
            used[id_] += amount
    assert all(amount <= options.numa_allocatable[id_]["memory"] for id_, amount in used.items())


def test_a_pod_that_fits_nowhere_is_declined_with_the_memory_of_all_numa_nodes() -> None:
    options = node()
    got = cpu_offer(options, allocated(options), owner(2, 40))
    assert isinstance(got, Refusal)
    assert got.reasons == (Refusal(Reason.NUMA_INSUFFICIENT, "memory", 40 * GIB, 32 * GIB, (0, 1)),)
