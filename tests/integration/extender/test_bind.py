"""32 concurrent callers bind pods with a real API server."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from agent.kube.objects import ChangeKind
from agent.kube.transport import Transport
from agent.scheduler.state.binder import Binder, LostRaceError
from agent.scheduler.state.cluster import SchedulerCache
from agent.scheduler.state.group_reservations import GroupReservations
from agent.scheduler.state.pod_info import PodInfoCache, PodName
from agent.scheduler.state.pods_api import BindError, BindingApi
from tests.fixtures.fleet import CARDS, SMALL, Kind, Model, gpu_share_pod, owner
from tests.fixtures.overlaps import overlaps
from tests.integration.apiserver.server import ApiServer
from tests.scheduler import clusters

CALLERS = 32
PODS = 40
_numbers = itertools.count(1)


@pytest.fixture
def namespace(apiserver: ApiServer) -> str:
    name = f"bind-{next(_numbers)}"
    apiserver.namespace(name)
    apiserver.default_account(name)
    return name


@pytest.fixture
def transport(apiserver: ApiServer) -> Iterator[Transport]:
    it = Transport(apiserver.access(), connections=CALLERS)
    yield it
    it.close()


def create_pod(apiserver: ApiServer, namespace: str, kind: Kind, name: str) -> PodName:
    """Creates a pod without a node that no kube-scheduler of another test binds."""
    body = kind.pod(name)
    metadata = {key: body["metadata"][key] for key in ("name", "labels", "annotations")}
    container = {key: body["spec"]["containers"][0][key] for key in ("name", "image", "resources")}
    spec = {"containers": [container], "automountServiceAccountToken": False}
    wanted = {"metadata": metadata, "spec": {**spec, "schedulerName": "none"}}
    pod = apiserver.create(f"/api/v1/namespaces/{namespace}/pods", wanted)
    return PodName(namespace, name, pod["metadata"]["uid"])


def stored(apiserver: ApiServer, namespace: str) -> list[dict[str, Any]]:
    body = apiserver.admin.get(f"/api/v1/namespaces/{namespace}/pods")
    items: list[dict[str, Any]] = json.loads(body)["items"]
    return items


def assigned_pods(cluster: SchedulerCache, name: str) -> dict[str, Any]:
    state = cluster.node(name)
    assert state is not None
    assert overlaps(state.allocator) == ()
    return dict(state.allocator.assigned_pods)


@pytest.mark.parametrize(
    ("kind", "nodes", "each"),
    [
        (owner(2, 1), {"a": SMALL}, 16),
        (gpu_share_pod(50), {"a": CARDS}, 16),
    ],
    ids=["CPUs", "halves of cards"],
)
def test_no_two_pods_get_the_same_resources(
    apiserver: ApiServer,
    namespace: str,
    transport: Transport,
    kind: Kind,
    nodes: dict[str, Model],
    each: int,
) -> None:
    cluster = clusters.cluster(nodes)
    binder = Binder(cluster, GroupReservations(cluster), BindingApi(transport), PodInfoCache())
    pods = [create_pod(apiserver, namespace, kind, f"p{number}") for number in range(PODS)]
    order = list(itertools.islice(itertools.cycle(nodes), PODS))

    def bind(place: int) -> bool:
        try:
            binder.bind(pods[place], order[place])
        except LostRaceError:
            return False
        return True

    with ThreadPoolExecutor(CALLERS) as pool:
        bound = sum(pool.map(bind, range(PODS)))
    room = {name: min(each, order.count(name)) for name in nodes}
    assert bound == sum(room.values())
    assert binder.lost_races == PODS - bound
    restarted = clusters.cluster(nodes)
    for pod in stored(apiserver, namespace):
        clusters.report_pod(restarted, pod, ChangeKind.ADDED)
    for name in nodes:
        assert assigned_pods(cluster, name) == assigned_pods(restarted, name)
        assert len(assigned_pods(restarted, name)) == 1 + room[name], (
            "its agent, and as many pods as fit"
        )


def test_a_pod_bound_by_another_scheduler_frees_its_reservation(
    apiserver: ApiServer, namespace: str, transport: Transport
) -> None:
    cluster = clusters.cluster({"a": SMALL})
    binder = Binder(cluster, GroupReservations(cluster), BindingApi(transport), PodInfoCache())
    pod = create_pod(apiserver, namespace, owner(8, 1), "p")
    path = f"/api/v1/namespaces/{namespace}/pods/p/binding"
    apiserver.create(path, {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "other"}})
    with pytest.raises(BindError, match="is bound to node other"):
        binder.bind(pod, "a")
    assert len(assigned_pods(cluster, "a")) == 1


def test_a_recreated_pod_with_the_same_name_is_not_bound(
    apiserver: ApiServer, namespace: str, transport: Transport
) -> None:
    cluster = clusters.cluster({"a": SMALL})
    pod_infos = PodInfoCache()
    binder = Binder(cluster, GroupReservations(cluster), BindingApi(transport), pod_infos)
    create_pod(apiserver, namespace, owner(8, 1), "p")
    pod_infos.of(clusters.api_pod(owner(8, 1).pod("p", uid="old")))
    with pytest.raises(BindError, match="no longer exists"):
        binder.bind(PodName(namespace, "p", "old"), "a")
    (pod,) = stored(apiserver, namespace)
    assert "nodeName" not in pod["spec"]
    assert len(assigned_pods(cluster, "a")) == 1
