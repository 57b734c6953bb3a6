from __future__ import annotations

import socket
from typing import Any

import pytest

from agent.allocate.node_allocator.answer import NodeOffer
from agent.kube.transport import Transport
from agent.model.pod.apiobjects import PodGroup
from agent.scheduler.state.binder import ReservationExpiry
from agent.scheduler.state.cluster import EXPIRY_SECONDS, SchedulerCache
from agent.scheduler.state.group_reservations import GroupReservations
from agent.scheduler.state.pods_api import BindingApi
from tests.kube import fake_api_server
from tests.kube.clock import Clock
from tests.kube.fake_api_server import Request, Server
from tests.scheduler import objects
from tests.scheduler.clusters import allocated_pods

REQUEST = objects.pod_request({"cpu": "1"}, name="a")


@pytest.fixture
def cluster(clock: Clock) -> SchedulerCache:
    """A cluster of one node with a reservation."""
    it = SchedulerCache(clock=clock)
    it.nodes_changed([objects.node_change(objects.node("n1"))])
    it.reserve("n1", NodeOffer(REQUEST))
    return it


@pytest.fixture
def groups(cluster: SchedulerCache, clock: Clock) -> GroupReservations:
    return GroupReservations(cluster, seconds=60, clock=clock)


@pytest.fixture
def expiry(
    transport: Transport, cluster: SchedulerCache, groups: GroupReservations
) -> ReservationExpiry:
    return ReservationExpiry(cluster, groups, BindingApi(transport))


def answer_with(server: Server, code: int, body: Any) -> None:
    def answer(server: Server, connection: socket.socket, request: Request) -> bool:
        assert (request.method, request.path) == ("GET", "/api/v1/namespaces/ns/pods/a")
        return fake_api_server.reply(connection, code, body)

    server.answer = answer


# The API server's answer to a read of the pod, and whether the reservation stays.
ANSWERS = {
    "bound": (200, objects.pod("a", "n1"), True),
    "bound elsewhere": (200, objects.pod("a", "n2"), True),
    "not bound": (200, objects.pod("a"), False),
    "same name, other uid": (200, objects.pod("a", "n1", uid="other"), False),
    "deleted": (404, fake_api_server.status(404, "NotFound"), False),
    "refused": (403, fake_api_server.status(403, "Forbidden"), True),
    "server error": (500, b"error", True),
    "not a pod": (200, b"[]", True),
}


@pytest.mark.parametrize("status", ANSWERS)
def test_a_confirmed_reservation_expires_unless_the_pod_is_bound_to_its_node(
    server: Server, cluster: SchedulerCache, expiry: ReservationExpiry, clock: Clock, status: str
) -> None:
    code, body, stays = ANSWERS[status]
    answer_with(server, code, body)
    cluster.confirm("uid-a")
    clock.now = EXPIRY_SECONDS - 1
    expiry.step()
    assert not server.requests
    clock.now = EXPIRY_SECONDS + 1
    expiry.step()
    assert len(server.requests) == 1
    assert allocated_pods(cluster) == ({"a"} if stays else set())
    expiry.step()
    assert len(server.requests) == 1
    clock.now = 2 * EXPIRY_SECONDS + 2
    expiry.step()
    assert len(server.requests) == (2 if stays else 1)


def test_a_bind_in_progress_never_expires(
    server: Server, cluster: SchedulerCache, expiry: ReservationExpiry, clock: Clock
) -> None:
    clock.now = 1e9
    expiry.step()
    assert allocated_pods(cluster) == {"a"}
    assert not server.requests


def test_a_groups_reservation_expires_without_a_request(
    cluster: SchedulerCache, groups: GroupReservations, expiry: ReservationExpiry, clock: Clock
) -> None:
    """The node counts as changed: pods that were rejected because of it are retried."""
    assert groups.reserve(PodGroup("ns", "g", 2), REQUEST, "n1") is None
    serial = cluster.changed_since(0).serial
    clock.now += 61
    expiry.step()
    assert cluster.changed_since(serial).names == {"n1"}
    assert cluster.reservation("ns/g/0") is None
