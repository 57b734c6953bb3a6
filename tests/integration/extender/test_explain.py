"""`topolet explain` through the proxy of a real API server, with the permissions of the caller."""

from __future__ import annotations

import itertools
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.__main__ import main
from agent.http.peers import NodeAddresses
from agent.http.server import HttpServer
from agent.kube.errors import KubeError
from agent.model.dra.names import DRIVER
from agent.model.objects import LabelSelector
from agent.model.pod.annotations import RESOURCE_STATUS
from agent.scheduler import process
from agent.scheduler.explain import endpoint
from agent.scheduler.explain.explainer import Explainer
from agent.scheduler.preemption.disruption_budgets import Budget
from tests.deploy.manifests import objects as manifests
from tests.fixtures.fleet import CARDS, SMALL, owner
from tests.integration.apiserver.server import ApiServer
from tests.scheduler.explain.scenes import SCHEDULER, Scene
from tests.waiting import eventually

_numbers = itertools.count(1)
HOLDER = "pod_0b0a2f0e"
LISTING = {
    "apiGroups": ["", "policy"],
    "resources": ["pods", "poddisruptionbudgets"],
    "verbs": ["list"],
}


def _address() -> str:
    """An address of this machine other than loopback: the API server does not proxy to loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no route, so no address that an API server proxies to")
        return str(probe.getsockname()[0])


class Environment:
    """A namespace with the Service of the scheduler, a pod, and the accounts of callers. `scene`:
    the state of the scheduler."""

    def __init__(self, api: ApiServer, folder: Path, port: int, scene: Scene) -> None:
        self.api, self.folder, self.scene = api, folder, scene
        self.name = f"explain-{next(_numbers)}"
        api.namespace(self.name)
        path = f"/api/v1/namespaces/{self.name}"
        ports = [{"name": "http", "port": port, "protocol": "TCP"}]
        service = {"metadata": {"name": "topolet-scheduler"}, "spec": {"ports": ports}}
        api.create(f"{path}/services", service)
        api.default_account(self.name)
        address = _address()
        backend = api.pod(self.name, "scheduler", "nowhere")["metadata"]["uid"]
        addresses = {"podIP": address, "podIPs": [{"ip": address}]}
        api.admin.merge(f"{path}/pods/scheduler/status", {"status": addresses})
        # The API server proxies only to addresses of pods.
        target = {"kind": "Pod", "namespace": self.name, "name": "scheduler", "uid": backend}
        subsets = [{"addresses": [{"ip": address, "targetRef": target}], "ports": ports}]
        of_service = {"metadata": {"name": "topolet-scheduler"}, "subsets": subsets}
        api.create(f"{path}/endpoints", of_service)
        leases = f"/apis/coordination.k8s.io/v1/namespaces/{self.name}/leases"
        spec = {"holderIdentity": HOLDER}
        api.create(leases, {"metadata": {"name": "topolet-scheduler"}, "spec": spec})
        self.create_pending("p", 40)

    def create_pending(self, name: str, cpus: int, claim: str = "") -> None:
        """Creates a pod without a node that requests exclusive CPUs, and uses this claim."""
        body = owner(cpus, 8).pod(name)
        body["metadata"] = {
            key: value
            for key, value in body["metadata"].items()
            if key in ("name", "labels", "annotations")
        }
        body["spec"]["automountServiceAccountToken"] = False
        del body["spec"]["nodeName"], body["spec"]["priority"], body["status"]
        if claim:
            body["spec"]["resourceClaims"] = [{"name": "cpus", "resourceClaimName": claim}]
            body["spec"]["containers"][0]["resources"]["claims"] = [{"name": "cpus"}]
        self.api.create(f"/api/v1/namespaces/{self.name}/pods", body)

    def create_victim(self, namespace: str, name: str, cpus: str) -> None:
        """Creates a pod with these CPUs of node c, and a budget that protects it."""
        path = f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets"
        spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": name}}}
        made = self.api.create(path, {"metadata": {"name": name}, "spec": spec})
        selector, uid = LabelSelector({"app": name}), made["metadata"]["uid"]
        self.scene.add_budget(namespace, name, Budget(namespace, name, selector, uid=uid))
        made = self.api.pod(namespace, name, "c", labels={"app": name})
        body = owner(8, 8).pod(name, node="c", uid=made["metadata"]["uid"])
        body["metadata"]["namespace"] = namespace
        body["metadata"]["labels"]["app"] = name
        body["metadata"]["annotations"][RESOURCE_STATUS] = json.dumps({"cpuset": cpus})
        body["spec"]["priority"] = -1
        self.scene.report_pod(body)

    def may_list(self, account: str) -> None:
        """Allows an account to list pods and budgets of the namespace."""
        rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{self.name}"
        self.api.create(f"{rbac}/roles", {"metadata": {"name": account}, "rules": [LISTING]})
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": account}
        subject = {"kind": "ServiceAccount", "name": account, "namespace": self.name}
        bound = {"metadata": {"name": account}, "roleRef": role, "subjects": [subject]}
        self.api.create(f"{rbac}/rolebindings", bound)

    def caller(
        self, name: str, *, pods: bool, proxy: bool, lists: bool = False, claims: bool = False
    ) -> str:
        """Creates an account with these permissions in all namespaces. Returns its kubeconfig
        option."""
        rules = []
        if pods:
            rules.append({"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]})
        if proxy:
            rules += ROLE["rules"]
        if lists:
            rules.append(LISTING)
        if claims:
            group = {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"]}
            rules.append({**group, "verbs": ["get"]})
        self.api.account(self.name, name, rules)
        path = self.folder / f"{name}.kubeconfig"
        path.write_text(json.dumps(self.api.kubeconfig(self.api.token(self.name, name))))
        return f"--kubeconfig={path}"

    def explain(self, *words: str) -> int:
        return main(["explain", "-n", self.name, f"--release-namespace={self.name}", *words])


def _role() -> dict[str, Any]:
    """The role of callers in the scheduler overlay."""
    found = (each for each in manifests("overlays/scheduler") if each["kind"] == "Role")
    return next(each for each in found if each["metadata"]["name"] == "topolet-scheduler-explain")


ROLE = _role()


@pytest.fixture
def env(apiserver: ApiServer, tmp_path: Path) -> Iterator[Environment]:
    scene = Scene(a=SMALL, c=CARDS)
    explainer = Explainer(scene.cluster, SCHEDULER, budgets=scene.budgets)
    explain = endpoint.route(explainer, lambda: None, HOLDER)
    server = HttpServer(
        "0.0.0.0:0", {endpoint.PATH: explain}, process.PAGE_LIMITS, NodeAddresses(frozenset())
    )
    server.start()
    it = Environment(apiserver, tmp_path, server.port, scene)
    path = f"/api/v1/namespaces/{it.name}/services/topolet-scheduler:http/proxy/"

    def proxied() -> bool:
        try:
            apiserver.admin.get(path)
        except KubeError as error:
            return "no such path" in str(error)
        return True

    eventually("the Service has an endpoint", proxied)
    yield it
    server.close()


def test_a_caller_with_the_permissions_gets_the_explanation(
    env: Environment, capsys: pytest.CaptureFixture[str]
) -> None:
    allowed = env.caller("allowed", pods=True, proxy=True)
    assert env.explain("p", allowed) == 0
    output = capsys.readouterr().out
    assert output.startswith(f"Pod {env.name}/p: only node c has room, of 2.\n")
    assert env.explain("p", allowed, "--what-if-drained=c", "-o", "json") == 1
    (found,) = json.loads(capsys.readouterr().out)["explanations"]
    assert (found["drained"], found["winner"]) == (["c"], "")


def test_a_caller_who_may_not_read_the_pod_gets_no_explanation(
    env: Environment, capsys: pytest.CaptureFixture[str]
) -> None:
    assert env.explain("p", env.caller("blind", pods=False, proxy=True)) == 2
    error = capsys.readouterr().err
    assert "get pods" in error
    assert env.explain("q", env.caller("mistaken", pods=True, proxy=True)) == 2
    assert '"q" not found' in capsys.readouterr().err


def test_the_cpus_of_claims_are_named_for_callers_who_may_read_them(
    env: Environment, capsys: pytest.CaptureFixture[str]
) -> None:
    path = f"/apis/resource.k8s.io/v1/namespaces/{env.name}/resourceclaims"
    request = {"name": "cpus", "exactly": {"deviceClassName": DRIVER}}
    spec = {"devices": {"requests": [request]}}
    env.api.create(path, {"metadata": {"name": "eight"}, "spec": spec})
    names = {"driver": DRIVER, "pool": "a", "device": "numa-node-0"}
    status = {
        "allocation": {"devices": {"results": [{"request": "cpus", **names}]}},
        "devices": [{**names, "data": {"cpus": "0-7"}}],
    }
    env.create_pending("q", 8, "eight")
    claim = f"claim {env.name}/eight"
    reader = env.caller("reader", pods=True, proxy=True, claims=True)
    for part in ({}, status):
        env.api.admin.merge(f"{path}/eight/status", {"status": part})
        assert env.explain("q", reader) == 0
        says = f"{claim}: device numa-node-0 of node a, CPUs 0-7, ready"
        assert (says if part else f"{claim} is not allocated yet") in capsys.readouterr().out
    assert env.explain("q", env.caller("blind", pods=True, proxy=True)) == 0
    assert f"{claim} can't be read: " in capsys.readouterr().out


def test_a_caller_without_the_role_does_not_reach_the_scheduler(
    env: Environment, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert env.explain("p", env.caller("without-proxy", pods=True, proxy=False)) == 2
    assert "get leases" in capsys.readouterr().err
    monkeypatch.setattr(endpoint, "_lease_holder", lambda *_: "")
    assert env.explain("p", env.caller("other", pods=True, proxy=False)) == 2
    assert "create services/proxy" in capsys.readouterr().err


def test_a_caller_who_does_not_read_the_lease_gets_no_explanation(
    env: Environment, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a pod that calls the port of the scheduler directly."""
    allowed = env.caller("allowed", pods=True, proxy=True)
    monkeypatch.setattr(endpoint, "_lease_holder", lambda *_: "")
    assert env.explain("p", allowed) == 2
    assert "holder of the leader's Lease" in capsys.readouterr().err


