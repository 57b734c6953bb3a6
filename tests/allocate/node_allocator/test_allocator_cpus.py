from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocate.node_allocation import PodAllocation, TopologyOptions
from agent.allocate.node_allocator.allocator import NodeAllocator, StaleOfferError
from agent.allocate.node_allocator.answer import NodeOffer
from agent.allocate.node_allocator.assigned_pods import AssignedPod
from agent.allocate.node_allocator.properties import NodeProperties
from agent.allocate.policies_in_force import NodePolicies
from agent.model.cpu.cpuset import CpuSet
from agent.model.cpu.policies import ExclusivePolicy, NumaPolicy
from agent.model.pod.resource_request import ResourceRequest
from agent.model.pod_request import Needs, PodRequest
from tests.allocate.nodes import allocated, claim, ls_pod, node_options, owner
from tests.fixtures.overlaps import CpuOverlap, overlaps

NODE = node_options()
BEST_EFFORT = node_options(policies=NodePolicies(numa_label=NumaPolicy.BEST_EFFORT))


def assigned(held: PodAllocation) -> AssignedPod:
    return AssignedPod(held.uid, held.title, held)


def new_allocator(node: TopologyOptions, held: Iterable[PodAllocation] = ()) -> NodeAllocator:
    return NodeAllocator(NodeProperties("n", node), map(assigned, held))


def offered(allocator: NodeAllocator, request: ResourceRequest) -> NodeOffer:
    answer = allocator.offer(pod_request(request))
    assert isinstance(answer, NodeOffer), answer
    return answer


def pod_request(request: ResourceRequest) -> PodRequest:
    return PodRequest(request, request.requests, needs=Needs.NUMA)


claims = st.builds(
    claim,
    st.sampled_from("abcdef"),
    st.frozensets(st.integers(0, 17), max_size=6).map(lambda cpus: str(CpuSet(cpus))),
    st.dictionaries(
        st.integers(0, 2), st.dictionaries(st.sampled_from(["cpu", "memory"]), st.integers(1, 99))
    ),
    st.sampled_from(ExclusivePolicy),
)


@given(st.lists(claims, max_size=8, unique_by=lambda each: each.uid), st.randoms())
def test_the_same_pods_in_any_order_give_the_same_state(held: list[PodAllocation], random) -> None:
    shuffled = random.sample(held, len(held))
    assert allocated(NODE, held) == allocated(NODE, shuffled)
    assert overlaps(new_allocator(NODE, held)) == overlaps(new_allocator(NODE, shuffled))


@given(st.lists(claims, max_size=8))
def test_the_state_after_removals_equals_a_new_one(held: list[PodAllocation]) -> None:
    allocator, node_allocation = new_allocator(NODE), allocated(NODE)
    for each in held:
        if (before := allocator.assigned_pods.get(each.uid)) is not None:
            node_allocation.remove(before.allocation)
        allocator.record(assigned(each))
        node_allocation.add(each)
    last = {each.uid: each for each in held}
    assert node_allocation == allocated(NODE, last.values())
    for uid, each in last.items():
        assert allocator.release(uid) == assigned(each)
        node_allocation.remove(each)
    assert node_allocation == allocated(NODE)
    assert not allocator.assigned_pods
    assert allocator.offer(pod_request(owner(16))) == new_allocator(NODE).offer(
        pod_request(owner(16))
    )


def test_overlaps_are_reported_with_all_holders_of_a_cpu() -> None:
    allocator = new_allocator(
        NODE, [claim("c", "2-5"), claim("a", "0-3"), claim("b", "3"), claim("d", "9")]
    )
    assert overlaps(allocator) == (
        CpuOverlap(CpuSet((2,)), ("a", "c")),
        CpuOverlap(CpuSet((3,)), ("a", "b", "c")),
    )
    allocator.release("b")
    allocator.release("c")
    assert overlaps(allocator) == ()


def test_an_offer_is_stale_after_another_pods_commit_and_changes_nothing() -> None:
    allocator = new_allocator(NODE)
    first, second = (offered(allocator, owner(2, uid=uid)) for uid in "ab")
    allocator.commit(second)
    before = dict(allocator.assigned_pods)
    with pytest.raises(StaleOfferError, match="pod ns/a on node n: CPUs 0-1 are no longer free"):
        allocator.commit(first)
    assert allocator.assigned_pods == before
    assert allocator.offer(pod_request(owner(2, uid="c"))) != first


def test_an_offer_of_memory_that_is_no_longer_free_is_stale() -> None:
    allocator = new_allocator(BEST_EFFORT)
    first, second = (offered(allocator, ls_pod(1000, 9, uid=uid)) for uid in "ab")
    allocator.commit(second)
    with pytest.raises(StaleOfferError, match=r"NUMA node 0 has \d+ of \d+ memory left"):
        allocator.commit(first)


def test_an_offer_of_amplified_cpu_that_is_no_longer_free_is_stale() -> None:
    allocator = new_allocator(node_options(cpu_ratio=1.5, cpu_milli=6000))
    first = offered(allocator, owner(2))
    allocator.record(assigned(claim("b", "8-11")))
    with pytest.raises(StaleOfferError, match="0 of 3000 amplified CPU left"):
        allocator.commit(first)


def test_an_offer_is_stale_when_the_numa_node_no_longer_has_its_amplified_cpu() -> None:
    node = node_options(
        cpu_ratio=1.5, policies=NodePolicies(numa_label=NumaPolicy.SINGLE_NUMA_NODE)
    )
    allocator = new_allocator(node)
    first = offered(allocator, owner(2))
    allocator.record(assigned(claim("b", amounts={0: {"cpu": 9500}})))
    with pytest.raises(StaleOfferError, match="NUMA node 0 has 2500 of 3000 cpu left"):
        allocator.commit(first)


def test_a_pod_without_a_cpu_request_fits_an_overcommitted_node() -> None:
    allocator = new_allocator(node_options(cpu_ratio=1.5, cpu_milli=2000), [claim("b", "8-11")])
    found = offered(allocator, ls_pod(0, 1))
    assert allocator.commit(found).allocation == found.assigned_pod().allocation


def test_claims_of_missing_cpus_are_kept() -> None:
    """The node had more CPUs before."""
    allocator = new_allocator(node_options((1, 1, 4, 2)), [claim("a", "0-1"), claim("b", "12")])
    assert set(allocator.assigned_pods) == {"a", "b"}
    found = offered(allocator, owner(6, uid="c"))
    assert found.assigned_pod().allocation.cpus == CpuSet.parse("2-7")
