"""Pods of scenarios."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent.model.pod.qos import QOS_LABEL
from tests.fixtures import image

SCHEDULER = "topolet-scheduler"
OWNERS = ("LSE", "LSR")
"""QoS classes with exclusive CPUs."""

SLEEP = "trap 'exit 0' TERM; while :; do sleep 1000 & wait $!; done"
"""Ends at once on SIGTERM, even as the first process of its pid namespace."""


def manifest(
    name: str,
    *,
    qos: str = "",
    cpu: str | float = "",
    node: str = "",
    scheduler: str | None = None,
    containers: int = 1,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    guaranteed: bool | None = None,
    container: Mapping[str, Any] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """A pod of that class whose containers request `cpu` each, and sleep.

    LSE and LSR pods use Topolet's scheduler and are Guaranteed, unless `scheduler` and `guaranteed`
    differ. `node` is the name of the node to run on; `container` replaces fields of each container.
    """
    owner = qos in OWNERS
    resources: dict[str, Any] = {}
    if cpu != "":
        resources["requests"] = {"cpu": str(cpu), "memory": "16Mi"}
        if owner if guaranteed is None else guaranteed:
            resources["limits"] = resources["requests"]
    one = {
        "image": image.NAME,
        "imagePullPolicy": "Never",
        "command": [image.BUSYBOX, "sh", "-c", SLEEP],
        "resources": resources,
        **(container or {}),
    }
    chosen = scheduler if scheduler is not None else SCHEDULER if owner else ""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {"app": name, **({QOS_LABEL: qos} if qos else {}), **(labels or {})},
            "annotations": dict(annotations or {}),
        },
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "tolerations": [{"operator": "Exists"}] if node else [],
            **({"schedulerName": chosen} if chosen else {}),
            **({"nodeSelector": {"kubernetes.io/hostname": node}} if node else {}),
            "containers": [
                {**one, "name": "main" if not number else f"main-{number}"}
                for number in range(containers)
            ],
            **spec,
        },
    }
