"""The requests of a pod to NUMA nodes: by container, and as a whole."""

from __future__ import annotations

import enum
from collections.abc import Container, Mapping
from typing import Final

import msgspec

from agent.model.pod.apiobjects import ApiPod
from agent.model.pod.qos import KubeClass
from agent.model.pod.resource_request import InitRequests, pod_total

_HUGEPAGES: Final = "hugepages-"
_COMPUTE: Final = ("cpu", "memory")
_STORAGE: Final = ("ephemeral-storage", "storage")


class PartKind(enum.StrEnum):
    """The kind of a part of a pod that is put on one NUMA node, as in the plugin's reasons."""

    POD = "pod"
    CONTAINER = "container"
    INIT = "init container"
    SIDECAR = "sidecar container"


class RequestedAmount(msgspec.Struct, frozen=True):
    """A request for an amount above 0."""

    resource: str
    amount: int
    held: bool
    """A NUMA node must have it free, not only report the resource, as for pods that are not
    aligned: their CPUs and memory come from any node."""
    of_machine: bool
    """If NUMA nodes do not report the resource, it may come from outside of them."""


class PodPart(msgspec.Struct, frozen=True):
    """A container of a pod, or the whole pod."""

    kind: PartKind
    name: str
    requests: dict[str, int]
    """The amounts as written, `cpu` in milli-CPU."""
    requested: tuple[RequestedAmount, ...]
    exclusive_milli: int = 0
    """The CPU that a static kubelet gives to this part alone."""

    @property
    def taken(self) -> dict[str, int]:
        """The amounts that the part takes from its NUMA node."""
        return {each.resource: each.amount for each in self.requested if each.held}

    def hinted(self, resources: Container[str]) -> dict[str, int]:
        """The amounts of these resources for which the kubelet gives hints."""
        amounts = {name: amount for name, amount in self.taken.items() if name in resources}
        if "cpu" in amounts:
            amounts["cpu"] = self.exclusive_milli
        return {name: amount for name, amount in amounts.items() if amount}


class NumaRequest(msgspec.Struct, frozen=True):
    """A pod's requests of NUMA nodes."""

    aligned: bool
    """The kubelet takes its CPU, memory and huge pages from particular NUMA nodes, as for
    Guaranteed pods without pod-level resources (kubelet: policy_static.go of the CPU and the memory
    manager, without the feature gate PodLevelResourceManagers)."""
    parts: tuple[PodPart, ...]
    """Init containers, then the others, in their order."""
    whole: PodPart
    """The total as the API server counts it, with overhead and pod-level requests."""
    indifferent: bool
    """The pod requests nothing of a NUMA node."""
    devices: bool = False
    """It requests resources that are not Kubernetes' own, usually devices."""


NO_NUMA_REQUEST: Final = NumaRequest(False, (), PodPart(PartKind.POD, "", {}, ()), True)
"""A pod that requests nothing."""


def numa_request_of(pod: ApiPod) -> NumaRequest:
    kube_class = pod.kube_class or kube_class_of(pod)
    aligned = kube_class == "guaranteed" and not pod.pod_level
    parts = (
        *(
            _part(
                PartKind.SIDECAR if each.sidecar else PartKind.INIT,
                each.name,
                each.counted,
                aligned,
            )
            for each in pod.init_containers
        ),
        *(_part(PartKind.CONTAINER, each.name, each.counted, aligned) for each in pod.containers),
    )
    total = pod_total(
        (each.counted for each in pod.containers),
        (InitRequests(each.counted, each.sidecar) for each in pod.init_containers),
        pod.counted,
        pod.overhead,
    )
    own = pod_total(
        ({"cpu": each.exclusive_milli} for each in parts if each.kind is PartKind.CONTAINER),
        (
            InitRequests({"cpu": each.exclusive_milli}, each.kind is PartKind.SIDECAR)
            for each in parts
            if each.kind is not PartKind.CONTAINER
        ),
    )
    whole = msgspec.structs.replace(
        _part(PartKind.POD, "", total, aligned), exclusive_milli=own.get("cpu", 0)
    )
    devices = any(map(foreign, whole.taken))
    return NumaRequest(aligned, parts, whole, kube_class == "besteffort" and not devices, devices)


def kube_class_of(pod: ApiPod) -> KubeClass:
    """The API server's `status.qosClass`: by the pod-level CPU and memory if there are any,
    otherwise by those of all containers."""
    written = [(each.requests, each.limits) for each in (*pod.init_containers, *pod.containers)]
    if pod.pod_level:
        written = [(pod.requests, pod.limits)]
    sums: tuple[dict[str, int], dict[str, int]] = ({}, {})
    limited = True
    for both in written:
        for amounts, total in zip(both, sums, strict=True):
            for name in _COMPUTE:
                if amounts.get(name):
                    total[name] = total.get(name, 0) + amounts[name]
        limited = limited and all(both[1].get(name) for name in _COMPUTE)
    requests, limits = sums
    if not requests and not limits:
        return "besteffort"
    return "guaranteed" if limited and requests == limits else "burstable"


def foreign(resource: str) -> bool:
    """Whether the resource is not a native Kubernetes resource; usually it is a device."""
    return "/" in resource and "kubernetes.io/" not in resource


def exclusive(pod: NumaRequest, reported: Container[str]) -> bool:
    """Whether the pod has exclusive resources, so that zones change with it: whole CPUs, memory or
    huge pages of an aligned pod, or a device that zones report (`reported`). Init containers
    release their resources before the pod runs. (See scheduler-plugins:
    pkg/noderesourcetopology/resourcerequests/exclusive.go, AreExclusiveForPod.)"""
    return any(
        each.resource in reported
        if foreign(each.resource)
        else pod.aligned and _own(each.resource, each.amount)
        for part in pod.parts
        if part.kind is not PartKind.INIT
        for each in part.requested
    )


def of_memory(resource: str) -> bool:
    """Memory or huge pages."""
    return resource == "memory" or resource.startswith(_HUGEPAGES)


def _of_compute(resource: str) -> bool:
    return resource == "cpu" or of_memory(resource)


def _own(resource: str, amount: int) -> bool:
    return amount % 1000 == 0 if resource == "cpu" else _of_compute(resource)


def _part(kind: PartKind, name: str, requests: dict[str, int], aligned: bool) -> PodPart:
    cpu_milli = requests.get("cpu", 0)
    own = cpu_milli if aligned and _own("cpu", cpu_milli) else 0
    return PodPart(kind, name, requests, _requested_amounts(requests, aligned), own)


def _requested_amounts(requests: Mapping[str, int], aligned: bool) -> tuple[RequestedAmount, ...]:
    return tuple(
        RequestedAmount(
            resource,
            amount,
            aligned or not _of_compute(resource),
            foreign(resource) or resource in _STORAGE,
        )
        for resource, amount in requests.items()
        if amount
    )
