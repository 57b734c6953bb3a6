"""Requests of kube-scheduler to an extender."""

from __future__ import annotations

import json
from typing import Any

# Sent by kube-scheduler 1.36 and shortened; it has no kind and no apiVersion.
POD: dict[str, Any] = {
    "metadata": {
        "name": "e1",
        "namespace": "default",
        "uid": "9ce0",
        "resourceVersion": "484",
        "generation": 1,
        "creationTimestamp": "2026-10-01T10:00:00Z",
        "annotations": {"a": "b"},
    },
    "spec": {
        "volumes": [{"name": "token", "projected": {"defaultMode": 420}}],
        "containers": [
            {
                "name": "c",
                "image": "i",
                "resources": {
                    "limits": {"example.com/gpu": "1"},
                    "requests": {"example.com/gpu": "1"},
                },
            }
        ],
        "hostNetwork": True,
        "schedulerName": "default-scheduler",
        "priority": 0,
        "preemptionPolicy": "PreemptLowerPriority",
    },
    "status": {"phase": "Pending", "qosClass": "BestEffort"},
}
ARGS: dict[str, Any] = {"Pod": POD, "Nodes": None, "NodeNames": ["f1", "f2", "n1"]}
BINDING = {"PodName": "e1", "PodNamespace": "default", "PodUID": "9ce0", "Node": "n1"}
META = {"f1": {"Pods": [{"UID": "44ba"}], "NumPDBViolations": 1}, "f2": {"Pods": None}}


def encoded(body: object) -> bytes:
    return json.dumps(body).encode()
