from __future__ import annotations

import pytest

from agent.allocate.node_allocator.answer import NodeOffer
from agent.allocate.refusal import Refusal
from agent.model.pod.apiobjects import PodGroup
from agent.model.pod_request import Needs
from agent.scheduler.state.cluster import SchedulerCache
from agent.scheduler.state.group_reservations import GroupReservations
from agent.scheduler.state.pod_info import (
    UNKNOWN_NODE,
    Feasible,
    GroupRequirements,
    PodDefaults,
    PodInfoCache,
    PodRequirements,
    RequirementsCheck,
)
from tests.fixtures.fleet import SMALL, Kind, owner
from tests.scheduler import clusters


@pytest.fixture
def cluster() -> SchedulerCache:
    """One node of 32 CPUs."""
    return clusters.cluster({"a": SMALL})


def test_the_pods_own_allocation_is_not_free_for_pods_of_its_class(
    cluster: SchedulerCache,
) -> None:
    """The result is cached for all of them."""
    pod_request = clusters.pod_request(owner(24, 8), "p")
    state = cluster.node("a")
    assert state is not None
    found = state.allocator.offer(pod_request)
    assert isinstance(found, NodeOffer)
    cluster.reserve("a", found)
    assert isinstance(
        RequirementsCheck(cluster, PodRequirements(pod_request)).run("a", {}), Refusal
    )


def test_a_group_needs_room_for_all(cluster: SchedulerCache) -> None:
    pod_request = clusters.pod_request(owner(12, 8))
    two, three = (GroupRequirements(pod_request, size) for size in (2, 3))
    assert isinstance(RequirementsCheck(cluster, two).run("a", {}), Feasible)
    assert isinstance(RequirementsCheck(cluster, three).run("a", {}), Refusal)


def test_the_groups_own_reservation_is_not_free_for_pods_of_its_class(
    cluster: SchedulerCache,
) -> None:
    pod_request, group = clusters.pod_request(owner(12, 8)), PodGroup("default", "g", 2)
    assert GroupReservations(cluster).reserve(group, pod_request, "a") is None
    assert isinstance(
        RequirementsCheck(cluster, GroupRequirements(pod_request, 2)).run("a", {}), Refusal
    )


def test_a_deleted_node_is_unknown_and_one_without_an_agent_has_a_reason(
    cluster: SchedulerCache,
) -> None:
    clusters.add_node(cluster, "b", SMALL, agent=False)
    check = RequirementsCheck(cluster, PodRequirements(clusters.pod_request(owner(2, 2))))
    assert check.run("nowhere", {}) is UNKNOWN_NODE
    found = check.run("b", {})
    assert isinstance(found, Refusal)
    assert (found.text, found.unresolvable) == ("it has no agent", True)
    clusters.remove_node(cluster, "a")
    assert check.run("a", {}) is UNKNOWN_NODE


def test_a_pod_is_decoded_again_when_a_device_object_lists_its_resource() -> None:
    listed = frozenset[str]()
    pod_infos = PodInfoCache(defaults=lambda: PodDefaults(listed))
    pod = clusters.pod(Kind({"example.com/xpu": "1"}), "p")
    assert pod_infos.of(pod).pod_request.needs is Needs.NOTHING
    assert pod_infos.get(pod.uid) is pod_infos.of(pod)
    listed = frozenset({"example.com/xpu"})
    assert pod_infos.get(pod.uid) is None
    assert pod_infos.of(pod).pod_request.needs is Needs.LISTED
    assert pod_infos.get(pod.uid) is pod_infos.of(pod)
