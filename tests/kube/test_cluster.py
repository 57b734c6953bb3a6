from __future__ import annotations

import json
import socket
from typing import Any

import pytest

from agent.kube import objects as kinds
from agent.kube.auth import FileAccess
from agent.kube.cluster import RECHECK_SECONDS, TRIES, Cluster, Repair
from agent.kube.errors import ConflictError, NotFoundError, RejectedError, ServerError, StoreError
from agent.kube.transport import Transport
from agent.model.devices import device_object
from agent.model.devices.device_object import Device
from tests.kube.clock import Clock
from tests.kube.fake_api_server import Request, Server, reply, status
from tests.waiting import eventually

GROUP = "/apis/topology.node.k8s.io"
DEVICES = "/apis/scheduling.koordinator.sh/v1alpha1"


class Api:
    """The part of an API server that these tests need: objects by path, versions of a group."""

    def __init__(self, server: Server) -> None:
        server.answer = self
        self.objects: dict[str, dict[str, Any]] = {"/api/v1/nodes/n": {"metadata": {"name": "n"}}}
        self.served = {"v1alpha2": ["noderesourcetopologies", "other"], "v1alpha1": ["other"]}
        self.served_devices = False
        self.writes: list[str] = []
        self.version = 1
        self.cache: dict[str, dict[str, Any]] = {}

    def change(self, path: str, fields: list[Any] | None = None, **values: Any) -> None:
        """Another client changes the object. `fields`: its managedFields after that."""
        self.version += 1
        metadata = {"name": "n", "resourceVersion": str(self.version)}
        if fields is not None:
            metadata |= {"managedFields": fields}
        self.objects[path] = {**self.objects[path], **values, "metadata": metadata}

    def __call__(self, server: Server, connection: socket.socket, request: Request) -> bool:
        group, _, version = request.path.rpartition("/")
        if group == GROUP and version in self.served:
            names = [{"name": each} for each in self.served[version]]
            return reply(connection, 200, {"resources": names})
        if request.path == DEVICES and self.served_devices:
            return reply(connection, 200, {"resources": [{"name": "devices"}]})
        path = request.path.removesuffix("/status")
        if request.method == "PATCH":
            self.writes.append(request.path)
            wanted = json.loads(request.body)
            before = self.objects.get(path)
            if before is None or any(
                before.get(key) != wanted[key] for key in wanted if key != "metadata"
            ):
                self.version += 1
                metadata = {**wanted["metadata"], "resourceVersion": str(self.version)}
                self.objects[path] = {**(before or {}), **wanted, "metadata": metadata}
            return reply(connection, 200 if before else 201, self.objects[path])
        if request.query.get("resourceVersion") == "0" and path in self.cache:
            return reply(connection, 200, self.cache[path])
        if path not in self.objects:
            return reply(connection, 404, status(404, "NotFound", "no such thing"))
        if request.method == "DELETE":
            del self.objects[path]
            return reply(connection, 200, {})
        return reply(connection, 200, self.objects[path])


@pytest.fixture
def api(server: Server) -> Api:
    return Api(server)


@pytest.fixture
def cluster(transport: Transport, api: Api, clock: Clock) -> Cluster:
    return Cluster(transport, "n", clock=clock)


def topology(cpus: int, version: str = "v1alpha2") -> dict[str, Any]:
    return {
        "apiVersion": f"topology.node.k8s.io/{version}",
        "kind": "NodeResourceTopology",
        "metadata": {"name": "n"},
        "zones": [{"name": "node-0", "cpus": cpus, "resources": []}],
    }


def test_apply_returns_whether_the_object_changed_and_sends_no_unnecessary_request(
    server: Server, api: Api, cluster: Cluster
) -> None:
    assert cluster.apply(topology(8)) is True
    sent = len(server.requests)
    assert cluster.apply(topology(8)) is False
    (check,) = server.requests[sent:]
    assert (check.method, check.query) == ("GET", {"resourceVersion": "0"})
    assert cluster.apply(topology(4)) is True
    assert len(api.writes) == 2


@pytest.mark.parametrize(("overwritten", "writes"), [(False, 1), (True, 2)])
def test_applied_objects_are_checked_periodically(
    api: Api, cluster: Cluster, clock: Clock, overwritten: bool, writes: int
) -> None:
    cluster.apply(topology(8))
    (path,) = (path for path in api.objects if "topologies" in path)
    zones = api.objects[path]["zones"]
    if overwritten:
        zones[0]["cpus"] = 1
    else:
        zones.append({"name": "card"})
        zones[0]["costs"] = 10
    clock.now += RECHECK_SECONDS
    assert cluster.apply(topology(8)) is overwritten
    assert len(api.writes) == writes


