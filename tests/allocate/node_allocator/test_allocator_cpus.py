from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocate.node_allocation import PodAllocation, TopologyOptions, pod_allocation
from agent.allocate.node_allocator.allocator import NodeAllocator, StaleOfferError
from agent.allocate.node_allocator.answer import Granted, Refused
from agent.allocate.node_allocator.assigned_pods import AssignedPod, Overlap
from agent.allocate.node_allocator.pod_request import Needs, PodRequest
from agent.allocate.node_allocator.properties import NodeProperties
from agent.allocate.policies_in_force import NodePolicies
from agent.model.cpu.cpuset import CpuSet
from agent.model.cpu.policies import ExclusivePolicy, NumaPolicy
from agent.model.pod.annotations import RESOURCE_SPEC
from agent.model.pod.resource_request import ResourceRequest
from tests.allocate.nodes import allocated, claim, facts, owner, sharer

NODE = facts()
BEST_EFFORT = facts(policies=NodePolicies(numa_label=NumaPolicy.BEST_EFFORT))


def assigned(held: PodAllocation) -> AssignedPod:
    return AssignedPod(held.uid, held.title, held)


def allocator(node: TopologyOptions, held: Iterable[PodAllocation] = ()) -> NodeAllocator:
    return NodeAllocator(NodeProperties("n", node), map(assigned, held))


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
    assert allocator(NODE, held).overlaps() == allocator(NODE, shuffled).overlaps()


@given(st.lists(claims, max_size=8))
def test_removed_pods_leave_no_trace(held: list[PodAllocation]) -> None:
    place, account = allocator(NODE), allocated(NODE)
    for each in held:
        if (before := place.holdings.get(each.uid)) is not None:
            account.remove(before.allocation)
        place.record(assigned(each))
        account.add(each)
    last = {each.uid: each for each in held}
    assert account == allocated(NODE, last.values())
    for uid, each in last.items():
        assert place.release(uid) == assigned(each)
        account.remove(each)
    assert account == allocated(NODE)
    assert not place.holdings
    assert place.offer(pod_request(owner(16))) == allocator(NODE).offer(pod_request(owner(16)))


requests = st.one_of(
    st.builds(owner, st.integers(1, 9), st.integers(0, 9), st.sampled_from("abcdef")),
    st.builds(sharer, st.integers(1, 9000), st.integers(0, 9), st.sampled_from("abcdef")),
)


@given(
    st.sampled_from([NODE, BEST_EFFORT]), st.lists(st.tuples(requests, st.booleans()), max_size=12)
)
def test_offers_change_nothing_and_commits_rebuild_from_annotations(node, steps) -> None:
    place = allocator(node)
    for request, stays in steps:
        requested, before = pod_request(request), dict(place.holdings)
        got = place.offer(requested)
        assert place.holdings == before
        assert place.offer(requested) == got
        if isinstance(got, Refused):
            assert got.reasons
            continue
        committed = place.commit(got).allocation
        assert len(committed.cpus) == (request.requests["cpu"] // 1000 if request.owner else 0)
        if not stays:
            place.release(request.uid)
    assert not place.overlaps()
    held = [each.allocation for each in place.holdings.values()]
    read_back = [
        pod_allocation(each.uid, each.title, _annotations(each), each.cpu_milli) for each in held
    ]
    assert allocated(node, read_back) == allocated(node, held)
    rebuilt = allocator(node, read_back)
    assert all(
        place.offer(pod_request(request)) == rebuilt.offer(pod_request(request))
        for request, _ in steps
    )


def _annotations(held: PodAllocation) -> dict[str, str]:
    spec = f'{{"preferredCPUExclusivePolicy": "{held.exclusive}"}}'
    return {**held.annotations(), RESOURCE_SPEC: spec}


def test_overlaps_are_reported_with_all_holders_of_a_cpu() -> None:
    place = allocator(
        NODE, [claim("c", "2-5"), claim("a", "0-3"), claim("b", "3"), claim("d", "9")]
    )
    assert place.overlaps() == (
        Overlap(CpuSet((2,)), ("a", "c")),
        Overlap(CpuSet((3,)), ("a", "b", "c")),
    )
    place.release("b")
    place.release("c")
    assert place.overlaps() == ()


def test_a_pod_that_holds_cpus_is_offered_them_again() -> None:
    place = allocator(NODE)
    first = place.offer(pod_request(owner(16)))
    assert isinstance(first, Granted)
    place.commit(first)
    assert place.offer(pod_request(owner(16))) == first


def test_an_offer_is_stale_after_another_pods_commit_and_changes_nothing() -> None:
    place = allocator(NODE)
    mine, yours = (place.offer(pod_request(owner(2, uid=uid))) for uid in "ab")
    assert isinstance(mine, Granted)
    assert isinstance(yours, Granted)
    place.commit(yours)
    before = dict(place.holdings)
    with pytest.raises(StaleOfferError, match="pod ns/a: CPUs 0-1 are no longer free"):
        place.commit(mine)
    assert place.holdings == before
    assert place.offer(pod_request(owner(2, uid="c"))) != mine


def test_an_offer_of_memory_that_is_no_longer_free_is_stale() -> None:
    place = allocator(BEST_EFFORT)
    mine, yours = (place.offer(pod_request(sharer(1000, 9, uid=uid))) for uid in "ab")
    assert isinstance(mine, Granted)
    assert isinstance(yours, Granted)
    place.commit(yours)
    with pytest.raises(StaleOfferError, match=r"NUMA node 0 has \d+ of \d+ memory left"):
        place.commit(mine)


def test_an_offer_of_amplified_cpu_that_is_no_longer_free_is_stale() -> None:
    place = allocator(facts(cpu_ratio=1.5, cpu_milli=6000))
    mine = place.offer(pod_request(owner(2)))
    assert isinstance(mine, Granted)
    place.record(assigned(claim("b", "8-11")))
    with pytest.raises(StaleOfferError, match="0 of 3000 amplified CPU left"):
        place.commit(mine)


def test_an_offer_is_stale_when_the_numa_node_no_longer_has_its_amplified_cpu() -> None:
    node = facts(cpu_ratio=1.5, policies=NodePolicies(numa_label=NumaPolicy.SINGLE_NUMA_NODE))
    place = allocator(node)
    mine = place.offer(pod_request(owner(2)))
    assert isinstance(mine, Granted)
    place.record(assigned(claim("b", amounts={0: {"cpu": 9500}})))
    with pytest.raises(StaleOfferError, match="NUMA node 0 has 2500 of 3000 cpu left"):
        place.commit(mine)


def test_a_pod_without_a_cpu_request_fits_an_overcommitted_node() -> None:
    place = allocator(facts(cpu_ratio=1.5, cpu_milli=2000), [claim("b", "8-11")])
    got = place.offer(pod_request(sharer(0, 1)))
    assert isinstance(got, Granted), got
    assert place.commit(got).allocation == got.offer.allocation


def test_claims_of_missing_cpus_are_kept() -> None:
    """The node was larger before."""
    place = allocator(facts((1, 1, 4, 2)), [claim("a", "0-1"), claim("b", "12")])
    assert set(place.holdings) == {"a", "b"}
    got = place.offer(pod_request(owner(6, uid="c")))
    assert isinstance(got, Granted)
    assert got.offer.allocation.cpus == CpuSet.parse("2-7")
