"""The manifests are installed and removed on a real API server; other pods are not affected.

Controllers of Kubernetes delete the contents of a namespace. No Deployment runs, so every webhook
is down.
"""

from __future__ import annotations

import contextlib
import functools
import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.deploy.api import Api, RefusedError, Who, path_of
from tests.deploy.manifests import DEPLOY, account, kustomization, kustomized_folder
from tests.integration import deployed, other_pods
from tests.integration.apiserver import server as apiservers
from tests.integration.apiserver.commands import Kubectl, controllers
from tests.integration.apiserver.server import ApiServer
from tests.integration.other_pods import OtherPods
from tests.waiting import eventually

Object = dict[str, Any]

PLAIN, LABELLED = "plain", "labelled"
NAMESPACE = "topolet-system"
CPUS = {"scheduling.koordinator.sh/resource-status": '{"cpuset":"0-3"}'}
ALICE = Who()
KOORDINATOR = "system:serviceaccount:koordinator-system:koord-scheduler"

NOT_FOUND = 404
DELETION_SECONDS = deployed.DELETION_SECONDS

pytestmark = pytest.mark.timeout(900)

OVERLAYS = ("scheduler", "webhook")
"""Together they have all objects."""


class Cluster:
    """A server with controllers, kubectl, and namespaces without and with Topolet's label."""

    def __init__(self, server: ApiServer, api: Api) -> None:
        self.api = api
        self.server = server
        self.home = server.folder
        self.kubectl = Kubectl(server)
        self._other_pods_api = deployed.administrator(server, "other-pods", other_pods.HANG_SECONDS)

    def folder(self, name: str) -> Path:
        """A folder below deploy/, as it is applied to this server."""
        return deployed.folder(self.server, name, self.home)

    def apply(self, *folders: Path) -> None:
        """Applies the folders by kubectl; retries while a namespace is being deleted."""
        for each in folders:
            eventually(f"{each.name} is applied", partial(self._applied, each), DELETION_SECONDS)

    def _applied(self, folder: Path) -> bool:
        words = ("apply", "--server-side", "--force-conflicts", "-k", str(folder))
        ended = self.kubectl.attempt(*words)
        assert ended.returncode == 0 or "being terminated" in ended.stderr, ended.stderr
        return ended.returncode == 0

    def delete(self, *words: str) -> None:
        deployed.delete(self.kubectl, *words)

    def apply_each(self, bodies: list[Object]) -> None:
        """Applies the objects without kubectl."""
        for each in bodies:
            eventually(
                f"{path_of(each)} is applied", partial(self._applied_one, each), DELETION_SECONDS
            )

    def _applied_one(self, body: Object) -> bool:
        """Does not apply an object that is being deleted: it would be deleted all the same."""
        if self._state(body) == "deleting":
            time.sleep(0.1)
            return False
        return deployed.applied(self.api, body) and self._state(body) == "stays"

    def _state(self, body: Object) -> str:
        try:
            found = self.api.request("GET", path_of(body))
        except RefusedError as refused:
            if refused.code != NOT_FOUND:
                raise
            return "deleted"
        return "deleting" if "deletionTimestamp" in found["metadata"] else "stays"

    def delete_each(self, bodies: list[Object]) -> None:
        """Deletes the existing objects; returns before they are deleted."""
        for each in bodies:
            try:
                self.api.request("DELETE", path_of(each))
            except RefusedError as refused:
                if refused.code != NOT_FOUND:
                    raise

    def remove_each(self, bodies: list[Object]) -> None:
        """Deletes the objects; returns when all are deleted."""
        self.delete_each(bodies)
        for each in bodies:
            eventually(
                f"{path_of(each)} is deleted",
                lambda it=each: self._state(it) == "deleted",
                DELETION_SECONDS,
            )

    def wait_for_policies(self, namespace: str) -> None:
        """Waits until the policies apply, with the accounts of that namespace."""
        scheduler = Who(account(namespace, "topolet-scheduler"))
        eventually("alice is refused", lambda: self.refuses(ALICE))
        eventually("the scheduler is trusted", lambda: not self.refuses(scheduler))

    def remove(self) -> None:
        """Deletes all objects of the overlays."""
        for each in OVERLAYS:
            self.delete("-k", str(self.folder(f"overlays/{each}")))

    @contextlib.contextmanager
    def with_other_pods(self, remove: Callable[[], None]) -> Iterator[OtherPods]:
        """Pods without Topolet's keys start and end from before the first manifest until after the
        last one is removed by `remove`."""
        with OtherPods(self._other_pods_api, PLAIN, LABELLED) as made:
            made.wait_for_rounds()
            usual = made.median_seconds()
            yield made
            remove()
            made.wait_for_rounds()
            assert made.median_seconds() < usual + other_pods.HANG_SECONDS

    def refuses(self, who: Who) -> bool:
        """Whether the policies refuse to set a pod's CPUs."""
        body = other_pods.pod("claims")
        body["metadata"]["annotations"] = CPUS
        return self._refuses(f"{PLAIN}/pods", body, who, "may not set")

    def refuses_binding(self, who: Who) -> bool:
        """Whether the policies refuse a Binding in the labelled namespace."""
        return self._refuses(
            f"{LABELLED}/pods/free/binding", other_pods.binding("free"), who, "may not bind"
        )

    def _refuses(self, place: str, body: Object, who: Who, message: str) -> bool:
        path = f"/api/v1/namespaces/{place}?dryRun=All"
        try:
            self.api.request("POST", path, body, who)
        except RefusedError as refused:
            if message not in str(refused):
                raise
            return True
        return False


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A separate server, because other tests cannot use a damaged one."""
    with apiservers.running(tmp_path_factory.mktemp("reinstall")) as server:
        api = deployed.administrator(server, "administrator")
        server.node(other_pods.NODE)
        for name, labels in ((PLAIN, {}), (LABELLED, {"topolet.io/gpu-scheduling": "enabled"})):
            server.create("/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
        with controllers(server, "namespace-controller", "serviceaccount-controller"):
            for name in (PLAIN, LABELLED):
                path = f"/api/v1/namespaces/{name}/serviceaccounts/default"
                eventually("the default account exists", partial(deployed.exists, api, path))
            api.apply(
                {**other_pods.pod("free"), "metadata": {"name": "free", "namespace": LABELLED}}
            )
            yield Cluster(server, api)


@pytest.fixture
def running_pods(cluster: Cluster) -> Iterator[OtherPods]:
    with cluster.with_other_pods(cluster.remove) as made:
        yield made


@pytest.mark.long
def test_a_reinstalled_overlay_does_not_affect_pods(
    cluster: Cluster, running_pods: OtherPods
) -> None:
    folder = cluster.folder("overlays/scheduler")
    for _ in range(3):
        cluster.apply(folder)
        running_pods.wait_for_rounds()
        cluster.wait_for_policies(NAMESPACE)
        cluster.delete("-k", str(folder))
        running_pods.wait_for_rounds()
    cluster.apply(folder)
    cluster.wait_for_policies(NAMESPACE)
    running_pods.wait_for_rounds()


def test_definitions_that_others_use_stay(cluster: Cluster, running_pods: OtherPods) -> None:
    """By the command of docs/install.md."""
    folder = cluster.folder("overlays/scheduler")
    cluster.apply(folder)
    cluster.delete("-k", str(folder), "-l", "topolet.io/shared!=true")
    running_pods.wait_for_rounds()
    left = cluster.kubectl("get", "crd", "-o", "name").split()
    assert [each.partition("/")[2] for each in left] == [
        "devices.scheduling.koordinator.sh",
        "noderesourcetopologies.topology.node.k8s.io",
    ]


def part(body: Object) -> str:
    """The part to which the object belongs."""
    kind, name = body["kind"], body["metadata"]["name"]
    if kind in ("Namespace", "CustomResourceDefinition", "ValidatingWebhookConfiguration"):
        return str(kind)
    if kind.endswith(("AdmissionPolicy", "AdmissionPolicyBinding")):
        return str(kind).removeprefix("Validating").removeprefix("Mutating")
    return next(of for word, of in _PARTS_BY_WORD.items() if word in name)


_PARTS_BY_WORD = {
    "agent": "agent",
    "scheduler": "scheduler",
    "webhook": "webhook",
    "rebind": "scheduler",
}


@functools.cache
def all_parts(cluster: Cluster) -> dict[str, list[Object]]:
    folders = [cluster.folder(f"overlays/{each}") for each in OVERLAYS]
    bodies = [body for each in folders for body in kustomized_folder(each, cluster.home)]
    found: dict[str, list[Object]] = {}
    for each in {path_of(body): body for body in bodies}.values():
        found.setdefault(part(each), []).append(each)
    assert sorted(found) == PARTS
    return found


PARTS = [
    "AdmissionPolicy",
    "AdmissionPolicyBinding",
    "CustomResourceDefinition",
    "Namespace",
    "ValidatingWebhookConfiguration",
    "agent",
    "scheduler",
    "webhook",
]


@pytest.mark.long
@settings(max_examples=4, phases=[Phase.explicit, Phase.generate], derandomize=True)
@given(order=st.permutations(PARTS))
def test_components_are_removed_in_any_order(cluster: Cluster, order: list[str]) -> None:
    """A namespace is still being deleted while the next components are."""
    parts = all_parts(cluster)
    everything = [body for each in sorted(parts) for body in parts[each]]
    with cluster.with_other_pods(partial(cluster.remove_each, everything)) as running_pods:
        cluster.apply_each(everything)
        cluster.wait_for_policies(NAMESPACE)
        for each in order:
            cluster.delete_each(parts[each])
            running_pods.wait_for_rounds(1)
        cluster.apply_each(everything)
        cluster.wait_for_policies(NAMESPACE)
        running_pods.wait_for_rounds()


def test_in_another_namespace_the_policies_use_its_accounts(
    cluster: Cluster, running_pods: OtherPods, tmp_path: Path
) -> None:
    policy = {"name": "topolet-policy", "namespace": NAMESPACE}
    data = {"allocators": f"{KOORDINATOR}\n"}
    patch = yaml.safe_dump(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": policy, "data": data}
    )
    for each in OVERLAYS:
        mine = kustomization(
            tmp_path,
            f"overlays/{each}",
            deployed.components(cluster.server),
            namespace="elsewhere",
            patches=[{"patch": patch}],
        )
        cluster.apply(mine)
        cluster.wait_for_policies("elsewhere")
        there, here = (Who(account(each, "topolet-scheduler")) for each in ("elsewhere", NAMESPACE))
        assert cluster.refuses(here)
        assert not cluster.refuses(Who(KOORDINATOR))
        assert not cluster.refuses_binding(there)
        assert not cluster.refuses_binding(other_pods.SCHEDULER)
    cluster.delete("namespace", "elsewhere")
    running_pods.wait_for_rounds()
    assert cluster.refuses(ALICE)


def test_before_1_36_kubectl_names_the_kinds_it_skips(cluster: Cluster) -> None:
    """Without the component for such servers, kubectl applies everything else."""
    if deployed.serves_mutating_policies(cluster.server):
        pytest.skip("this kube-apiserver serves all kinds of the manifests")
    folder = DEPLOY / "overlays" / "scheduler"
    with cluster.with_other_pods(cluster.remove) as running_pods:
        ended = cluster.kubectl.attempt("apply", "--server-side", "-k", str(folder))
        assert ended.returncode == 1
        kinds = ["MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"]
        assert re.findall(r'no matches for kind "(\w+)"', ended.stderr) == kinds
        cluster.wait_for_policies(NAMESPACE)
        path = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/topolet-agent"
        assert deployed.exists(cluster.api, path)
        cluster.apply(cluster.folder("overlays/scheduler"))
        running_pods.wait_for_rounds()
