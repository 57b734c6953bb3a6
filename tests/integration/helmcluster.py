"""An API server with controllers, on which Helm installs the chart."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from tests.deploy import chart
from tests.deploy.api import Api, RefusedError, Who
from tests.integration import deployed, other_pods
from tests.integration.apiserver import server as apiservers
from tests.integration.apiserver.commands import Kubectl, controllers, kubeconfig
from tests.integration.apiserver.server import ApiServer
from tests.waiting import eventually

Object = dict[str, Any]

NAMESPACE = chart.NAMESPACE
PLAIN = "plain"
DEFINITIONS = "apis/apiextensions.k8s.io/v1/customresourcedefinitions"
DEVICES = "devices.scheduling.koordinator.sh"
TOPOLOGIES = "noderesourcetopologies.topology.node.k8s.io"
REBINDS = "rebindresources.scheduling.koordinator.sh"
CPUS = {"scheduling.koordinator.sh/resource-status": '{"cpuset":"0-3"}'}
KINDS = (
    "namespaces,serviceaccounts,configmaps,secrets,services,daemonsets,deployments,"
    "poddisruptionbudgets,networkpolicies,roles,rolebindings,clusterroles,clusterrolebindings,"
    "customresourcedefinitions,validatingadmissionpolicies,validatingadmissionpolicybindings,"
    "validatingwebhookconfigurations,mutatingwebhookconfigurations,priorityclasses,jobs"
)


class Cluster:
    """An API server with controllers, Helm and kubectl. `program`: the Helm to use."""

    def __init__(self, server: ApiServer, api: Api, program: Path | None = None) -> None:
        self.server = server
        self.program = program
        self.api = api
        self.kubectl = Kubectl(server)
        self._config = kubeconfig(server)
        self.chart = str(server.folder / "chart")
        if not Path(self.chart).exists():
            chart.for_any_version(server.folder)

    def helm(self, *words: str, values: Object | None = None) -> str:
        ended = self.attempt(*words, values=values)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    def attempt(
        self, *words: str, values: Object | None = None
    ) -> subprocess.CompletedProcess[str]:
        connection = (f"--kubeconfig={self._config}", f"--namespace={NAMESPACE}")
        arguments = (*words, *connection)
        return chart.attempt(self.server.folder, *arguments, values=values, program=self.program)

    def install(self, values: Object, *more: str) -> str:
        """Installs or upgrades the release, by the command of docs/install.md."""
        words = ("upgrade", "--install", *more)
        # Nothing runs the Jobs of a cluster whose nodes have no kubelet.
        given = {"preflight": {"nodesPerPool": 0}, **values}
        return self.helm(*words, "topolet", self.chart, values=given)

    def uninstall(self, *more: str) -> None:
        """Uninstalls the release without its hooks, which would run on nodes."""
        self.helm("uninstall", "topolet", "--wait", "--no-hooks", *more)

    def objects(self) -> dict[str, Object]:
        """All objects of the chart's kinds, without the fields that the server adds."""
        kinds = KINDS
        if deployed.serves_mutating_policies(self.server):
            kinds += ",mutatingadmissionpolicies,mutatingadmissionpolicybindings"
        listed = yaml.safe_load(self.kubectl("get", kinds, "-A", "-o", "json"))["items"]
        return {name_of(each): _content(each) for each in listed}

    def definition(self, name: str) -> Object:
        return self.api.request("GET", f"/{DEFINITIONS}/{name}")

    def policies_refuse(self) -> bool:
        """Whether the policies refuse a user's pod with the annotation resource-status."""
        body = other_pods.pod("claims")
        body["metadata"]["annotations"] = CPUS
        try:
            self.api.request("POST", f"/api/v1/namespaces/{PLAIN}/pods?dryRun=All", body, Who())
        except RefusedError as refused:
            if "may not set" not in str(refused):
                raise
            return True
        return False

    def delete_definitions(self) -> None:
        deployed.delete(self.kubectl, "crd", DEVICES, TOPOLOGIES, REBINDS)


@contextlib.contextmanager
def running(
    folder: Path, *more_controllers: str, namespaces: Sequence[str] = (NAMESPACE, PLAIN)
) -> Iterator[Cluster]:
    """A server whose namespaces have default accounts, with further controllers. Skips the test
    without Helm."""
    chart.helm()
    names = ("namespace-controller", "serviceaccount-controller", *more_controllers)
    with apiservers.running(folder) as started:
        api = deployed.administrator(started, "administrator")
        with controllers(started, *names):
            for name in namespaces:
                started.namespace(name)
                wait_for_account(api, name)
            yield Cluster(started, api)


def wait_for_account(api: Api, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/default"
    eventually("the default account exists", partial(deployed.exists, api, path))


def name_of(body: Object) -> str:
    metadata = body["metadata"]
    return f"{body['kind']}/{metadata.get('namespace', '')}/{metadata['name']}"


def _content(body: Object) -> Object:
    metadata = {
        key: body["metadata"].get(key) or {} for key in ("labels", "annotations", "ownerReferences")
    }
    metadata["annotations"].pop("deprecated.daemonset.template.generation", None)
    rest = {key: each for key, each in body.items() if key not in ("metadata", "status")}
    if body["kind"] == "Service":
        addresses = ("clusterIP", "clusterIPs")
        rest["spec"] = {key: each for key, each in body["spec"].items() if key not in addresses}
    return {"metadata": metadata, **rest}
