"""Whether the parts of an installed release are Ready: the DaemonSets and Deployments of Topolet in
one namespace."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from agent.kube import wire
from agent.kube.transport import Transport, segment

_SELECTOR: Final = {"labelSelector": "app.kubernetes.io/name=topolet"}
_AGENT: Final = ("app.kubernetes.io/component", "agent")


class ReleasePart(msgspec.Struct, frozen=True):
    """A DaemonSet or Deployment."""

    kind: str
    name: str
    wanted: int
    problem: str
    """Why it is not Ready in its present version, "" if it is."""
    agents: bool = False
    """Its pods are agents."""


def parts(transport: Transport, namespace: str) -> list[ReleasePart]:
    """Sorted by kind and name. Raises KubeError, AccessError."""
    found: list[ReleasePart] = []
    for kind, plural in (("DaemonSet", "daemonsets"), ("Deployment", "deployments")):
        path = f"/apis/apps/v1/namespaces/{segment(namespace)}/{plural}"
        listed = wire.listed(path, _SELECTOR, transport.get, msgspec.json.decode).found
        found += sorted((part(kind, each) for each in listed), key=lambda each: each.name)
    return found


def part(kind: str, body: dict[str, Any]) -> ReleasePart:
    """The part that an object of the API server describes."""
    metadata, spec, status = body["metadata"], body["spec"], body.get("status") or {}
    agents = (metadata.get("labels") or {}).get(_AGENT[0]) == _AGENT[1]
    if kind == "DaemonSet":
        wanted = status.get("desiredNumberScheduled", 0)
        ready, new = status.get("numberReady", 0), status.get("updatedNumberScheduled", 0)
        on_delete = (spec.get("updateStrategy") or {}).get("type") == "OnDelete"
    else:
        wanted = spec.get("replicas", 1)
        ready, new = status.get("readyReplicas", 0), status.get("updatedReplicas", 0)
        on_delete = False
    problem = ""
    if status.get("observedGeneration", 0) < metadata.get("generation", 0):
        problem = "its controller has not seen its last change"
    elif new < wanted and not on_delete:
        problem = f"{new} of {wanted} pods have the version of the release"
    elif ready < wanted:
        problem = f"{ready} of {wanted} pods are Ready"
    return ReleasePart(kind, metadata["name"], wanted, problem, agents)
