from __future__ import annotations

import pytest

from agent.allocate.place.answer import Granted
from agent.scheduler.cluster import Cluster
from agent.scheduler.demands import OfGroup, OfPod
from agent.scheduler.groupname import Group
from agent.scheduler.groups import Groups
from agent.scheduler.questions import RoomFor
from agent.scheduler.shapes import UNKNOWN, Fit, Misfit
from benchmarks.fleet import SMALL, owner
from tests.scheduler import clusters


@pytest.fixture
def cluster() -> Cluster:
    """One node of 32 CPUs."""
    return clusters.cluster({"a": SMALL})


def test_what_the_pod_holds_itself_is_no_room_for_others_of_its_shape(cluster: Cluster) -> None:
    """The answer is remembered for all of them."""
    wish = clusters.wish(owner(24, 8), "p")
    state = cluster.node("a")
    assert state is not None
    found = state.place.offer(wish)
    assert isinstance(found, Granted)
    cluster.reserve("a", found)
    assert isinstance(RoomFor(cluster, OfPod(wish)).answer("a"), Misfit)


def test_a_group_needs_room_for_all(cluster: Cluster) -> None:
    wish = clusters.wish(owner(12, 8))
    two, three = (OfGroup(wish, size) for size in (2, 3))
    assert isinstance(RoomFor(cluster, two).answer("a"), Fit)
    assert isinstance(RoomFor(cluster, three).answer("a"), Misfit)


def test_what_is_held_for_the_group_itself_is_no_room_for_others_of_its_shape(
    cluster: Cluster,
) -> None:
    wish, group = clusters.wish(owner(12, 8)), Group("default", "g", 2)
    assert Groups(cluster).hold(group, wish, "a") is None
    assert isinstance(RoomFor(cluster, OfGroup(wish, 2)).answer("a"), Misfit)


def test_a_node_that_is_gone_is_unknown_and_one_without_an_agent_says_so(cluster: Cluster) -> None:
    clusters.add(cluster, "b", SMALL, agent=False)
    question = RoomFor(cluster, OfPod(clusters.wish(owner(2, 2))))
    assert question.answer("nowhere") is UNKNOWN
    found = question.answer("b")
    assert isinstance(found, Misfit)
    assert (found.reason, found.unresolvable) == ("it has no agent", True)
    clusters.remove(cluster, "a")
    assert question.answer("a") is UNKNOWN
