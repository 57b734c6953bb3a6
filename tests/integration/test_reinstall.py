"""The manifests are installed and removed on a real API server; other pods are not affected.

Controllers of Kubernetes delete the contents of a namespace. No Deployment runs, so every webhook
is down.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.deploy.api import Api, RefusedError, path_of
from tests.deploy.manifests import kustomized_folder
from tests.integration import deployed, helmcluster, other_pods
from tests.integration.apiserver.server import ApiServer
from tests.integration.helmcluster import PLAIN
from tests.integration.other_pods import OtherPods
from tests.waiting import eventually

Object = dict[str, Any]

LABELLED = "labelled"
NOT_FOUND = 404
DELETION_SECONDS = deployed.DELETION_SECONDS

pytestmark = pytest.mark.timeout(900)

OVERLAYS = ("scheduler", "webhook")
"""Together they have all objects."""


class Cluster(helmcluster.Cluster):
    """It has namespaces without and with Topolet's label."""

    def __init__(self, server: ApiServer, api: Api) -> None:
        super().__init__(server, api)
        self._other_pods_api = deployed.administrator(server, "other-pods", other_pods.HANG_SECONDS)

    def folder(self, name: str) -> Path:
        """A folder below deploy/, as it is applied to this server."""
        return deployed.folder(self.server, name, self.server.folder)

    def apply(self, folder: Path) -> None:
        """Applies the folder by kubectl; retries while a namespace is being deleted."""
        eventually(f"{folder.name} is applied", partial(self._applied, folder), DELETION_SECONDS)

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

    def wait_for_policies(self) -> None:
        eventually("the policies are in force", self.policies_refuse)

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


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A separate server, because other tests cannot use a damaged one."""
    folder = tmp_path_factory.mktemp("reinstall")
    with helmcluster.running(folder, namespaces=(PLAIN, LABELLED)) as it:
        it.server.node(other_pods.NODE)
        it.api.namespace(LABELLED, **{"topolet.io/gpu-scheduling": "enabled"})
        yield Cluster(it.server, it.api)


def test_definitions_that_others_use_stay(cluster: Cluster) -> None:
    """By the command of docs/install.md."""
    folder = cluster.folder("overlays/scheduler")
    with cluster.with_other_pods(cluster.remove) as running_pods:
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
    bodies = [body for each in folders for body in kustomized_folder(each, cluster.server.folder)]
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
        cluster.wait_for_policies()
        for each in order:
            cluster.delete_each(parts[each])
            running_pods.wait_for_rounds(1)
        cluster.apply_each(everything)
        cluster.wait_for_policies()
        running_pods.wait_for_rounds()
