"""The manifests on the API server of the tests."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from agent.kube.errors import ForbiddenError
from tests.deploy.api import Api, RefusedError
from tests.deploy.manifests import DEPLOY, kustomization
from tests.integration.apiserver.server import ApiServer
from tests.waiting import eventually

Object = dict[str, Any]

EVERYTHING_ALLOWED = [
    {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]},
    {"nonResourceURLs": ["*"], "verbs": ["*"]},
]

_NOT_YET = (404, 429)
"""Errors of a new kind: first it is unknown, then its storage is not ready."""


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
