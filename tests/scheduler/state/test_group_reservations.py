from __future__ import annotations

from collections.abc import Sequence

import pytest

from agent.allocate.node_allocator.allocator import NodeAllocator
from agent.allocate.node_allocator.answer import NodeOffer
from agent.allocate.refusal import Refusal
from agent.kube.objects import ChangeKind
from agent.model.pod.apiobjects import PodGroup
from agent.model.pod_request import PodRequest
from agent.scheduler.state.cluster import SchedulerCache
from agent.scheduler.state.group_reservations import MISSING_SECONDS, GroupReservations
from tests.fixtures.fleet import SMALL, owner
from tests.fixtures.overlaps import overlaps
from tests.kube.clock import Clock
from tests.scheduler import clusters

PAIR = PodGroup("default", "g", 2)
TRIO = PodGroup("default", "g", 3)
EIGHT = owner(8, 8)


@pytest.fixture
def cluster() -> SchedulerCache:
    return clusters.cluster({"a": SMALL, "b": SMALL})


@pytest.fixture
def groups(cluster: SchedulerCache, clock: Clock) -> GroupReservations:
    return GroupReservations(cluster, seconds=60, clock=clock)


def pod_request(name: str, cpus: int = 8) -> PodRequest:
    return clusters.pod_request(owner(cpus, 8), name)


def held_cpus(cluster: SchedulerCache, node: str) -> int:
    state = cluster.node(node)
    assert state is not None
    assert not overlaps(state.allocator)
    return sum(len(each.allocation.cpus) for each in state.allocator.assigned_pods.values())


def create_pending(cluster: SchedulerCache, group: PodGroup, *names: str) -> None:
    """Creates pods of the group without a node."""
    for name in names:
        clusters.report_pod(cluster, EIGHT.pod(name, group=f"{group.name}/{group.size}"))


def rejection_reason(groups: GroupReservations, group: PodGroup, name: str, cpus: int = 8) -> str:
    found = groups.rejection(group, pod_request(name, cpus))
    assert found is not None
    return found.text


def take(
    groups: GroupReservations, group: PodGroup, name: str, node: str = "a", cpus: int = 8
) -> NodeOffer:
    found = groups.take(group, pod_request(name, cpus), node)
    assert isinstance(found, NodeOffer), found
    return found


def test_the_whole_group_is_reserved_and_each_member_takes_its_part(
    cluster: SchedulerCache, groups: GroupReservations
) -> None:
    assert groups.node(TRIO) is None
    assert groups.reserve(TRIO, pod_request("p0"), "a") is None
    assert groups.node(TRIO) == "a"
    assert held_cpus(cluster, "a") == 24
    for name in ("p0", "p1", "p2"):
        assert groups.rejection(TRIO, pod_request(name)) is None
        node_offer = take(groups, TRIO, name)
        assert node_offer.uid == f"uid-{name}"
        assert held_cpus(cluster, "a") == 24
    assert rejection_reason(groups, TRIO, "p3") == "group default/g has all 3 members"


def test_a_group_has_at_most_size_members(groups: GroupReservations) -> None:
    for name in ("p0", "p1"):
        take(groups, PAIR, name)
    assert groups.take(PAIR, pod_request("p2"), "a") == "group default/g has all 2 members"
    text = "pod default/p1 has its part of group default/g already"
    assert groups.take(PAIR, pod_request("p1"), "a") == text


def test_a_member_whose_bind_failed_returns_its_part(
    cluster: SchedulerCache, groups: GroupReservations
) -> None:
    groups.reserve(PAIR, pod_request("p0"), "a")
    first = take(groups, PAIR, "p0").assigned_pod().allocation.cpus
    cluster.release("uid-p0")
    groups.release(PAIR, "uid-p0")
    assert held_cpus(cluster, "a") == 16
    take(groups, PAIR, "p1")
    assert take(groups, PAIR, "p0").assigned_pod().allocation.cpus == first


def test_parts_that_no_member_took_in_time_are_released(
    cluster: SchedulerCache, groups: GroupReservations, clock: Clock
) -> None:
    create_pending(cluster, TRIO, "p0", "p1", "p2")
    groups.reserve(TRIO, pod_request("p0"), "a")
    clock.now += 59.9
    groups.expire()
    assert held_cpus(cluster, "a") == 24
    clock.now += 0.1
    groups.expire()
    assert held_cpus(cluster, "a") == 0
    assert groups.node(TRIO) is None


def test_one_pod_holds_no_parts_for_members_that_are_not_created(
    cluster: SchedulerCache, groups: GroupReservations, clock: Clock
) -> None:
    """The author of a pod chooses the size of the group."""
    create_pending(cluster, TRIO, "p0")
    groups.reserve(TRIO, pod_request("p0"), "a")
    clock.now += MISSING_SECONDS - 0.1
    groups.expire()
    assert held_cpus(cluster, "a") == 24, "its controller may still create the others"
    clock.now += 0.1
    groups.expire()
    assert held_cpus(cluster, "a") == 8
    assert groups.node(TRIO) == "a"
    take(groups, TRIO, "p0")
    assert held_cpus(cluster, "a") == 8
    create_pending(cluster, TRIO, "p1", "p2")
    assert groups.rejection(TRIO, pod_request("p1")) is None
    assert held_cpus(cluster, "a") == 24


