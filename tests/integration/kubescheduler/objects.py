"""Objects of tests with kube-scheduler: nodes without a kubelet, and their pods."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agent.kube.errors import ConflictError, NotFoundError
from tests.integration.apiserver.server import ApiServer

PODS_PER_NODE = "110"


def namespace(api: ApiServer, name: str) -> None:
    """Creates a namespace with the default service account, which pods need."""
    api.namespace(name)
    api.default_account(name)


def ready_node(
    api: ApiServer,
    name: str,
    allocatable: Mapping[str, str],
    *,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> None:
    """Creates a node that is Ready and has no taints, as kubelet and node controller do."""
    metadata = {"name": name, "labels": dict(labels or {}), "annotations": dict(annotations or {})}
    api.create("/api/v1/nodes", {"metadata": metadata})
    amounts = {"pods": PODS_PER_NODE, **allocatable}
    condition = {"type": "Ready", "status": "True", "reason": "Test", "message": ""}
    status = {"capacity": amounts, "allocatable": amounts, "conditions": [condition]}
    api.admin.merge(f"/api/v1/nodes/{name}/status", {"status": status})
    api.admin.merge(f"/api/v1/nodes/{name}", {"spec": {"taints": None}})


def priority_class(
    api: ApiServer, name: str, value: int, policy: str = "PreemptLowerPriority"
) -> None:
    """Creates a PriorityClass."""
    api.create(
        "/apis/scheduling.k8s.io/v1/priorityclasses",
        {"metadata": {"name": name}, "value": value, "preemptionPolicy": policy},
    )


def pod_manifest(
    namespace: str,
    name: str,
    requests: Mapping[str, str],
    *,
    scheduler: str,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """A pod without a node, with one container whose limits equal its requests."""
    amounts = {"requests": dict(requests), "limits": dict(requests)}
    return {
        "metadata": {
            "namespace": namespace,
            "name": name,
            "labels": dict(labels or {}),
            "annotations": dict(annotations or {}),
        },
        "spec": {
            "schedulerName": scheduler,
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 30,
            "containers": [{"name": "c", "image": "none", "resources": amounts}],
            **spec,
        },
    }


def create(api: ApiServer, pod: Mapping[str, Any]) -> dict[str, Any]:
    return api.create(f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods", dict(pod))


def pods(api: ApiServer, namespace: str) -> dict[str, dict[str, Any]]:
    """The pods of a namespace, by name."""
    listed = json.loads(api.admin.get(f"/api/v1/namespaces/{namespace}/pods"))
    return {each["metadata"]["name"]: each for each in listed["items"]}


def node_of(api: ApiServer, namespace: str, name: str) -> str:
    """The node of a pod; empty while the pod is not bound."""
    body = json.loads(api.admin.get(f"/api/v1/namespaces/{namespace}/pods/{name}"))
    return str(body["spec"].get("nodeName", ""))


def remove_terminating(api: ApiServer, namespace: str) -> list[str]:
    """Removes terminating pods, as a kubelet does. Returns their names."""
    names = [
        name for name, pod in pods(api, namespace).items() if "deletionTimestamp" in pod["metadata"]
    ]
    for name in names:
        force_delete(api, namespace, name)
    return names


def force_delete(api: ApiServer, namespace: str, name: str) -> None:
    """Deletes a pod without a grace period."""
    path = f"/api/v1/namespaces/{namespace}/pods/{name}"
    try:
        api.admin.request("DELETE", path, {"gracePeriodSeconds": 0})
    except (NotFoundError, ConflictError):
        return
