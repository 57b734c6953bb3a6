"""What an agent's token can read from an API server with deploy/authorization/agents.yaml."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from agent.kube.auth import FileAccess
from agent.kube.errors import ServerError
from agent.kube.transport import Transport
from agent.model.pod.annotations import NUMA_PLACEMENT_OBSERVED
from tests.deploy.manifests import DEPLOY, of_kind
from tests.integration.apiserver import server
from tests.integration.apiserver.definitions import NODE_SLO, NODE_SLO_DEFINITION, NODE_SLOS
from tests.integration.apiserver.server import ApiServer

NAMESPACE, ACCOUNT = "topolet-system", "topolet-agent"


class Cluster(NamedTuple):
    """Two nodes, each with an agent and a user's pod. `agent` has the token of node-1's agent,
    `unbound` a token of the same account that is not bound to a pod."""

    server: ApiServer
    agent: Transport
    unbound: Transport


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("authorization")
    nowhere = folder / "nowhere.kubeconfig"
    nowhere.write_text((DEPLOY / "authorization/nowhere.kubeconfig").read_text())
    authorizers = (DEPLOY / "authorization/agents.yaml").read_text()
    placed = folder / "agents.yaml"
    placed.write_text(
        authorizers.replace("/etc/kubernetes/topolet/nowhere.kubeconfig", str(nowhere))
    )
    pki = tmp_path_factory.mktemp("apiserver")
    with server.running(pki, placed) as it:
        it.namespace(NAMESPACE)
        it.create(
            f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", {"metadata": {"name": ACCOUNT}}
        )
        for kind in ("ClusterRole", "ClusterRoleBinding"):
            it.apply(of_kind(kind)[ACCOUNT])
        it.apply(NODE_SLO_DEFINITION)
        for component in ("kubelet-configz", "kai", "usage"):
            path = DEPLOY / "components" / component / "rbac.yaml"
            for each in yaml.safe_load_all(path.read_text()):
                it.apply(each)
        it.account("default", "default", [])
        for name in ("node-1", "node-2"):
            it.node(name)
            it.pod(NAMESPACE, f"agent-{name}", name, ACCOUNT)
            it.pod("default", f"user-{name}", name)
            it.apply({**NODE_SLO, "metadata": {"name": name}})
        access = [
            FileAccess(it.url, ca=str(pki / "ca.crt"), token=str(token(it, folder, pod)))
            for pod in ("agent-node-1", None)
        ]
        agent, unbound = (Transport(each) for each in access)
        yield Cluster(it, agent, unbound)


def token(api: ApiServer, folder: Path, pod: str | None) -> Path:
    path = folder / f"token-{pod}"
    path.write_text(api.token(NAMESPACE, ACCOUNT, pod))
    return path


def refused() -> pytest.RaisesExc[ServerError]:
    """The server responds with 500, because the authorizer that refuses cannot be reached."""
    return pytest.raises(ServerError, match=r"dial tcp 127\.0\.0\.1:1:")


OWN_OBJECTS = [
    "/api/v1/pods?fieldSelector=spec.nodeName%3Dnode-1",
    "/api/v1/pods?fieldSelector=spec.nodeName%3Dnode-1&watch=1&timeoutSeconds=1",
    "/api/v1/nodes?fieldSelector=metadata.name%3Dnode-1",
    "/api/v1/nodes?fieldSelector=metadata.name%3Dnode-1&watch=1&timeoutSeconds=1",
    "/api/v1/nodes/node-1",
    f"{NODE_SLOS}?fieldSelector=metadata.name%3Dnode-1",
    f"{NODE_SLOS}?fieldSelector=metadata.name%3Dnode-1&watch=1&timeoutSeconds=1",
]
OTHER_OBJECTS = [
    "/api/v1/pods",
    "/api/v1/pods?watch=1&timeoutSeconds=1",
    "/api/v1/pods?fieldSelector=spec.nodeName%3Dnode-2",
    "/api/v1/pods?fieldSelector=spec.nodeName!%3Dnode-1",
    "/api/v1/pods?fieldSelector=metadata.name%3Duser-node-2",
    "/api/v1/namespaces/default/pods",
    "/api/v1/nodes",
    "/api/v1/nodes?fieldSelector=metadata.name!%3Dnode-1",
    "/api/v1/nodes?labelSelector=a%3Db",
    "/api/v1/nodes/node-2",
    NODE_SLOS,
    f"{NODE_SLOS}?fieldSelector=metadata.name%3Dnode-2",
]


@pytest.mark.parametrize("path", OWN_OBJECTS)
def test_an_agent_reads_its_node_and_its_pods(cluster: Cluster, path: str) -> None:
    response = cluster.agent.get(path)
    assert b"node-1" in response
    assert b"node-2" not in response


@pytest.mark.parametrize("path", OTHER_OBJECTS)
def test_a_stolen_token_reads_nothing_of_other_nodes(cluster: Cluster, path: str) -> None:
    with refused():
        cluster.agent.get(path)


@pytest.mark.parametrize("path", [*OWN_OBJECTS, *OTHER_OBJECTS])
def test_a_token_that_is_bound_to_no_node_reads_nothing(cluster: Cluster, path: str) -> None:
    with refused():
        cluster.unbound.get(path)


def test_an_agent_may_annotate_pods_which_a_policy_restricts_to_its_node(cluster: Cluster) -> None:
    path = "/api/v1/namespaces/default/pods/user-node-1"
    change = {"metadata": {"annotations": {NUMA_PLACEMENT_OBSERVED: "[]"}}}
    assert NUMA_PLACEMENT_OBSERVED.encode() in cluster.agent.merge(path, change)
    with refused():
        cluster.agent.get(path)


@pytest.mark.parametrize(("node", "allowed"), [("node-1", True), ("node-2", False)])
def test_a_kubelet_shows_its_configuration_to_its_own_agent_only(
    cluster: Cluster, node: str, allowed: bool
) -> None:
    """The kubelet sends a SubjectAccessReview (kubelet: pkg/kubelet/server/auth.go)."""
    spec = {
        "user": f"system:serviceaccount:{NAMESPACE}:{ACCOUNT}",
        "groups": ["system:serviceaccounts", "system:authenticated"],
        "extra": {"authentication.kubernetes.io/node-name": ["node-1"]},
        "resourceAttributes": {
            "verb": "get", "version": "v1", "resource": "nodes", "subresource": "configz",
            "name": node,
        },
    }  # fmt: skip
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": spec,
    }
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    assert cluster.server.create(path, review)["status"]["allowed"] is allowed


def test_the_authorizer_is_not_called_for_other_accounts(cluster: Cluster) -> None:
    assert b"user-node-2" in cluster.server.admin.get("/api/v1/pods")
