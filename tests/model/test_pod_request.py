from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agent.model.cpu.policies import BindPolicy
from agent.model.pod.annotations import DEVICE_ALLOCATED, RESOURCE_STATUS
from agent.model.pod.apiobjects import from_object
from agent.model.pod.numa_request import kube_class_of
from agent.model.pod.resource_request import pod_requests
from agent.model.pod_request import (
    ContainerCpu,
    Needs,
    PodCpu,
    PodRequestError,
    cpus_of,
    request_of,
    shared_reason,
)
from tests.allocate.devices.builders import CARDS, CORE, HINT, RATIO, RDMA
from tests.allocate.node_allocator.builders import ALLOCATED, NUMA_SPEC, SPEC, STATUS, pod

BURST = {SPEC: {"preferredCPUBindPolicy": "ConstrainedBurst"}}
NUMA = Needs.NUMA
CPUS = Needs.NUMA | Needs.CPUS


@pytest.mark.parametrize(
    ("fields", "needs"),
    [
        ({}, Needs.NOTHING),
        ({"requests": {"cpu": 1, "memory": "1Gi"}}, Needs.NOTHING),
        ({"requests": {"cpu": 1}, "qos": "LS"}, NUMA),
        ({"requests": {"cpu": 1}, "qos": "unknown"}, Needs.NOTHING),
        ({"requests": {"cpu": 1}, "qos": "LSR"}, CPUS),
        ({"requests": {"cpu": 1}, "qos": "LSE"}, CPUS),
        ({"requests": {"memory": 1}, "qos": "LSE"}, NUMA),
        ({"requests": {"cpu": 1}, "qos": "LSE", "priority": 5000}, NUMA),
        ({"requests": {"cpu": 1}, "notes": BURST, "limits": {"cpu": 2}}, CPUS),
        ({"requests": {"cpu": 1}, "notes": BURST}, NUMA),
        ({"notes": {NUMA_SPEC: {"numaTopologyPolicy": "SingleNUMANode"}}}, CPUS),
        ({"notes": {NUMA_SPEC: {"numaTopologyPolicy": "None"}}}, NUMA),
        ({"requests": {CARDS: 1}}, Needs.DEVICES),
        ({"requests": {"cpu": 1, RDMA: 1}, "qos": "LSR"}, CPUS | Needs.DEVICES),
    ],
)
def test_pods_that_need_the_allocator(fields: dict[str, Any], needs: Needs) -> None:
    assert request_of(pod(**fields)).needs == needs


@pytest.mark.parametrize(
    ("fields", "burst_milli", "needs"),
    [
        ({"qos": "LS"}, 2000, CPUS),
        ({"notes": {SPEC: {"preferredCPUBindPolicy": "Default"}}}, 2000, CPUS),
        ({"notes": {SPEC: {"preferredCPUBindPolicy": "SpreadByPCPUs"}}}, 0, NUMA),
        ({"qos": "LSR"}, 0, CPUS),
        ({}, 0, Needs.NOTHING),
    ],
)
def test_constrained_burst_is_the_default_of_koordinators_pods_that_share_cpus(
    fields: dict[str, Any], burst_milli: int, needs: Needs
) -> None:
    found = request_of(
        pod(requests={"cpu": 1}, limits={"cpu": 2}, **fields),
        default_bind=BindPolicy.CONSTRAINED_BURST,
    )
    assert (found.resources.burst_milli, found.needs) == (burst_milli, needs)


def test_device_requests_are_not_part_of_the_numa_request() -> None:
    """NUMA nodes may report them too."""
    pod_request = request_of(pod("a", {"cpu": 2, CORE: 50, RATIO: 50, RDMA: 1, "x/y": 3}))
    assert pod_request.resources.requests == {"cpu": 2000, "x/y": 3}
    assert pod_request.requests == {"cpu": 2000, "x/y": 3, CORE: 50, RATIO: 50, RDMA: 1}
    assert pod_request.devices is not None
    assert pod_request.devices.requests.keys() == {"gpu", "rdma"}


def test_sidecars_overhead_and_requests_of_the_pod_count() -> None:
    resources = {"requests": {"cpu": 1, "memory": 10}}
    containers = [{"name": "c", "resources": resources}]
    sidecar = {"name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": 2}}}
    with_sidecar = pod(containers=containers, initContainers=[sidecar], overhead={"cpu": "250m"})
    assert request_of(with_sidecar).requests == {"cpu": 3250, "memory": 10}
    whole = pod(containers=containers, resources={"requests": {"cpu": 5}}, overhead={"cpu": "250m"})
    assert request_of(whole).requests == {"cpu": 5250, "memory": 10}


def limited(name: str, cpu: int = 0, **more: str) -> dict[str, Any]:
    """A container; 0 sets no limit."""
    return {"name": name, **({"resources": {"limits": {"cpu": cpu}}} if cpu else {}), **more}


WITHOUT_LIMIT = {"containers": [limited("c")]}
TWO_CPUS = {"containers": [limited("c", 2)]}
SIDECAR = {"restartPolicy": "Always"}


