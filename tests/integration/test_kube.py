"""`agent.kube` and a real API server."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent.kube.auth import KubeconfigAccess
from agent.kube.cluster import Cluster
from agent.kube.errors import (
    ConflictError,
    ForbiddenError,
    NotFoundError,
    UnauthorizedError,
)
from agent.kube.listwatch import ListWatch
from agent.kube.objects import Change, ChangeKind
from agent.kube.transport import APPLY, MERGE, Transport
from agent.model.nrt import node_status
from tests.integration.apiserver.server import ApiServer
from tests.kube.reading import as_type
from tests.waiting import eventually

RECOVERY_SECONDS = 60.0
GROUP = "topology.node.k8s.io"
CRD = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/noderesourcetopologies.{GROUP}"

_numbers = itertools.count(1)


class Metadata(msgspec.Struct):
    name: str
    uid: str


class Named(msgspec.Struct):
    metadata: Metadata


class Follower:
    """The events of a watch, checked for consistency."""

    def __init__(self) -> None:
        self.uids: dict[str, str] = {}
        self.count = 0
        self.wrong: list[Change[Named]] = []

    def __call__(self, changes: Sequence[Change[Named]]) -> None:
        for each in changes:
            self.count += 1
            if (each.key.name in self.uids) is (each.kind is ChangeKind.ADDED):
                self.wrong.append(each)
            if each.kind is ChangeKind.DELETED:
                self.uids.pop(each.key.name, None)
            else:
                self.uids[each.key.name] = each.value.metadata.uid


@contextlib.contextmanager
def running(watch: ListWatch[Named]) -> Iterator[None]:
    watch.start()
    try:
        yield
    finally:
        watch.stop()
        assert not [each for each in threading.enumerate() if each.name.startswith("watch /")]


def stored_uids(server: ApiServer, path: str, fields: str = "") -> dict[str, str]:
    query = {"fieldSelector": fields} if fields else {}
    items = msgspec.json.decode(server.admin.get(path, query))["items"]
    return {each["metadata"]["name"]: each["metadata"]["uid"] for each in items}


@pytest.fixture
def node_name(apiserver: ApiServer) -> str:
    """The name of a Node and of a namespace, in which a test creates service accounts."""
    name = f"kube-{next(_numbers)}"
    apiserver.namespace(name)
    apiserver.node(name)
    return name


@pytest.fixture
def cluster(apiserver: ApiServer, node_name: str) -> Cluster:
    return Cluster(apiserver.admin, node_name, spread_seconds=0)


@pytest.fixture
def restored(apiserver: ApiServer) -> Iterator[ApiServer]:
    """An API server that a test restarts with other flags; restarted with its own at the end."""
    yield apiserver
    apiserver.restart_server()


def definition(*versions: str) -> dict[str, Any]:
    """A CRD of these versions, stored as the first one, with zones as a list by name."""
    zone = {
        "type": "object",
        "properties": {"name": {"type": "string"}},
        "x-kubernetes-preserve-unknown-fields": True,
        "required": ["name"],
    }
    zones = {
        "type": "array",
        "items": zone,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name"],
    }
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"zones": zones}}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"noderesourcetopologies.{GROUP}",
            "annotations": {"api-approved.kubernetes.io": "unapproved, a test's"},
        },
        "spec": {
            "group": GROUP,
            "scope": "Cluster",
            "names": {
                "kind": "NodeResourceTopology",
                "plural": "noderesourcetopologies",
                "singular": "noderesourcetopology",
            },
            "versions": [
                {"name": each, "served": True, "storage": not number, "schema": schema}
                for number, each in enumerate(versions)
            ],
        },
    }


@pytest.fixture
def topologies(apiserver: ApiServer, node_name: str) -> Iterator[str]:
    """The path of a NodeResourceTopology that does not exist, while its kind does."""
    apiserver.admin.apply(CRD, definition("v1alpha2"))
    collection = f"/apis/{GROUP}/v1alpha2/noderesourcetopologies"
    eventually("the kind is served", lambda: apiserver.answers(collection), RECOVERY_SECONDS)
    yield f"{collection}/{node_name}"
    apiserver.admin.delete(CRD)
    eventually(
        "the deletion is reported", lambda: not apiserver.answers(collection), RECOVERY_SECONDS
    )


def topology(name: str, *zones: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": f"{GROUP}/v1alpha2",
        "kind": "NodeResourceTopology",
        "metadata": {"name": name, **metadata},
        "zones": list(zones),
    }


def test_apply_owns_its_fields_and_keeps_those_of_others(
    apiserver: ApiServer, cluster: Cluster, topologies: str, node_name: str
) -> None:
    def stored() -> dict[str, Any]:
        found = cluster.get("NodeResourceTopology", node_name)
        assert found is not None
        return found

    other = topology(
        node_name,
        {"name": "node-0", "cpus": 4},
        {"name": "card", "type": "other"},
        labels={"other": "1"},
    )
    query = {"fieldManager": "another"}
    assert cluster.get("NodeResourceTopology", node_name) is None
    apiserver.admin.request("PATCH", topologies, query, other, APPLY)

    own = topology(node_name, {"name": "node-0", "cpus": 8, "costs": 10}, labels={"own": "1"})
    with pytest.raises(ConflictError) as conflict:
        apiserver.admin.apply(topologies, own, force=False)
    assert conflict.value.fields == ('.zones[name="node-0"].cpus',)
    assert 'conflict with "another"' in str(conflict.value)

    assert cluster.apply(own) is True
    assert stored()["metadata"]["labels"] == {"other": "1", "own": "1"}
    by_name = {each["name"]: each for each in stored()["zones"]}
    assert by_name["node-0"] == {"name": "node-0", "cpus": 8, "costs": 10}
    assert by_name["card"] == {"name": "card", "type": "other"}

    # A field that is no longer applied is removed; those of others stay.
    assert cluster.apply(topology(node_name, {"name": "node-0", "cpus": 8})) is True
    assert stored()["metadata"]["labels"] == {"other": "1"}
    by_name = {each["name"]: each for each in stored()["zones"]}
    assert by_name == {
        "node-0": {"name": "node-0", "cpus": 8},
        "card": {"name": "card", "type": "other"},
    }
    assert cluster.delete("NodeResourceTopology", node_name) is True
    assert cluster.delete("NodeResourceTopology", node_name) is False


def test_nodes_are_changed_but_never_created(
    apiserver: ApiServer, cluster: Cluster, node_name: str
) -> None:
    def node(name: str, **labels: str) -> dict[str, Any]:
        return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}

    with pytest.raises(NotFoundError, match="Node nobody does not exist"):
        cluster.apply(node("nobody", a="1"))
    apiserver.admin.merge(f"/api/v1/nodes/{node_name}", {"metadata": {"labels": {"other": "1"}}})
    assert cluster.apply(node(node_name, own="1")) is True
    capacity = {"koordinator.sh/gpu-core": "100"}
    status = {**node(node_name), "status": {"capacity": capacity, "allocatable": capacity}}
    assert cluster.apply_status(status) is True
    assert cluster.apply_status(status) is False
    apiserver.admin.merge(
        f"/api/v1/nodes/{node_name}/status", {"status": {"capacity": {"other.io/x": "1"}}}
    )
    stored = cluster.get("Node", node_name)
    assert stored is not None
    assert stored["metadata"]["labels"].items() >= {"other": "1", "own": "1"}.items()
    assert stored["status"]["capacity"] == {**capacity, "other.io/x": "1"}


def test_labels_of_a_feature_discovery_are_written_where_it_does_not_write_them(
    apiserver: ApiServer, cluster: Cluster, node_name: str
) -> None:
    path = f"/api/v1/nodes/{node_name}"
    count, product = "nvidia.com/gpu.count", "nvidia.com/gpu.product"
    wanted = node_status.node(node_name, {count: "2", product: "ours"})

    def discover(**values: str | None) -> dict[str, str]:
        """Labels of these values by the discovery, and then the labels that the agent leaves."""
        labels = {f"nvidia.com/gpu.{key}": value for key, value in values.items()}
        body = {"metadata": {"labels": labels}}
        apiserver.admin.request("PATCH", path, {"fieldManager": "nfd-master"}, body, MERGE)
        cluster.forget("Node", node_name)
        cluster.apply(wanted)
        stored = cluster.get("Node", node_name)
        assert stored is not None
        found = stored["metadata"]["labels"].items()
        return {key: value for key, value in found if key.startswith("nvidia.com/")}

    family = "nvidia.com/gpu.family"
    assert discover() == {count: "2", product: "ours"}
    assert discover(family="hopper") == {count: "2", product: "ours", family: "hopper"}
    theirs = {count: "2", product: "theirs", family: "hopper"}
    assert discover(product="theirs") == theirs
    assert discover() == theirs
    assert discover(product=None, family=None) == {count: "2", product: "ours"}


def test_watch_has_only_the_pods_of_its_node_and_survives_a_killed_server(
    restored: ApiServer, cluster: Cluster, node_name: str
) -> None:
    server = restored
    server.account(node_name, "default", [])
    server.node(f"{node_name}-other")
    for number in range(3):
        server.pod(node_name, f"p{number}", node_name)
    server.pod(node_name, "elsewhere", f"{node_name}-other")
    follower = Follower()
    watch = cluster.watch_pods(node_name, as_type(Named), follower)
    pods = f"/api/v1/namespaces/{node_name}/pods"
    here = f"spec.nodeName={node_name}"

    def follows_the_server() -> bool:
        return follower.uids == stored_uids(server, pods, here)

    with running(watch):
        eventually(
            "the watch is synced", lambda: watch.synced and follows_the_server(), RECOVERY_SECONDS
        )
        assert set(follower.uids) == {"p0", "p1", "p2"}
        before_count = follower.count
        server.kill_server()
        eventually("the watch reports the failure", lambda: watch.problem, RECOVERY_SECONDS)
        server.start_server()
        _remove_pod(server, f"{pods}/p0")
        _remove_pod(server, f"{pods}/p1")
        server.pod(node_name, "p1", node_name)
        server.pod(node_name, "p3", node_name)
        eventually("the watch has the server's pods", follows_the_server, RECOVERY_SECONDS)
        assert not follower.wrong
        assert follower.count - before_count <= 6, "only changes are reported"

        # Other members of etcd's quorum would have compacted too.
        server.kill_server()
        eventually("the watch reports the failure", lambda: watch.problem, RECOVERY_SECONDS)
        server.kill_etcd()
        server.start_etcd()
        server.start_server("--watch-cache=false")
        eventually("the watch works again", lambda: watch.problem is None, RECOVERY_SECONDS)
        server.pod(node_name, "p4", node_name)
        eventually("the watch has the server's pods", follows_the_server, RECOVERY_SECONDS)
    assert not follower.wrong


def _remove_pod(server: ApiServer, path: str) -> None:
    server.admin.request("DELETE", path, {"gracePeriodSeconds": 0})


def test_watch_from_a_compacted_version_is_listed_anew(
    restored: ApiServer, cluster: Cluster, node_name: str
) -> None:
    server = restored
    server.restart_server("--watch-cache=false")
    follower = Follower()
    watch = cluster.watch_node(node_name, as_type(Named), follower)
    with running(watch):
        eventually("the watch is synced", lambda: watch.synced, RECOVERY_SECONDS)
        syncs = watch.syncs
        # Revisions advance without an event for this node, then are compacted.
        server.kill_server()
        eventually("the watch reports the failure", lambda: watch.problem, RECOVERY_SECONDS)
        server.write_other_keys()
        server.compact()
        server.start_server("--watch-cache=false")
        eventually("the watch is synced again", lambda: watch.syncs > syncs, RECOVERY_SECONDS)
        server.admin.delete(f"/api/v1/nodes/{node_name}")
        eventually("the watch reports it", lambda: not follower.uids, RECOVERY_SECONDS)
    assert not follower.wrong
    assert follower.count == 2, "added, deleted"


def test_watchlist_needs_no_list(apiserver: ApiServer, node_name: str, tmp_path: Path) -> None:
    """The account has the permission to watch, and not to list."""
    if apiserver.minor < 34:
        pytest.skip("WatchList is off by default in this kube-apiserver")
    rules = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["watch"]}]
    apiserver.account(node_name, "agent", rules)
    path = f"/api/v1/namespaces/{node_name}/configmaps"
    for number in range(3):
        apiserver.create(path, {"metadata": {"name": f"c{number}"}})
    token = tmp_path / "token"
    token.write_text(apiserver.token(node_name, "agent"))
    transport = Transport(apiserver.access(str(token)))
    follower = Follower()
    watch = ListWatch(transport, path, {}, as_type(Named), follower)
    with running(watch):
        eventually("the watch is synced", lambda: watch.synced, RECOVERY_SECONDS)
        assert follower.uids == stored_uids(apiserver, path)
    with pytest.raises(ForbiddenError):
        transport.get(path)


def test_denied_verb_is_named(apiserver: ApiServer, node_name: str, tmp_path: Path) -> None:
    rules = [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "patch"]}]
    apiserver.account(node_name, "agent", rules)
    token = tmp_path / "token"
    token.write_text(apiserver.token(node_name, "agent"))
    cluster = Cluster(Transport(apiserver.access(str(token))), node_name, spread_seconds=0)
    account = f"system:serviceaccount:{node_name}:agent"
    with pytest.raises(ForbiddenError) as denied:
        cluster.apply_status(node_status.status(node_name, {"a.io/b": 1}))
    assert (denied.value.verb, denied.value.resource, denied.value.group) == (
        "patch",
        "nodes/status",
        "",
    )
    assert f"no role allows {account} patch nodes/status at the cluster scope" in str(denied.value)

    watch = cluster.watch_pods(node_name, as_type(Named), Follower())
    with running(watch):
        lacking = f"no role allows {account} watch pods at the cluster scope"
        eventually(
            "the failure is reported", lambda: lacking in (watch.problem or ""), RECOVERY_SECONDS
        )


def test_kubeconfig_with_an_exec_plugin(
    apiserver: ApiServer, node_name: str, tmp_path: Path
) -> None:
    """The plugin counts its calls, to check that it runs again after a 401."""
    apiserver.account(
        node_name, "person", [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}]
    )
    token, calls = tmp_path / "token", tmp_path / "calls"
    token.write_text("refused")
    plugin = tmp_path / "plugin"
    plugin.write_text(
        f"""#!/bin/sh
echo called >> {calls}
echo '{{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
       "status": {{"token": "'$(cat {token})'"}}}}'
"""
    )
    plugin.chmod(0o755)
    exec_ = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": str(plugin),
        "interactiveMode": "Never",
    }
    config = apiserver.kubeconfig("")
    config["clusters"][0]["cluster"]["tls-server-name"] = "localhost"
    config["users"][0]["user"] = {"exec": exec_}
    path = tmp_path / "config"
    path.write_bytes(msgspec.json.encode(config))
    transport = Transport(KubeconfigAccess(str(path)))
    with pytest.raises(UnauthorizedError):
        transport.get(f"/api/v1/nodes/{node_name}")
    token.write_text(apiserver.token(node_name, "person"))
    assert transport.get(f"/api/v1/nodes/{node_name}")
    assert len(calls.read_text().split()) >= 2
