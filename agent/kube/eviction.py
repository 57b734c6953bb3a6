"""Evictions by the API server (policy/v1), which asks the pod's disruption budgets, and deletions,
which do not."""

from __future__ import annotations

import enum
from typing import Any, Final

from agent.kube.errors import ConflictError, NotFoundError
from agent.kube.events import Regarding
from agent.kube.objects import pod_path
from agent.kube.transport import Transport

EVICTED: Final = "EvictedFromNode"
"""The reason of the Event about a pod that the agent of its node has evicted."""
KILL_SECONDS: Final = 1
"""The grace period of a deletion. With 0 the object would be gone before the processes have ended,
and a StatefulSet would start the pod's successor beside it."""


class EvictionResult(enum.Enum):
    """The API server's answer to an eviction: the pod is evicted (with dryRun: it would be), the
    pod no longer exists, or a disruption budget forbids the eviction."""

    EVICTED = "evicted"
    DELETED = "deleted"
    BLOCKED = "blocked"


def evict(transport: Transport, pod: Regarding, *, dry_run: bool = False) -> EvictionResult:
    """Evicts this pod, and no other one with its name. Raises KubeError and AccessError;
    TooManyRequestsError if a disruption budget forbids it, or the server has too much to do."""
    wanted = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"namespace": pod.namespace, "name": pod.name},
        "deleteOptions": _options(pod, {"dryRun": ["All"]} if dry_run else {}),
    }
    try:
        transport.create(f"{pod_path(pod.namespace, pod.name)}/eviction", wanted)
    except (NotFoundError, ConflictError):
        return EvictionResult.DELETED
    return EvictionResult.EVICTED


def delete(transport: Transport, pod: Regarding) -> EvictionResult:
    """Deletes this pod, and no other one with its name, whatever its budgets say; its processes
    have KILL_SECONDS to end. Raises KubeError and AccessError."""
    options = _options(pod, {"gracePeriodSeconds": KILL_SECONDS})
    try:
        transport.request("DELETE", pod_path(pod.namespace, pod.name), body=options)
    except (NotFoundError, ConflictError):
        return EvictionResult.DELETED
    return EvictionResult.EVICTED


def _options(pod: Regarding, options: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "preconditions": {"uid": pod.uid},
        **options,
    }
