"""The manifests of deploy/ on the API server of the tests."""

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
from tests.integration.apiserver.commands import Kubectl
from tests.integration.apiserver.server import ApiServer
from tests.waiting import eventually

Object = dict[str, Any]

EVERYTHING_ALLOWED = [
    {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]},
    {"nonResourceURLs": ["*"], "verbs": ["*"]},
]

_NOT_YET = (404, 429)
"""Codes for a new CustomResourceDefinition: its kind is unknown, then its storage is not ready."""

DELETION_SECONDS = 420.0
"""The API server tries to delete a CustomResourceDefinition for a minute, and once more after a
pause (apiextensions-apiserver, pkg/controller/finalizer): this has taken two minutes. If its update
of the condition Terminating fails because its cache is stale, it drops the deletion until it lists
all definitions again, or until another client changes the definition."""

_ATTEMPT_SECONDS = 60.0


def delete(kubectl: Kubectl, *words: str) -> None:
    """Runs `kubectl delete`. If a CustomResourceDefinition is not deleted within a minute, changes
    it and waits again."""
    eventually(
        f"{' '.join(words)} is deleted", partial(_deleted, kubectl, *words), DELETION_SECONDS
    )


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
    """A new account with all permissions, which impersonates others."""
    server.account("kube-system", name, EVERYTHING_ALLOWED)
    token = server.token("kube-system", name)
    return Api(server.url, token, str(server.folder / "ca.crt"), timeout_seconds)


def serves_mutating_policies(server: ApiServer) -> bool:
    """Whether the server serves mutating admission policies, as from Kubernetes 1.36 on."""
    return server.serves("admissionregistration.k8s.io/v1", "MutatingAdmissionPolicy")


def components(server: ApiServer) -> tuple[str, ...]:
    """The components that a kustomization for this server needs."""
    return () if serves_mutating_policies(server) else ("before-1.36",)


def folder(server: ApiServer, name: str, user: Path) -> Path:
    """A folder below deploy/, or, for an older server, a kustomization of it in the user's
    folder."""
    chosen = components(server)
    if not chosen:
        return DEPLOY / name
    written = user / f"my-{Path(name).name}"
    return written if written.exists() else kustomization(user, name, chosen)


def served(server: ApiServer, bodies: Iterable[Object]) -> list[Object]:
    """The objects of the kinds that this server serves."""
    everything = serves_mutating_policies(server)
    return [
        each
        for each in bodies
        if everything or not each["kind"].startswith("MutatingAdmissionPolicy")
    ]


def apply(api: Api, bodies: Iterable[Object]) -> None:
    """Applies the objects in order. Waits for kinds that the server does not serve yet."""
    for each in bodies:
        eventually(f"{each['kind']} is served", partial(applied, api, each))


def applied(api: Api, body: Object) -> bool:
    """Applies the object; False if the server does not serve its kind yet."""
    try:
        api.apply(body)
    except RefusedError as refused:
        if refused.code not in _NOT_YET:
            raise
        return False
    return True


def remove_policies(server: ApiServer) -> None:
    """Deletes all bindings of validating policies, and waits until the server, which watches them,
    does not apply them any more."""
    path = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
    for each in json.loads(server.admin.get(path))["items"]:
        server.admin.delete(f"{path}/{each['metadata']['name']}")
    server.default_account("default")
    allocated = {"scheduling.koordinator.sh/resource-status": '{"cpuset": "1"}'}
    body = {
        "metadata": {"name": "without-policies", "annotations": allocated},
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

    eventually("no policy is in force", allowed)


def exists(api: Api, path: str) -> bool:
    """Whether the object exists."""
    try:
        return bool(api.request("GET", path))
    except RefusedError as refused:
        if refused.code not in _NOT_YET:
            raise
        return False
