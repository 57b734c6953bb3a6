"""The manifests on the API server of the tests."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from agent.kube.errors import ForbiddenError
from tests.deploy.api import Api, RefusedError
from tests.deploy.manifests import DEPLOY, kustomization
from tests.integration.apiserver.cluster import Kubectl
from tests.integration.apiserver.server import ApiServer
from tests.waiting import eventually

Object = dict[str, Any]

EVERYTHING_ALLOWED = [
    {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]},
    {"nonResourceURLs": ["*"], "verbs": ["*"]},
]

_NOT_YET = (404, 429)
"""Errors of a new kind: first it is unknown, then its storage is not ready."""

GONE_SECONDS = 420.0
"""The API server tries to remove a CustomResourceDefinition for a minute, and then once more after
a pause (apiextensions-apiserver, pkg/controller/finalizer): two minutes were seen. Where its own
update of the condition Terminating meets an older copy in its cache, it drops the deletion until it
lists all definitions again, or until somebody else changes the definition."""

_ATTEMPT_SECONDS = 60.0


def delete(kubectl: Kubectl, *words: str) -> None:
    """By `kubectl delete`. Changes each CustomResourceDefinition that stays for a minute, and waits
    again."""
    eventually(f"{' '.join(words)} is deleted", partial(_deleted, kubectl, *words), GONE_SECONDS)


def _deleted(kubectl: Kubectl, *words: str) -> bool:
    timeout = f"--timeout={_ATTEMPT_SECONDS:.0f}s"
    ended = kubectl.attempt("delete", "--ignore-not-found", timeout, *words)
    kept = re.findall(r"customresourcedefinitions/(\S+)", ended.stderr)
    assert ended.returncode == 0 or kept, ended.stderr
    for name in kept:
        changed = f"deletion-tried={time.time():.0f}"
        kubectl.attempt("annotate", "--overwrite", "crd", name, changed)
    return ended.returncode == 0


def administrator(server: ApiServer, name: str, timeout_seconds: float = 60.0) -> Api:
    """A new account that may do everything, and may impersonate others."""
    server.account("kube-system", name, EVERYTHING_ALLOWED)
    token = server.token("kube-system", name)
    return Api(server.url, token, str(server.folder / "ca.crt"), timeout_seconds)


def changes_pods(server: ApiServer) -> bool:
    """Whether it serves mutating admission policies: from Kubernetes 1.36 on."""
    return server.serves("admissionregistration.k8s.io/v1", "MutatingAdmissionPolicy")


def components(server: ApiServer) -> tuple[str, ...]:
    """The resources of this server's kustomization in addition to those in deploy/."""
    return () if changes_pods(server) else ("before-1.36",)


def folder(server: ApiServer, name: str, user: Path) -> Path:
    """A folder below deploy/, as it is applied to this server: for an older one through a
    kustomization in the user's folder."""
    chosen = components(server)
    if not chosen:
        return DEPLOY / name
    made = user / f"my-{Path(name).name}"
    return made if made.exists() else kustomization(user, name, chosen)


def served(server: ApiServer, bodies: Iterable[Object]) -> list[Object]:
    """The objects of kinds that this server has."""
    everything = changes_pods(server)
    return [
        each
        for each in bodies
        if everything or not each["kind"].startswith("MutatingAdmissionPolicy")
    ]


def apply(api: Api, bodies: Iterable[Object]) -> None:
    """Applies the objects in order; waits if the server does not serve a kind yet."""
    for each in bodies:
        eventually(f"{each['kind']} served", partial(applied, api, each))


def applied(api: Api, body: Object) -> bool:
    """False while the server does not serve the kind."""
    try:
        api.apply(body)
    except RefusedError as refused:
        if refused.code not in _NOT_YET:
            raise
        return False
    return True


def lift_policies(server: ApiServer) -> None:
    """The next tests on this server know of none; it hears of that by a watch of its own."""
    path = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
    for each in json.loads(server.admin.get(path))["items"]:
        server.admin.delete(f"{path}/{each['metadata']['name']}")
    account = {"name": "default", "namespace": "default"}
    server.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})
    allocated = {"scheduling.koordinator.sh/resource-status": '{"cpuset": "1"}'}
    body = {
        "metadata": {"name": "lifted", "annotations": allocated},
        "spec": {
            "nodeName": "none",
            "automountServiceAccountToken": False,
            "containers": [{"name": "c", "image": "none"}],
        },
    }

    def allowed() -> bool:
        try:
            server.create("/api/v1/namespaces/default/pods?dryRun=All", body)
        except ForbiddenError:
            return False
        return True

    eventually("policies are lifted", allowed)


def there(api: Api, path: str) -> bool:
    """Whether the object exists."""
    try:
        return bool(api.request("GET", path))
    except RefusedError as refused:
        if refused.code not in _NOT_YET:
            raise
        return False
