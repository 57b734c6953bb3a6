from __future__ import annotations

import msgspec
import pytest

from agent.allocate.node_allocator.allocator import NodeAllocator
from agent.allocate.node_allocator.answer import NodeOffer
from agent.allocate.refusal import Refusal
from agent.model.cpu.cpuset import union
from agent.model.pod_request import PodRequest
from tests.fixtures.fleet import CARDS, SINGLE, SMALL, Kind, Model, gpu_pod, gpu_share_pod, owner
from tests.fixtures.overlaps import overlaps
from tests.scheduler import clusters


def allocator_of(model: Model) -> NodeAllocator:
    state = clusters.cluster({"n": model}).node("n")
    assert state is not None
    return state.allocator


def pod_requests(kind: Kind, count: int) -> list[PodRequest]:
    return [clusters.pod_request(kind, f"p{number}") for number in range(count)]


def taken(allocator: NodeAllocator, kind: Kind, name: str) -> NodeOffer:
    """Commits an earlier pod with cards."""
    found = allocator.offer(clusters.pod_request(kind, name))
    assert isinstance(found, NodeOffer)
    allocator.commit(found)
    return found


def cards(node_offer: NodeOffer) -> set[int]:
    return {minor for kind, minor in node_offer.assigned_pod().devices if kind == "gpu"}


def offers(allocator: NodeAllocator, kind: Kind, count: int) -> tuple[NodeOffer, ...]:
    """The offers; checks that all of them can be committed."""
    found = allocator.offer_all(pod_requests(kind, count))
    assert not isinstance(found, Refusal), found.text
    before = dict(allocator.assigned_pods)
    trial = allocator.without(())
    for each in found:
        trial.commit(each)
    assert overlaps(trial) == ()
    assert dict(allocator.assigned_pods) == before, "offers change nothing"
    return found


def test_a_group_is_refused_when_one_pod_does_not_fit() -> None:
    found = allocator_of(SMALL).offer_all(pod_requests(owner(16, 8), 3))
    assert isinstance(found, Refusal)
    assert found.text.startswith("cpu: not enough free CPUs (requested 16, available ")
    assert found.summary == "cpu: not enough free CPUs"


def test_the_cards_of_a_group_are_behind_one_switch() -> None:
    """A single pod would get a card behind a used switch, and the next pod a card behind another
    switch."""
    allocator = allocator_of(CARDS)
    assert cards(taken(allocator, gpu_pod(1), "before")) == {0}
    single = allocator.offer(pod_requests(gpu_pod(2), 1)[0])
    assert isinstance(single, NodeOffer)
    assert cards(single) < {0, 1, 2, 3}
    found = offers(allocator, gpu_pod(2), 2)
    assert set.union(*map(cards, found)) == {4, 5, 6, 7}


def test_a_group_of_the_size_of_the_node_gets_all_of_it() -> None:
    found = offers(allocator_of(CARDS), gpu_pod(2, 8), 4)
    assert set.union(*map(cards, found)) == set(range(8))
    assert len(union(each.assigned_pod().allocation.cpus for each in found)) == 32


@pytest.mark.parametrize("before", [0, 1, 3, 5])
def test_without_a_large_enough_switch_the_pods_get_any_free_cards(before: int) -> None:
    allocator = allocator_of(CARDS)
    for number in range(before):
        taken(allocator, gpu_pod(1), f"before-{number}")
    found = allocator.offer_all(pod_requests(gpu_pod(1), 4))
    if before == 5:
        assert isinstance(found, Refusal)
    else:
        assert not isinstance(found, Refusal)
        assert len(set.union(*map(cards, found))) == 4


def test_shares_of_cards_are_placed_as_for_each_single_pod() -> None:
    found = offers(allocator_of(CARDS), gpu_share_pod(50), 3)
    assert [cards(each) for each in found] == [{0}, {0}, {1}]


def test_a_policy_that_a_whole_group_cannot_meet_applies_to_each_pod() -> None:
    """All cards together span both NUMA nodes; each pod's cards and CPUs may not."""
    model = msgspec.structs.replace(SINGLE, gpus=8)
    found = offers(allocator_of(model), gpu_pod(2, 8), 4)
    for each in found:
        assert {minor // 4 for minor in cards(each)} in ({0}, {1})
    assert set.union(*map(cards, found)) == set(range(8))
