"""`helm uninstall` on a real API server, with the policies: the Job and its pods have the
permissions of their accounts. Kubelets are simulated: a thread runs the command of each pod."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.kube.cluster import Cluster as Objects
from agent.kube.errors import KubeError, NotFoundError
from agent.model.nrt.node_status import LABEL_PREFIX
from tests.deploy import chart
from tests.deploy.api import Api, RefusedError
from tests.integration import helmcluster
from tests.integration.apiserver.server import ApiServer
from tests.integration.helmcluster import NAMESPACE, Cluster
from tests.waiting import eventually

PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
ROOT = Path(__file__).resolve().parents[2]
VALUES = {"uninstall": {"nodeDeadlineSeconds": 10, "deadlineSeconds": 120, "nodesAtOnce": 2}}
ACCOUNT = "topolet-uninstall-node"
REPORTS = (
    "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies",
    "/apis/scheduling.koordinator.sh/v1alpha1/devices",
)
UNREACHABLE = "unreachable"
NODES = ("n1", "n2", "n3", UNREACHABLE)
ZONES = [{"name": "node-0", "type": "Node"}]
_POLL_SECONDS = 0.2

pytestmark = pytest.mark.timeout(600)


class Kubelets:
    """The kubelets of all nodes that are not `unreachable`. They run the command of each pod, with
    a token that is bound to the pod, and with a folder in place of the host."""

    def __init__(self, server: ApiServer, folder: Path) -> None:
        self.unreachable = {UNREACHABLE}
        self.outputs: dict[str, str] = {}
        self.problem: Exception | None = None
        self._server = server
        self._folder = folder
        folder.mkdir()
        self._stopped = threading.Event()
        self._threads: dict[str, threading.Thread] = {}

    def run(self) -> None:
        while not self._stopped.wait(_POLL_SECONDS):
            for pod in json.loads(self._server.admin.get(PODS))["items"]:
                name = pod["metadata"]["name"]
                unreachable = pod["spec"].get("nodeName", "") in self.unreachable
                ended = pod["status"]["phase"] in ("Succeeded", "Failed")
                if name not in self._threads and not unreachable and not ended:
                    self._threads[name] = threading.Thread(target=self._serve, args=(pod,))
                    self._threads[name].start()
        for each in self._threads.values():
            each.join()

    def stop(self) -> None:
        self._stopped.set()

    def _serve(self, pod: dict[str, Any]) -> None:
        try:
            self._run(pod)
        except (KubeError, OSError, KeyError) as error:
            self.problem = error

    def _run(self, pod: dict[str, Any]) -> None:
        name = pod["metadata"]["name"]
        node = pod["spec"].get("nodeName", "")
        if not node:
            # There is no scheduler.
            body = {"metadata": {"name": name}, "target": {"kind": "Node", "name": "n1"}}
            self._server.create(f"{PODS}/{name}/binding", body)
        ended = self._command(pod, node)
        self.outputs[node or "job"] = ended.stdout + ended.stderr
        terminated = {
            "exitCode": ended.returncode,
            "message": ended.stderr,
            "startedAt": None,
            "finishedAt": None,
        }
        status = {
            "phase": "Failed" if ended.returncode else "Succeeded",
            "containerStatuses": [
                {
                    "name": "uninstall",
                    "image": "topolet",
                    "imageID": "",
                    "ready": False,
                    "restartCount": 0,
                    "state": {"terminated": terminated},
                }
            ],
        }
        path = f"{PODS}/{name}/status"
        with contextlib.suppress(NotFoundError):
            self._server.admin.merge(path, {"status": status})

    def _command(self, pod: dict[str, Any], node: str) -> subprocess.CompletedProcess[str]:
        (container,) = pod["spec"]["containers"]
        root = self._folder / node
        words = [
            each.replace("$(NODE_NAME)", node).replace("=/host", f"={root}")
            for each in container["args"]
        ]
        environment = {}
        if node:
            (root / "run").mkdir(parents=True, exist_ok=True)
            for each in container.get("env", ()):
                if "value" in each:
                    environment[each["name"]] = each["value"].replace("/host", str(root))
        else:
            found = self._server.admin.get(
                f"/api/v1/namespaces/{NAMESPACE}/configmaps/topolet-uninstall"
            )
            file = self._folder / "pools.json"
            file.write_text(json.loads(found)["data"]["pools.json"])
            words[-1] = str(file)
        return subprocess.run(
            [sys.executable, "-m", "agent", *words, f"--kubeconfig={self._account(pod)}"],
            capture_output=True,
            check=False,
            text=True,
            env={
                **os.environ,
                **environment,
                "PYTHONPATH": str(ROOT),
                "KUBECONFIG": "",
                "HOME": str(self._folder),
                "KUBERNETES_SERVICE_HOST": "127.0.0.1",
                "KUBERNETES_SERVICE_PORT": self._server.url.rpartition(":")[2],
            },
        )

    def _account(self, pod: dict[str, Any]) -> Path:
        name = pod["metadata"]["name"]
        folder: Path = self._folder / name
        folder.mkdir(parents=True)
        (folder / "ca.crt").write_bytes((self._server.folder / "ca.crt").read_bytes())
        account = pod["spec"]["serviceAccountName"]
        (folder / "token").write_text(self._server.token(NAMESPACE, account, name))
        return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with helmcluster.running(tmp_path_factory.mktemp("removal"), "job-controller") as it:
        for node in NODES:
            it.server.node(node)
            it.kubectl("label", "node", node, "zone=a", "kubernetes.io/os=linux", f"name={node}")
        yield it


@pytest.fixture
def cluster(server: Cluster) -> Iterator[Cluster]:
    yield server
    server.uninstall("--ignore-not-found")


@pytest.fixture
def kubelets(cluster: Cluster, tmp_path: Path) -> Iterator[Kubelets]:
    kubelets = Kubelets(cluster.server, tmp_path / "nodes")
    thread = threading.Thread(target=kubelets.run)
    thread.start()
    yield kubelets
    kubelets.stop()
    thread.join()


def write_reports(cluster: Cluster, node: str) -> None:
    """Writes the objects and the label of an agent."""
    objects = Objects(cluster.server.admin, node)
    labels = {f"{LABEL_PREFIX}cpus": "8"}
    objects.apply(
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node, "labels": labels}}
    )
    for version, kind, rest in (
        ("topology.node.k8s.io/v1alpha2", "NodeResourceTopology", {"zones": ZONES}),
        ("scheduling.koordinator.sh/v1alpha1", "Device", {"spec": {"devices": []}}),
    ):
        objects.apply({"apiVersion": version, "kind": kind, "metadata": {"name": node}, **rest})


def names_of(cluster: Cluster, kind: str) -> set[str]:
    listed = json.loads(cluster.kubectl("get", kind, "-o", "json"))["items"]
    return {each["metadata"]["name"] for each in listed}


def labelled_nodes(cluster: Cluster) -> set[str]:
    words = ("get", "nodes", "-l", f"{LABEL_PREFIX}cpus", "-o", "json")
    return {each["metadata"]["name"] for each in json.loads(cluster.kubectl(*words))["items"]}


def test_nodes_are_cleaned_up_and_an_unreachable_node_is_reported_until_it_is_too(
    cluster: Cluster, kubelets: Kubelets
) -> None:
    before = cluster.objects()
    cluster.install(VALUES)
    for node in NODES:
        write_reports(cluster, node)
    eventually("the policies are in force", cluster.policies_refuse)

    ended = cluster.attempt("uninstall", "topolet", "--timeout=180s")
    assert ended.returncode, "one node is not cleaned up"
    assert kubelets.problem is None
    outputs = kubelets.outputs["job"]
    assert f"left on node {UNREACHABLE}: its pod is Pending after 10 s" in outputs
    assert (
        "    topolet uninstall-node --node-name=NODE --kubeconfig=FILE --without-proxy" in outputs
    )
    assert labelled_nodes(cluster) == {UNREACHABLE}
    assert (
        names_of(cluster, "devices") == names_of(cluster, "noderesourcetopologies") == {UNREACHABLE}
    )
    assert "ClusterRole//topolet-uninstall-node" not in cluster.objects()
    assert not json.loads(cluster.kubectl("get", "daemonsets", "-A", "-o", "json"))["items"]

    kubelets.unreachable.clear()
    cluster.helm("uninstall", "topolet", "--timeout=180s")
    assert kubelets.problem is None
    assert labelled_nodes(cluster) == set()
    assert names_of(cluster, "devices") == names_of(cluster, "noderesourcetopologies") == set()
    after = cluster.objects()
    kept = {each for each in after if each.startswith("CustomResourceDefinition/")}
    assert {name: each for name, each in after.items() if name not in kept} == before


def test_a_release_changes_nothing_where_the_agent_of_a_pool_can_not_run(
    cluster: Cluster, kubelets: Kubelets
) -> None:
    ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    cluster.server.admin.merge("/api/v1/nodes/n1/status", ready)
    before = cluster.objects()
    pools = [
        {"name": "other", "nodeSelector": {"name": "n2"}},
        {"runtime": "cri-o", "settings": {"cpu-policy": "static"}},
    ]
    words = ("upgrade", "--install", "topolet", cluster.chart, "--timeout=60s")
    ended = cluster.attempt(*words, values={"pools": pools})
    assert ended.returncode
    assert "pre-install" in ended.stderr
    assert kubelets.problem is None
    assert set(kubelets.outputs) == {"n1"}, "n2 is not Ready"
    assert (
        "node n1: runtime /run/crio/crio.sock: this socket does not exist"
        in (kubelets.outputs["n1"])
    )
    new = {each for each in cluster.objects() if each not in before}
    secrets = {each for each in new if each.startswith(f"Secret/{NAMESPACE}/sh.helm.release.")}
    assert new - secrets == {f"Job/{NAMESPACE}/topolet-preflight-0"}


def test_the_pod_of_a_node_cleans_up_its_own_node_only(cluster: Cluster) -> None:
    """It has the permissions that Helm gives it while the Job runs, by a token of a pod of n1."""
    cluster.install(VALUES)
    for node in ("n1", "n2"):
        write_reports(cluster, node)
    eventually("the policies are in force", cluster.policies_refuse)
    for each in chart.rendered(cluster.server.folder, VALUES):
        if each["metadata"]["name"] == ACCOUNT:
            cluster.server.apply(each)
    cluster.server.pod(NAMESPACE, "remover", "n1", ACCOUNT)
    token = cluster.server.token(NAMESPACE, ACCOUNT, "remover")
    ca = str(cluster.server.folder / "ca.crt")
    node_account = Api(cluster.server.url, token, ca)

    def is_refused(path: str) -> bool:
        try:
            node_account.request("DELETE", f"{path}/n2?dryRun=All")
        except RefusedError as error:
            return "does not belong to node n1" in str(error)
        return False

    # Policies come into force one after the other.
    eventually("reports of others are kept", lambda: all(map(is_refused, REPORTS)))
    foreign = {"metadata": {"labels": {"zone": "b"}}}
    with pytest.raises(RefusedError, match="may not change these labels of its Node: zone"):
        node_account.merge("/api/v1/nodes/n1", foreign)
    for method, path in (
        ("DELETE", "/api/v1/nodes/n1"),
        ("GET", PODS),
        ("GET", "/api/v1/nodes"),
        ("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets"),
    ):
        with pytest.raises(RefusedError, match="forbidden"):
            node_account.request(method, path)
    for path in REPORTS:
        node_account.request("DELETE", f"{path}/n1")
    unbound = Api(cluster.server.url, cluster.server.token(NAMESPACE, ACCOUNT), ca)
    with pytest.raises(RefusedError, match="not bound to a node"):
        unbound.request("DELETE", f"{REPORTS[0]}/n2")
