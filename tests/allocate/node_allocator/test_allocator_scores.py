"""Scores of a node with two NUMA nodes of 8 CPUs and 16 GiB, by CPU only."""

from __future__ import annotations

import pytest

from agent.allocate.node_allocator.allocator import NodeAllocator
from agent.allocate.node_allocator.answer import NodeOffer
from agent.allocate.node_allocator.assigned_pods import assigned_pod_of
from agent.allocate.node_allocator.properties import AllocatorRules, NodeProperties
from agent.model.cpu.policies import NumaPolicy
from agent.model.pod_request import PodRequest, request_of
from agent.model.settings.plugin_args import decode
from tests.allocate.node_allocator.builders import make_properties, pod

GIB = 1 << 30
MAX_CPU = decode(
    {
        "kind": "CPUOrchestrationPluginArgs",
        "scoringStrategy": {"measures": ["Resources"], "resources": [{"name": "cpu"}]},
    }
)


def node(policy: NumaPolicy | None = None) -> NodeProperties:
    return make_properties(
        policy=policy,
        rules=AllocatorRules(scoring=MAX_CPU),
        allocatable={"cpu": 16_000, "memory": 32 * GIB},
    )


def ls(cpu: int, uid: str = "a") -> PodRequest:
    return request_of(pod(uid, {"cpu": cpu}, "LS"))


def score(allocator: NodeAllocator, pod_request: PodRequest) -> int:
    found = allocator.offer(pod_request)
    assert isinstance(found, NodeOffer)
    return found.score


@pytest.fixture
def allocator() -> NodeAllocator:
    """With a pod of 4 CPUs without an allocation."""
    allocator_ = NodeAllocator(node())
    allocator_.record(assigned_pod_of(pod("unlabelled", {"cpu": 4})))
    return allocator_


def test_every_pod_of_the_node_counts(allocator: NodeAllocator) -> None:
    assert score(allocator, ls(4)) == 50


def test_the_own_allocation_of_a_pod_does_not_count(allocator: NodeAllocator) -> None:
    node_offer = allocator.offer(ls(4))
    assert isinstance(node_offer, NodeOffer)
    allocator.commit(node_offer)
    assert score(allocator, ls(4)) == 50
    assert score(allocator, ls(4, "b")) == 75


def test_a_removed_pod_no_longer_counts(allocator: NodeAllocator) -> None:
    allocator.record(assigned_pod_of(pod("other", {"cpu": 8})))
    assert score(allocator, ls(4)) == 100
    assert score(allocator.without({"other"}), ls(4)) == 50
    allocator.record(assigned_pod_of(pod("other", {"cpu": 4})))
    assert score(allocator, ls(4)) == 75
    allocator.release("other")
    assert score(allocator, ls(4)) == 50


def test_a_pod_bound_to_a_numa_node_is_scored_there() -> None:
    allocator = NodeAllocator(node(NumaPolicy.SINGLE_NUMA_NODE))
    assert score(allocator, ls(4)) == 50


def test_the_default_score() -> None:
    assert (
        score(NodeAllocator(make_properties(policy=NumaPolicy.SINGLE_NUMA_NODE)), ls(4))
        == (50 + 100) // 2
    )