def test_a_namespace_whose_members_were_not_created_reserves_only_for_existing_pods(
    cluster: SchedulerCache, groups: GroupReservations, clock: Clock
) -> None:
    """Otherwise its author would use a new group name each time."""
    create_pending(cluster, TRIO, "p0")
    groups.reserve(TRIO, pod_request("p0"), "a")
    clock.now += MISSING_SECONDS
    groups.expire()
    assert held_cpus(cluster, "a") == 8
    other = PodGroup("default", "h", 3)
    create_pending(cluster, other, "q0", "q1")
    assert groups.reserve(other, pod_request("q0"), "b") is None
    assert held_cpus(cluster, "b") == 16
    elsewhere = PodGroup("elsewhere", "h", 2)
    assert groups.reserve(elsewhere, pod_request("r0"), "b") is None
    assert held_cpus(cluster, "b") == 32
    clock.now += 60
    groups.expire()
    assert held_cpus(cluster, "b") == 0
    assert groups.reserve(other, pod_request("q0"), "b") is None
    assert held_cpus(cluster, "b") == 24


def test_bound_terminating_and_deleted_members_are_not_waiting(cluster: SchedulerCache) -> None:
    create_pending(cluster, TRIO, "p0", "p1", "p2")
    assert len(cluster.waiting_members(TRIO)) == 3
    clusters.report_pod(cluster, EIGHT.pod("p0", node="a", group="g/3"))
    for _ in range(2):
        assert len(cluster.waiting_members(TRIO)) == 2
        assert list(cluster.bound_members(TRIO)) == ["uid-p0"]
        create_pending(cluster, TRIO, "p0")  # an old event, from before it was bound
    clusters.report_pod(cluster, EIGHT.pod("p1"), ChangeKind.DELETED)
    terminating = EIGHT.pod("p2", group="g/3")
    terminating["metadata"]["deletionTimestamp"] = "2026-10-01T10:00:00Z"
    clusters.report_pod(cluster, terminating)
    assert cluster.waiting_members(TRIO) == set()


def test_late_members_get_the_reason_that_their_node_is_full(
    cluster: SchedulerCache, groups: GroupReservations, clock: Clock
) -> None:
    create_pending(cluster, TRIO, "p0", "p1", "p2")
    groups.reserve(TRIO, pod_request("p0"), "a")
    take(groups, TRIO, "p0")
    clock.now += 60
    groups.expire()
    state = cluster.node("a")
    assert state is not None
    other = state.allocator.offer(pod_request("other", 16))
    assert isinstance(other, NodeOffer)
    cluster.reserve("a", other)
    text = "group default/g is on node a: cpu: not enough free CPUs"
    assert rejection_reason(groups, TRIO, "p1").startswith(text)


def test_members_that_ended_are_replaced(
    cluster: SchedulerCache, groups: GroupReservations
) -> None:
    groups.reserve(PAIR, pod_request("p0"), "a")
    take(groups, PAIR, "p0")
    take(groups, PAIR, "p1")
    cluster.release("uid-p0")
    assert groups.rejection(PAIR, pod_request("p2")) is None
    take(groups, PAIR, "p2")
    assert held_cpus(cluster, "a") == 16


def test_a_group_whose_members_all_ended_is_dropped(
    cluster: SchedulerCache, groups: GroupReservations, clock: Clock
) -> None:
    groups.reserve(PAIR, pod_request("p0"), "a")
    take(groups, PAIR, "p0")
    cluster.release("uid-p0")
    clock.now += 60
    groups.expire()
    assert groups.node(PAIR) is None


def test_a_member_that_requests_less_takes_a_part_too(
    cluster: SchedulerCache, groups: GroupReservations
) -> None:
    groups.reserve(PAIR, pod_request("p0"), "a")
    assert groups.rejection(PAIR, pod_request("p1", 4)) is None
    assert len(take(groups, PAIR, "p1", cpus=4).assigned_pod().allocation.cpus) == 4
    assert held_cpus(cluster, "a") == 12


def test_a_member_that_requests_more_gets_the_reserved_amounts(groups: GroupReservations) -> None:
    groups.reserve(PAIR, pod_request("p0"), "a")
    text = "the part of group default/g on node a is too small: cpu: requested 16000, reserved 8000"
    assert rejection_reason(groups, PAIR, "p1", 16) == text
    assert groups.take(PAIR, pod_request("p1", 16), "a") == text


def test_a_member_cannot_be_bound_to_another_node(groups: GroupReservations) -> None:
    groups.reserve(PAIR, pod_request("p0"), "a")
    assert groups.take(PAIR, pod_request("p0"), "b") == "group default/g is assigned to node a"