def test_status_of_a_missing_object_is_not_written(api: Api, cluster: Cluster) -> None:
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "m"},
        "status": {"capacity": {"a": "1"}},
    }
    for apply in (cluster.apply, cluster.apply_status):
        with pytest.raises(NotFoundError, match="Node m does not exist"):
            apply(node)
    assert api.writes == []
    assert cluster.apply_status({**node, "metadata": {"name": "n"}}) is True
    assert api.writes == ["/api/v1/nodes/n/status"]


def test_the_newest_served_version_with_the_kind_is_used(
    api: Api, cluster: Cluster, clock: Clock, server: Server
) -> None:
    discovery = cluster.discovery
    assert discovery.version(kinds.NODE) == "v1"
    assert server.requests == []
    assert discovery.version(kinds.TOPOLOGY) == "v1alpha2"
    api.served = {"v1alpha2": ["other"], "v1alpha1": ["noderesourcetopologies"]}
    assert discovery.version(kinds.TOPOLOGY) == "v1alpha2"
    clock.now += 300
    assert discovery.version(kinds.TOPOLOGY) == "v1alpha1"
    api.served = {}
    discovery.forget(kinds.TOPOLOGY)
    assert discovery.version(kinds.TOPOLOGY) is None
    assert cluster.get("NodeResourceTopology", "n") is None
    assert cluster.delete("NodeResourceTopology", "n") is False


def test_unknown_kind_is_refused(cluster: Cluster) -> None:
    with pytest.raises(StoreError, match="kind Secret is not one of"):
        cluster.get("Secret", "n")


@pytest.mark.parametrize("body", [b"{", b"[]", b"{}", b'{"metadata": 3}'])
def test_invalid_answer_is_an_error(server: Server, cluster: Cluster, body: bytes) -> None:
    server.answer = lambda server, connection, request: reply(connection, 200, body)
    with pytest.raises(ServerError, match="/api/v1/nodes/n"):
        cluster.get("Node", "n")


def test_failed_write_is_repeated_by_the_next_apply(
    server: Server, api: Api, cluster: Cluster
) -> None:
    def rejecting_patches(server: Server, connection: socket.socket, request: Request) -> bool:
        if request.method == "PATCH":
            return reply(connection, 422, status(422, "Invalid", "zones: no"))
        return api(server, connection, request)

    server.answer = rejecting_patches
    with pytest.raises(RejectedError, match="422 zones: no"):
        cluster.apply(topology(8))
    server.answer = api
    assert cluster.apply(topology(8)) is True


def test_entries_of_other_writers_are_included_and_a_conflict_is_retried(
    server: Server, api: Api, cluster: Cluster
) -> None:
    cluster.apply(topology(8))
    (path,) = (path for path in api.objects if "topologies" in path)
    api.objects[path]["zones"].append({"name": "card"})
    conflicts = 0

    def conflicting(server: Server, connection: socket.socket, request: Request) -> bool:
        nonlocal conflicts
        if request.method == "PATCH" and conflicts < TRIES - 1:
            conflicts += 1
            return reply(connection, 409, status(409, "Conflict", "written by another client"))
        return api(server, connection, request)

    server.answer = conflicting
    assert cluster.apply(topology(4)) is True
    assert api.objects[path]["zones"] == [*topology(4)["zones"], {"name": "card"}]
    conflicts = -1
    with pytest.raises(ConflictError, match="written by another client"):
        cluster.apply(topology(2))


MANAGED = [
    {"manager": "topolet", "operation": "Apply", "time": "2026-01-01T00:00:01Z"},
    {"manager": "kubectl-edit", "operation": "Update", "time": "2026-01-01T00:00:02Z"},
    {"manager": "nfd", "operation": "Update", "time": "2026-01-01T00:00:00Z"},
]


@pytest.mark.parametrize(
    ("fields", "manager"),
    [(MANAGED, "kubectl-edit"), ([MANAGED[0], MANAGED[2]], ""), ([], ""), (["x"], "")],
)
def test_a_change_of_another_writer_is_undone_at_the_next_apply(
    api: Api, cluster: Cluster, fields: list[Any], manager: str
) -> None:
    repairs: list[Repair] = []
    cluster.repaired = repairs.append
    assert cluster.apply(topology(8)) is True
    assert cluster.apply(topology(4)) is True
    assert repairs == []
    (path,) = (path for path in api.objects if "topologies" in path)
    api.change(path, zones=[{"name": "node-0", "cpus": 1}], fields=fields)
    assert cluster.apply(topology(4)) is True
    assert repairs == [Repair("NodeResourceTopology", "n", manager)]
    del api.objects[path]
    assert cluster.apply(topology(4)) is True
    assert repairs[1:] == [Repair("NodeResourceTopology", "n", deleted=True)]
    assert cluster.apply(topology(4)) is False
    writes = len(api.writes)
    api.change(path, cards=1)
    assert cluster.apply(topology(4)) is False, "only fields of another writer differ"
    assert (len(repairs), len(api.writes)) == (2, writes)


