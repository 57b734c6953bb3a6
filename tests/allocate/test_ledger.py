from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocate.ledger import Ledger, Overlap, StaleOfferError
from agent.allocate.offer import Declined, Offer
from agent.allocate.pod_allocation import PodAllocation, pod_allocation
from agent.allocate.policies_in_force import NodePolicies
from agent.model.annotations import RESOURCE_SPEC
from agent.model.cpuset import CpuSet
from agent.model.policies import ExclusivePolicy, NumaPolicy
from tests.allocate.nodes import claim, facts, owner, sharer

NODE = facts()
BEST_EFFORT = facts(policies=NodePolicies(numa_label=NumaPolicy.BEST_EFFORT))

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
def test_the_same_claims_in_any_order_are_the_same_account(
    held: list[PodAllocation], random
) -> None:
    shuffled = random.sample(held, len(held))
    one, other = Ledger(NODE, held), Ledger(NODE, shuffled)
    assert one.account == other.account
    assert one.overlaps() == other.overlaps()


@given(st.lists(claims, max_size=8))
def test_what_came_and_went_leaves_no_trace(held: list[PodAllocation]) -> None:
    ledger = Ledger(NODE)
    for each in held:
        ledger.record(each)
    last = {each.uid: each for each in held}
    assert ledger.account == Ledger(NODE, last.values()).account
    for uid in last:
        assert ledger.release(uid) == last[uid]
    assert ledger.account == Ledger(NODE).account
    assert not ledger.claims


asks = st.one_of(
    st.builds(owner, st.integers(1, 9), st.integers(0, 9), st.sampled_from("abcdef")),
    st.builds(sharer, st.integers(1, 9000), st.integers(0, 9), st.sampled_from("abcdef")),
)


@given(st.sampled_from([NODE, BEST_EFFORT]), st.lists(st.tuples(asks, st.booleans()), max_size=12))
def test_offers_change_nothing_and_commits_rebuild_from_annotations(node, steps) -> None:
    ledger = Ledger(node)
    for ask, stays in steps:
        before = Ledger(node, ledger.claims.values()).account
        got = ledger.offer(ask)
        assert ledger.account == before
        if isinstance(got, Declined):
            assert got.rejections
            continue
        assert ledger.offer(ask) == got
        committed = ledger.commit(got)
        assert len(committed.cpus) == (ask.requests["cpu"] // 1000 if ask.owner else 0)
        if not stays:
            ledger.release(ask.uid)
    assert not ledger.overlaps()
    read_back = [
        pod_allocation(each.uid, each.title, _annotations(each), each.cpu_milli)
        for each in ledger.claims.values()
    ]
    assert Ledger(node, read_back).account == ledger.account


def _annotations(held: PodAllocation) -> dict[str, str]:
    spec = f'{{"preferredCPUExclusivePolicy": "{held.exclusive}"}}'
    return {**held.annotations(), RESOURCE_SPEC: spec}


def test_pods_that_overlap_are_reported_with_all_who_hold_a_cpu() -> None:
    ledger = Ledger(NODE, [claim("c", "2-5"), claim("a", "0-3"), claim("b", "3"), claim("d", "9")])
    assert ledger.overlaps() == (
        Overlap(CpuSet((2,)), ("a", "c")),
        Overlap(CpuSet((3,)), ("a", "b", "c")),
    )
    ledger.release("b")
    ledger.release("c")
    assert ledger.overlaps() == ()


def test_a_pod_that_holds_cpus_is_offered_them_again() -> None:
    ledger = Ledger(NODE)
    first = ledger.offer(owner(16))
    assert isinstance(first, Offer)
    ledger.commit(first)
    assert ledger.offer(owner(16)) == first


def test_an_offer_that_another_pod_was_faster_with_is_stale_and_costs_nothing() -> None:
    ledger = Ledger(NODE)
    mine, yours = ledger.offer(owner(2, uid="a")), ledger.offer(owner(2, uid="b"))
    assert isinstance(mine, Offer)
    assert isinstance(yours, Offer)
    ledger.commit(yours)
    before = Ledger(NODE, ledger.claims.values()).account
    with pytest.raises(StaleOfferError, match="pod ns/a: CPUs 0-1 are not free any more"):
        ledger.commit(mine)
    assert ledger.account == before


def test_an_offer_of_memory_that_is_gone_is_stale() -> None:
    ledger = Ledger(BEST_EFFORT)
    mine, yours = (ledger.offer(sharer(1000, 9, uid=uid)) for uid in "ab")
    assert isinstance(mine, Offer)
    assert isinstance(yours, Offer)
    ledger.commit(yours)
    with pytest.raises(StaleOfferError, match=r"NUMA node 0 has \d+ of \d+ memory left"):
        ledger.commit(mine)


def test_an_offer_of_amplified_cpu_that_is_sold_is_stale() -> None:
    ledger = Ledger(facts(cpu_ratio=1.5, cpu_milli=6000))
    mine = ledger.offer(owner(2))
    assert isinstance(mine, Offer)
    ledger.record(claim("b", "8-11"))
    with pytest.raises(StaleOfferError, match="0 of 3000 amplified CPU left"):
        ledger.commit(mine)


def test_an_offer_of_a_numa_nodes_cpu_that_no_longer_pays_for_it_in_full_is_stale() -> None:
    node = facts(cpu_ratio=1.5, policies=NodePolicies(numa_label=NumaPolicy.SINGLE_NUMA_NODE))
    ledger = Ledger(node)
    mine = ledger.offer(owner(2))
    assert isinstance(mine, Offer)
    ledger.record(claim("b", amounts={0: {"cpu": 9500}}))
    with pytest.raises(StaleOfferError, match="NUMA node 0 has 2500 of 3000 cpu left"):
        ledger.commit(mine)


def test_a_pod_that_asks_for_no_cpu_fits_where_more_is_sold_than_there_is() -> None:
    ledger = Ledger(facts(cpu_ratio=1.5, cpu_milli=2000), [claim("b", "8-11")])
    got = ledger.offer(sharer(0, 1))
    assert isinstance(got, Offer), got
    assert ledger.commit(got) == got.claim


def test_claims_of_cpus_that_are_not_there_are_kept() -> None:
    """The node was larger."""
    ledger = Ledger(facts((1, 1, 4, 2)), [claim("a", "0-1"), claim("b", "12")])
    assert set(ledger.claims) == {"a", "b"}
    assert ledger.account.free_cpus() == 0b1111_1100
