"""AdmissionReview requests."""

from __future__ import annotations

from typing import Any

Object = dict[str, Any]

ALICE = "alice"


def review(
    user: str = ALICE,
    resource: str = "pods/binding",
    operation: str = "CREATE",
    group: str = "",
    **fields: Any,
) -> Object:
    """The review of a request, as an API server sends it."""
    name, _, subresource = resource.partition("/")
    request = {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "kind": {"group": "", "version": "v1", "kind": "Binding"},
        "resource": {"group": group, "version": "v1", "resource": name},
        "subResource": subresource,
        "name": "p",
        "namespace": "gpu",
        "operation": operation,
        "userInfo": {"username": user, "groups": ["system:authenticated"]},
        "object": {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": "p", "namespace": "gpu"},
            "target": {"kind": "Node", "name": "node-1"},
        },
        "oldObject": None,
        "dryRun": False,
        "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
    }
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {**request, **fields},
    }