def test_attributes_that_a_client_of_an_older_version_drops_return_without_a_report(
    api: Api, cluster: Cluster
) -> None:
    """koord-manager 1.8.0 updates zones in v1alpha1."""
    repairs: list[Repair] = []
    cluster.repaired = repairs.append
    wanted = {**topology(4), "attributes": [{"name": "topologyManagerPolicy", "value": "none"}]}
    assert cluster.apply(wanted) is True
    (path,) = (path for path in api.objects if "topologies" in path)
    batch = {"name": "card", "resources": [{"name": "kubernetes.io/batch-cpu"}]}
    api.change(path, zones=[*wanted["zones"], batch])
    del api.objects[path]["attributes"]
    assert cluster.apply(wanted) is True
    assert api.objects[path]["attributes"] == wanted["attributes"]
    assert api.objects[path]["zones"] == [*wanted["zones"], batch]
    assert repairs == []
    api.change(path, zones=[{"name": "node-0", "cpus": 1, "resources": []}])
    del api.objects[path]["attributes"]
    assert cluster.apply(wanted) is True
    assert len(repairs) == 1


@pytest.mark.parametrize(("resource", "reports"), [("kubernetes.io/batch-cpu", 0), ("cpu", 1)])
def test_batch_resources_that_a_manager_begins_to_write_are_no_report(
    api: Api, cluster: Cluster, resource: str, reports: int
) -> None:
    """It begins before the agent sees that it does."""
    repairs: list[Repair] = []
    cluster.repaired = repairs.append
    wanted, before = topology(4), [{"name": resource, "allocatable": "1"}]
    wanted["zones"][0]["resources"] = [{"name": resource, "allocatable": "2"}]
    assert cluster.apply(wanted) is True
    (path,) = (path for path in api.objects if "topologies" in path)
    api.change(path, zones=[{**wanted["zones"][0], "resources": before}])
    assert cluster.apply(wanted) is True
    assert api.objects[path]["zones"] == wanted["zones"]
    assert len(repairs) == reports


def test_a_missing_object_is_read_from_the_cache_in_one_request(
    server: Server, api: Api, cluster: Cluster
) -> None:
    api.served_devices = True
    assert cluster.get("Device", "n", cached=True) is None
    sent = len(server.requests)
    assert cluster.get("Device", "n", cached=True) is None
    assert len(server.requests) == sent + 1


def test_an_older_object_in_the_servers_cache_is_no_change(api: Api, cluster: Cluster) -> None:
    assert cluster.apply(topology(8)) is True
    (path,) = (path for path in api.objects if "topologies" in path)
    api.cache = {path: {"metadata": {"resourceVersion": "1"}}}
    api.version = 7
    assert cluster.apply(topology(4)) is True
    assert cluster.apply(topology(4)) is False


def test_a_reported_change_of_another_writer_is_checked(api: Api, cluster: Cluster) -> None:
    cluster.apply(topology(8))
    (path,) = (path for path in api.objects if "topologies" in path)
    api.objects[path]["zones"][0]["cpus"] = 1
    assert cluster.apply(topology(8)) is False
    cluster.forget("NodeResourceTopology", "n")
    assert cluster.apply(topology(8)) is True


def test_devices_of_other_types_are_kept(api: Api, cluster: Cluster) -> None:
    """Another writer reports them in the same list."""
    api.served_devices = True
    assert cluster.apply(device_object.encode("n", [Device("rdma", "a", 0, {})]))
    (path,) = (path for path in api.objects if path.endswith("/devices/n"))
    xpu = {"type": "xpu", "id": "x", "minor": 0, "health": True}
    api.objects[path]["spec"]["devices"].insert(0, xpu)
    assert cluster.apply(device_object.encode("n", []))
    assert api.objects[path]["spec"]["devices"] == [xpu]


def test_watches_of_a_node_begin_when_a_claim_is_read(server: Server, api: Api) -> None:
    """Its pod has no CPUs before the agent knows it, and its container fails after half a second.
    After a restart that took up to ten seconds, and the kubelet's pause after failures."""
    cluster = Cluster(Transport(FileAccess(server.url)), "n", spread_seconds=1e9)
    watch = cluster.watch_pods("n", lambda text: text, lambda changes: None)
    watch.start()
    try:
        with pytest.raises(NotFoundError):
            cluster.claim("ns", "a")
        eventually("pods are watched", lambda: "/api/v1/pods" in {r.path for r in server.requests})
    finally:
        watch.stop()
