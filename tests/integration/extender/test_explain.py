"""`topolet explain` through the proxy of a real API server, with the caller's own rights."""

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
from agent.scheduler import process
from agent.scheduler.explain import endpoint
from agent.scheduler.explain.explainer import Explainer
from tests.deploy.manifests import objects as manifests
from tests.fixtures.fleet import CARDS, SMALL, owner
from tests.integration.apiserver.server import ApiServer
from tests.scheduler.explain.scenes import SCHEDULER, Scene
from tests.waiting import eventually

_numbers = itertools.count(1)


def _address() -> str:
    """An address of this machine that is not the loopback's, which the API server does not
    proxy to."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no route, so no address that an API server proxies to")
        return str(probe.getsockname()[0])


class Place:
    """A namespace with the scheduler's Service and a pod, and the accounts of callers in it."""

    def __init__(self, api: ApiServer, folder: Path, port: int) -> None:
        self.api, self.folder = api, folder
        self.name = f"explain-{next(_numbers)}"
        api.namespace(self.name)
        path = f"/api/v1/namespaces/{self.name}"
        ports = [{"name": "http", "port": port, "protocol": "TCP"}]
        service = {"metadata": {"name": "topolet-scheduler"}, "spec": {"ports": ports}}
        api.create(f"{path}/services", service)
        api.create(f"{path}/serviceaccounts", {"metadata": {"name": "default"}})
        address = _address()
        backend = api.pod(self.name, "scheduler", "nowhere")["metadata"]["uid"]
        addresses = {"podIP": address, "podIPs": [{"ip": address}]}
        api.admin.merge(f"{path}/pods/scheduler/status", {"status": addresses})
        # The API server proxies only to addresses of pods.
        target = {"kind": "Pod", "namespace": self.name, "name": "scheduler", "uid": backend}
        subsets = [{"addresses": [{"ip": address, "targetRef": target}], "ports": ports}]
        of_service = {"metadata": {"name": "topolet-scheduler"}, "subsets": subsets}
        api.create(f"{path}/endpoints", of_service)
        body = owner(40, 8).pod("p")
        body["metadata"] = {
            key: value
            for key, value in body["metadata"].items()
            if key in ("name", "labels", "annotations")
        }
        body["spec"]["automountServiceAccountToken"] = False
        del body["spec"]["nodeName"], body["spec"]["priority"], body["status"]
        api.create(f"{path}/pods", body)

    def caller(self, name: str, *, pods: bool, proxy: bool) -> str:
        """The option with the kubeconfig of an account with these rights."""
        rules = []
        if pods:
            rules.append({"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]})
        if proxy:
            rules += ROLE["rules"]
        self.api.account(self.name, name, rules)
        user = {"token": self.api.token(self.name, name)}
        cluster = {
            "server": self.api.url,
            "certificate-authority": str(self.api.folder / "ca.crt"),
        }
        config = {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": user}],
        }
        path = self.folder / f"{name}.kubeconfig"
        path.write_text(json.dumps(config))
        return f"--kubeconfig={path}"

    def explain(self, *words: str) -> int:
        return main(["explain", "-n", self.name, f"--scheduler-namespace={self.name}", *words])


def _role() -> dict[str, Any]:
    """The role of callers in the overlay."""
    found = (each for each in manifests("overlays/scheduler") if each["kind"] == "Role")
    return next(each for each in found if each["metadata"]["name"] == "topolet-scheduler-explain")


ROLE = _role()


@pytest.fixture
def place(apiserver: ApiServer, tmp_path: Path) -> Iterator[Place]:
    scene = Scene(a=SMALL, c=CARDS)
    explain = endpoint.route(Explainer(scene.cluster, SCHEDULER), lambda: None)
    server = HttpServer(
        "0.0.0.0:0", {endpoint.PATH: explain}, process.PAGE_LIMITS, NodeAddresses(frozenset())
    )
    server.start()
    it = Place(apiserver, tmp_path, server.port)
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


def test_a_caller_with_the_rights_gets_the_explanation(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    allowed = place.caller("allowed", pods=True, proxy=True)
    assert place.explain("p", allowed) == 0
    told = capsys.readouterr().out
    assert told.startswith(f"Pod {place.name}/p: node c is the best of 1 of 2 nodes.\n")
    assert place.explain("p", allowed, "--what-if-drained=c", "-o", "json") == 1
    (found,) = json.loads(capsys.readouterr().out)["explanations"]
    assert (found["drained"], found["winner"]) == (["c"], "")


def test_a_caller_who_may_not_read_the_pod_gets_none(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    assert place.explain("p", place.caller("blind", pods=False, proxy=True)) == 2
    error = capsys.readouterr().err
    assert "get pods" in error
    assert place.explain("q", place.caller("mistaken", pods=True, proxy=True)) == 2
    assert '"q" not found' in capsys.readouterr().err


def test_a_caller_without_the_role_does_not_reach_the_scheduler(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    assert place.explain("p", place.caller("stranger", pods=True, proxy=False)) == 2
    assert "create services/proxy" in capsys.readouterr().err