@pytest.mark.parametrize(
    ("spec", "limit_milli"),
    [
        (WITHOUT_LIMIT, None),
        (TWO_CPUS, 2000),
        ({"containers": [limited("c", 2), limited("d")]}, None),
        ({**TWO_CPUS, "initContainers": [limited("s", **SIDECAR)]}, None),
        ({**TWO_CPUS, "initContainers": [limited("s", 1, **SIDECAR), limited("i", 9)]}, 3000),
        ({**WITHOUT_LIMIT, "resources": {"limits": {"cpu": 4}}, "overhead": {"cpu": 1}}, 5000),
    ],
)
def test_the_limit_of_containers_that_run_concurrently(
    spec: dict[str, Any], limit_milli: int | None
) -> None:
    assert request_of(pod(**spec)).resources.cpu_limit_milli == limit_milli


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"notes": {SPEC: {"requiredCPUBindPolicy": "x"}}}, "requiredCPUBindPolicy"),
        ({"notes": {NUMA_SPEC: "["}}, NUMA_SPEC),
        ({"requests": {CARDS: 1}, "notes": {HINT: "3"}}, HINT),
        ({"requests": {CORE: 150, RATIO: 100}}, CORE),
        ({"requests": {"cpu": 2}, "notes": BURST, "qos": "LSE"}, "and LSE pods own theirs"),
        ({"notes": {SPEC: {"requiredCPUBindPolicy": "ConstrainedBurst"}}, "qos": "LSR"}, SPEC),
    ],
)
def test_an_invalid_request_is_reported_with_its_pod(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(PodRequestError, match="pod ns/a: ") as caught:
        request_of(pod(**fields))
    assert message in str(caught.value)


def test_pods_with_the_same_request_are_equivalent() -> None:
    first = request_of(pod("a", {"cpu": 1, "memory": 5}, "LSR"))
    assert (
        first.equivalence_key
        == request_of(pod("b", {"memory": 5, "cpu": "1000m"}, "LSR")).equivalence_key
    )


DIFFERENT = [
    {},
    {"requests": {"cpu": 1}},
    {"requests": {"cpu": 2}},
    {"requests": {"cpu": 1}, "qos": "LS"},
    {"requests": {"cpu": 1}, "qos": "LSR"},
    {"requests": {"cpu": 1}, "qos": "LSR", "limits": {"cpu": 2}},
    {"requests": {"cpu": 1}, "qos": "LSR", "priority": 3000},
    {"requests": {"cpu": 1}, "qos": "LSR", "notes": {SPEC: {"requiredCPUBindPolicy": "Default"}}},
    {"requests": {"cpu": 1}, "notes": BURST, "limits": {"cpu": 2}},
    {"requests": {"cpu": 1}, "notes": BURST, "limits": {"cpu": 3}},
    {"requests": {"cpu": 1}, "notes": {NUMA_SPEC: {"numaTopologyPolicy": "Restricted"}}},
    {"requests": {CARDS: 1}},
    {"requests": {"koordinator.sh/gpu": 100}},
    {"requests": {CARDS: 1}, "notes": {HINT: {"gpu": {"requiredTopologyScope": "PCIe"}}}},
    {"requests": {CORE: 50, RATIO: 50}},
    {
        "requests": {CORE: 50, RATIO: 50},
        "labels": {"koordinator.sh/gpu-isolation-provider": "HAMi-core"},
    },
]


def test_everything_that_affects_a_node_is_part_of_the_equivalence_class() -> None:
    keys = [request_of(pod(**fields)).equivalence_key for fields in DIFFERENT]
    assert len(set(keys)) == len(DIFFERENT)


def test_nothing_else_is_part_of_the_equivalence_class() -> None:
    unlisted = {"requests": {"cpu": 1}}
    limited = pod(
        **unlisted, limits={"cpu": 3}, labels={"app": "x"}, notes={"note": "y", HINT: "3"}
    )
    assert request_of(limited).equivalence_key == request_of(pod(**unlisted)).equivalence_key


def test_stale_allocation_annotations_are_listed() -> None:
    pod_with_stale_annotations = pod(
        notes={STATUS: {"cpuset": "0-3"}, ALLOCATED: {"gpu": [{"minor": 0}]}}
    )
    assert request_of(pod_with_stale_annotations).stale == (RESOURCE_STATUS, DEVICE_ALLOCATED)
    assert request_of(pod()).stale == ()


XPU = "example.com/xpu"


@pytest.mark.parametrize(
    ("requests", "needs", "of_devices"),
    [
        ({XPU: 1}, Needs.LISTED, {XPU}),
        ({XPU: 1, CARDS: 1}, Needs.LISTED | Needs.DEVICES, {XPU, CARDS}),
        ({"koordinator.sh/xpu": 1}, Needs.LISTED, {"koordinator.sh/xpu"}),
        ({"example.com/other": 1}, Needs.NOTHING, set()),
        ({XPU: 0, "cpu": 1}, Needs.NOTHING, set()),
    ],
)
def test_resources_that_device_objects_list_are_devices(
    requests: dict[str, int], needs: Needs, of_devices: set[str]
) -> None:
    pod_request = request_of(pod("a", requests), {XPU})
    assert pod_request.needs == needs
    others = {name for name, amount in requests.items() if amount and name not in of_devices}
    assert set(pod_request.resources.requests) == others


def test_the_same_resource_as_a_device_is_another_equivalence_key() -> None:
    """Results of nodes are cached by equivalence key, and a Device object may list the resource
    later."""
    unlisted, listed = (request_of(pod("a", {XPU: 1}), names) for names in ((), {XPU}))
    assert unlisted.equivalence_key != listed.equivalence_key
    assert request_of(pod("b", {XPU: 1}), {XPU, "x/y"}).equivalence_key == listed.equivalence_key


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
