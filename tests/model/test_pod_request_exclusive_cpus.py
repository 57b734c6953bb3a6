from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agent.model.pod.apiobjects import from_object
from agent.model.pod.numa_request import kube_class_of
from agent.model.pod.resource_request import pod_requests
from agent.model.pod_request import (
    ContainerCpu,
    PodCpu,
    cpus_of,
    shared_reason,
)


def amounts(requests: str, limits: str = "") -> dict[str, Any]:
    """Of CPU and memory, as in `2 1Gi`; without `limits` they equal the requests, `-` sets none."""
    names = ("cpu", "memory")
    return {
        field: dict(zip(names, text.split(), strict=False))
        for field, text in (("requests", requests), ("limits", limits or requests))
        if text != "-"
    }


NONE = {"requests": {}, "limits": {}}
FOUR = amounts("4 4Gi")
POD_LEVEL = "the pod has resources as a whole (spec.resources)"
NOT_GUARANTEED = "the pod is not Guaranteed"


@pytest.mark.parametrize(
    ("whole", "containers", "expected", "reason"),
    [
        # Without pod-level resources.
        (None, [amounts("2 1Gi")], [2], ""),
        (None, [amounts("2000m 1Gi")], [2], ""),
        (None, [amounts("2 1Gi"), amounts("1 1Gi")], [2, 1], ""),
        (None, [amounts("1500m 1Gi")], [0], "container c0 requests 1500m CPU"),
        (None, [amounts("2 1Gi"), amounts("500m 1Gi")], [2, 0], "container c1 requests 500m CPU"),
        (None, [amounts("2 1Gi", "4 1Gi")], [0], NOT_GUARANTEED),
        (None, [amounts("2 1Gi", "2")], [0], NOT_GUARANTEED),
        (None, [amounts("2")], [0], NOT_GUARANTEED),
        (None, [amounts("2 1Gi"), NONE], [0, 0], NOT_GUARANTEED),
        # They make the pod Guaranteed, but the kubelet assigns it no exclusive CPU.
        (FOUR, [NONE], [0], POD_LEVEL),
        (FOUR, [amounts("4 4Gi")], [0], POD_LEVEL),
        (FOUR, [amounts("2 1Gi"), NONE], [0, 0], POD_LEVEL),
        (FOUR, [amounts("2 1Gi", "4 1Gi")], [0], POD_LEVEL),
        (FOUR, [amounts("2 1Gi", "-")], [0], POD_LEVEL),
        # Without them the pod would be Guaranteed.
        (amounts("3 4Gi", "4 4Gi"), [amounts("2 1Gi")], [0], NOT_GUARANTEED),
        (amounts("2"), [amounts("2 1Gi")], [0], NOT_GUARANTEED),
        (amounts("2 1Gi", "-"), [amounts("2 1Gi")], [0], NOT_GUARANTEED),
    ],
)
def test_the_exclusive_cpus_that_a_static_kubelet_assigns(
    whole: dict[str, Any] | None, containers: list[dict[str, Any]], expected: list[int], reason: str
) -> None:
    """As in kubelet 1.36.3 with its default feature gates (policy_static.go, Allocate)."""
    spec = {
        "containers": [
            {"name": f"c{index}", "resources": each} for index, each in enumerate(containers)
        ],
        **({} if whole is None else {"resources": whole}),
    }
    api_pod = from_object({"metadata": {"uid": "u", "name": "p"}, "spec": spec})
    kube_class = kube_class_of(api_pod)
    with_status = msgspec.structs.replace(api_pod, kube_class=kube_class)
    assert shared_reason(with_status) == reason
    # A pod in a file has no status.
    assert shared_reason(api_pod) == reason
    parts = tuple(
        ContainerCpu(each.name, each.requests.get("cpu", 0)) for each in api_pod.containers
    )
    kubelet_pod = PodCpu("u", kube_class, parts, pod_level=api_pod.pod_level)
    assert [cpus_of(kubelet_pod, each) for each in parts] == expected
    requested = (whole or {}).get("requests", {})
    assert "cpu" not in requested or pod_requests(api_pod)["cpu"] == 1000 * int(requested["cpu"])