def test_victims_and_budgets_are_named_for_callers_who_may_read_them(
    env: Environment, capsys: pytest.CaptureFixture[str]
) -> None:
    """One caller may list the namespace of the pod, another no namespace, and the third all."""
    other = f"{env.name}-other"
    env.api.namespace(other)
    env.api.default_account(other)
    env.create_victim(env.name, "near", "0-59")
    env.create_victim(other, "far", "60-95")
    env.create_pending("q", 70)
    reader = env.caller("reader", pods=True, proxy=True)
    env.may_list("reader")
    blind = env.caller("blind", pods=True, proxy=True)

    assert env.explain("q", reader) == 1
    output = " ".join(capsys.readouterr().out.split())
    eviction_text = "The eviction of 2 pods of lower priority would make room"
    assert f"{eviction_text}: {env.name}/near, 1 other." in output
    assert "2 PodDisruptionBudgets protect 2 of the 2 pods whose eviction would make room" in output
    assert f"PodDisruptionBudget {env.name}/near: spec" in output
    assert "PodDisruptionBudget: spec" in output
    assert "far" not in output

    assert env.explain("q", blind) == 1
    output = " ".join(capsys.readouterr().out.split())
    assert f"{eviction_text}. " in output
    assert "2 PodDisruptionBudgets protect 2 of the 2 pods" in output
    assert "near" not in output
    assert "far" not in output

    assert env.explain("q", blind, "-o", "json") == 1
    text = capsys.readouterr().out
    assert "#" not in text
    assert "far" not in text
    everywhere = env.caller("everywhere", pods=True, proxy=True, lists=True)
    assert env.explain("q", everywhere, "-o", "json") == 1
    (found,) = json.loads(capsys.readouterr().out)["explanations"]
    (eviction,) = (each["eviction"] for each in found["nodes"] if each["eviction"])
    assert (eviction["pods"], eviction["protecting"]) == (2, 2)
    both = {f"{env.name}/near", f"{other}/far"}
    assert set(eviction["victims"]) == set(eviction["budgets"]) == both