def test_a_group_that_was_not_filtered_is_reserved_by_bind(
    cluster: SchedulerCache, groups: GroupReservations
) -> None:
    """The pod was filtered by the previous leader."""
    take(groups, PAIR, "p0", "b")
    assert held_cpus(cluster, "b") == 16


def test_a_group_without_room_gets_the_reason(
    cluster: SchedulerCache, groups: GroupReservations
) -> None:
    assert groups.reserve(TRIO, pod_request("p0", 16), "a") is not None
    assert groups.node(TRIO) is None
    assert held_cpus(cluster, "a") == 0
    assert groups.reserve(PAIR, pod_request("p0"), "missing") is not None


def test_no_part_is_reserved_on_a_node_that_changes_while_the_offers_are_computed(
    cluster: SchedulerCache, groups: GroupReservations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last part is the one that another pod takes."""
    offer_all = NodeAllocator.offer_all

    def late(
        allocator: NodeAllocator, pod_requests: Sequence[PodRequest]
    ) -> tuple[NodeOffer, ...] | Refusal:
        offers = offer_all(allocator, pod_requests)
        assert isinstance(offers, tuple)
        last = offers[-1].to(pod_request("other"))
        cluster.reserve("a", last)
        return offers

    monkeypatch.setattr(NodeAllocator, "offer_all", late)
    full = groups.reserve(TRIO, pod_request("p0"), "a")
    assert full is not None
    assert not full.unresolvable
    assert groups.node(TRIO) is None
    assert held_cpus(cluster, "a") == 8


def test_a_member_with_another_size_is_refused(groups: GroupReservations) -> None:
    groups.reserve(TRIO, pod_request("p0"), "a")
    text = "group default/g has size 3, not 2"
    assert groups.node(PAIR) == "a"
    assert rejection_reason(groups, PAIR, "p1") == text
    assert groups.take(PAIR, pod_request("p1"), "a") == text


def test_a_bound_group_is_restored_from_the_watch(
    cluster: SchedulerCache, groups: GroupReservations, clock: Clock
) -> None:
    """The state of a group is dropped when all its members are bound."""
    groups.reserve(PAIR, pod_request("p0"), "a")
    for name in ("p0", "p1"):
        node_offer = take(groups, PAIR, name)
        cluster.confirm(node_offer.uid)
    clock.now += 60
    groups.expire()
    for name in ("p0", "p1"):
        clusters.report_pod(cluster, EIGHT.pod(name, node="a", group="g/2"))
    clock.now += 1
    groups.expire()
    assert groups.node(PAIR) == "a"
    for name in ("p0", "p1"):
        clusters.report_pod(cluster, EIGHT.pod(name, node="a"), ChangeKind.DELETED)
    clock.now += 1
    groups.expire()
    assert groups.node(PAIR) is None


def first_of_trio(cluster: SchedulerCache) -> clusters.Object:
    """Reports a bound pod of the group."""
    body = EIGHT.pod("p0", node="b", group="g/3")
    clusters.report_pod(cluster, body)
    return body


def test_members_that_were_bound_before_this_process_started_are_restored(
    cluster: SchedulerCache,
) -> None:
    """From the events of the watches."""
    body = first_of_trio(cluster)
    groups = GroupReservations(cluster)
    assert groups.node(TRIO) == "b"
    assert groups.rejection(TRIO, pod_request("p1")) is None
    assert held_cpus(cluster, "b") == 16, "for the two remaining members"
    assert groups.take(TRIO, pod_request("p1"), "a") == "group default/g is assigned to node b"
    take(groups, TRIO, "p1", "b")
    clusters.report_pod(cluster, body, ChangeKind.DELETED)
    assert groups.rejection(TRIO, pod_request("p2")) is None


def test_a_member_with_another_size_than_the_bound_ones_is_refused(cluster: SchedulerCache) -> None:
    """Members that were bound before this process started."""
    body = first_of_trio(cluster)
    groups = GroupReservations(cluster)
    assert groups.node(PAIR) == "b"
    text = "group default/g has size 3, not 2"
    assert rejection_reason(groups, PAIR, "p1") == text
    clusters.report_pod(cluster, body, ChangeKind.DELETED)
    groups.expire()
    assert groups.node(PAIR) is None


def test_a_complete_group_accepts_no_more_members(cluster: SchedulerCache) -> None:
    for name in ("p0", "p1"):
        clusters.report_pod(cluster, EIGHT.pod(name, node="b", group="g/2"))
    assert GroupReservations(cluster).rejection(PAIR, pod_request("p2")) is not None


def test_a_bound_pod_that_changes_its_group_leaves_the_first(cluster: SchedulerCache) -> None:
    for group in ("g/2", "h/2"):
        body = EIGHT.pod("p0", node="b", group=group)
        clusters.report_pod(cluster, body)
    assert cluster.bound_members(PAIR) == {}
    assert cluster.bound_members(PodGroup("default", "h", 2)).keys() == {"uid-p0"}
    clusters.report_pod(cluster, body, ChangeKind.DELETED)
    assert GroupReservations(cluster).node(PAIR) is None
