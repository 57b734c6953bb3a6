"""Scores of a node with two NUMA nodes of 8 CPUs and 16 GiB, by CPU alone."""

from __future__ import annotations

import msgspec
import pytest

from agent.allocate.node_allocator.allocator import NodeAllocator
from agent.allocate.node_allocator.answer import Granted
from agent.allocate.node_allocator.assigned_pods import holding_of
from agent.allocate.node_allocator.pod_request import PodRequest, request_of
from agent.allocate.node_allocator.properties import AllocatorRules, NodeProperties
from agent.model.cpu.policies import NumaPolicy
from agent.model.settings.plugin_args import decode
from tests.allocate.node_allocator.builders import facts, pod

GIB = 1 << 30
MAX_CPU = decode(
    {
        "kind": "CPUOrchestrationPluginArgs",
        "scoringStrategy": {"measures": ["Resources"], "resources": [{"name": "cpu"}]},
    }
)


def node(policy: NumaPolicy | None = None) -> NodeProperties:
    return msgspec.structs.replace(
        facts(policy=policy),
        rules=AllocatorRules(scoring=MAX_CPU),
        allocatable={"cpu": 16_000, "memory": 32 * GIB},
    )


def ls(cpu: int, uid: str = "a") -> PodRequest:
    return request_of(pod(uid, {"cpu": cpu}, "LS"))


def score(place: NodeAllocator, pod_request: PodRequest) -> int:
    got = place.offer(pod_request)
    assert isinstance(got, Granted)
    return got.score


@pytest.fixture
def place() -> NodeAllocator:
    """With a pod of 4 CPUs that no scheduler placed."""
    it = NodeAllocator(node())
    it.record(holding_of(pod("plain", {"cpu": 4})))
    return it


def test_every_pod_of_the_node_counts(place: NodeAllocator) -> None:
    assert score(place, ls(4)) == 50


def test_a_pods_own_holdings_do_not_count(place: NodeAllocator) -> None:
    granted = place.offer(ls(4))
    assert isinstance(granted, Granted)
    place.commit(granted)
    assert score(place, ls(4)) == 50
    assert score(place, ls(4, "b")) == 75


def test_a_removed_pod_no_longer_counts(place: NodeAllocator) -> None:
    place.record(holding_of(pod("other", {"cpu": 8})))
    assert score(place, ls(4)) == 100
    assert score(place.without({"other"}), ls(4)) == 50
    place.record(holding_of(pod("other", {"cpu": 4})))
    assert score(place, ls(4)) == 75
    place.release("other")
    assert score(place, ls(4)) == 50


def test_a_pod_bound_to_a_numa_node_is_scored_there() -> None:
    place = NodeAllocator(node(NumaPolicy.SINGLE_NUMA_NODE))
    assert score(place, ls(4)) == 50


def test_the_default_score() -> None:
    assert score(NodeAllocator(facts(policy=NumaPolicy.SINGLE_NUMA_NODE)), ls(4)) == (50 + 100) // 2
