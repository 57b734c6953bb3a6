"""The resources that a pod requests: the total of its containers, and, with its class and policies,
the request for CPUs and NUMA nodes.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from agent.model.cpu.policies import (
    BindPolicy,
)
from agent.model.pod.annotations import (
    NumaSpec,
    ResourceSpec,
    numa_spec,
    resource_spec,
)
from agent.model.pod.apiobjects import ApiPod
from agent.model.pod.qos import PriorityClass, QoS


class FollowedPolicies(enum.Enum):
    """The kubelet policies that Topolet follows for a pod. The kubelet enforces them itself for
    pods that are not Koordinator's."""

    ALL = enum.auto()
    NUMA = enum.auto()
    """The kubelet does not know the devices that Topolet allocates."""
    NONE = enum.auto()


class ResourceRequest(msgspec.Struct, frozen=True):
    """The request of a pod."""

    uid: str
    title: str
    qos: QoS = QoS.LS
    owner: bool = False
    """The pod may own CPUs by its class and priority."""
    requests: dict[str, int] = {}
    """`cpu` in milli-CPU, the rest in units; zero amounts are left out."""
    cpu_limit_milli: int | None = None
    """None or 0 for no limit."""
    spec: ResourceSpec = ResourceSpec()
    numa: NumaSpec = NumaSpec()
    kubelet: FollowedPolicies = FollowedPolicies.ALL
    guaranteed: bool = False
    """The pod is Guaranteed, or LSE or LSR with a CPU limit that equals the request."""
    default_bind: BindPolicy = BindPolicy.FULL_PCPUS
    """The configured bind policy."""

    @property
    def bind_policy(self) -> BindPolicy:
        """The bind policy that the pod requires or prefers."""
        return self.spec.required or self.spec.preferred

    @property
    def burst_milli(self) -> int:
        """The limit that the NUMA nodes of a pod with ConstrainedBurst must fit; 0 for other
        pods."""
        policy = self.bind_policy
        if policy is BindPolicy.DEFAULT:
            policy = self.default_bind
        shares = self.qos is QoS.LS and not self.owner
        bursts = shares and policy is BindPolicy.CONSTRAINED_BURST
        return max(0, self.cpu_limit_milli or 0) if bursts else 0


def resource_request(
    uid: str,
    title: str,
    qos: QoS,
    annotations: Mapping[str, str],
    requests: Mapping[str, int],
    *,
    priority: int | None = None,
    priority_class: str = "",
    cpu_limit_milli: int | None = None,
    guaranteed: bool = False,
) -> ResourceRequest:
    """The request of a pod with these values.

    `priority_class`: the value of its label, which overrides the number.

    Raises AnnotationError."""
    return ResourceRequest(
        uid,
        title,
        qos,
        qos in _OWNERS and priority_band(priority, priority_class) in (PriorityClass.PROD, None),
        {name: amount for name, amount in requests.items() if amount > 0},
        cpu_limit_milli,
        resource_spec(annotations),
        numa_spec(annotations),
        guaranteed=guaranteed,
    )


_OWNERS: Final = (QoS.LSE, QoS.LSR)
_BANDS: Final = {
    PriorityClass.PROD: range(9000, 10_000),
    PriorityClass.MID: range(7000, 8000),
    PriorityClass.BATCH: range(5000, 6000),
    PriorityClass.FREE: range(3000, 4000),
}


def priority_band(priority: int | None, priority_class: str) -> str | None:
    """The priority class by the value of its label, else by the number; None if there is none: then
    the default of the QoS class applies, which is koord-prod for LSE and LSR."""
    if priority_class in _BANDS:
        return priority_class
    if priority is None:
        return None
    return next((name for name, band in _BANDS.items() if priority in band), None)


_NOTHING: Final[Mapping[str, int]] = MappingProxyType({})


class InitRequests(msgspec.Struct, frozen=True):
    """The requests of an init container."""

    requests: Mapping[str, int]
    sidecar: bool = False
    """It keeps running while all later containers run."""


def pod_total(
    containers: Iterable[Mapping[str, int]],
    init: Iterable[InitRequests] = (),
    whole: Mapping[str, int] = _NOTHING,
    overhead: Mapping[str, int] = _NOTHING,
) -> dict[str, int]:
    """The pod's request by resource, as the API server computes it: the sum of the containers and
    all sidecars, or the request of an init container with the sidecars before it, whichever is
    larger. Pod-level requests (`whole`) override it for the resources that pods may request;
    `overhead` is added."""
    sidecars: dict[str, int] = {}
    most: dict[str, int] = {}
    for each in init:
        if each.sidecar:
            _add(sidecars, each.requests)
            continue
        for name, amount in each.requests.items():
            most[name] = max(most.get(name, 0), sidecars.get(name, 0) + amount)
    total = dict(sidecars)
    for requests in containers:
        _add(total, requests)
    for name, amount in most.items():
        total[name] = max(total.get(name, 0), amount)
    for name, amount in whole.items():
        if name in ("cpu", "memory") or name.startswith("hugepages-"):
            total[name] = amount
    _add(total, overhead)
    return total


def _add(sums: dict[str, int], amounts: Mapping[str, int]) -> None:
    for name, amount in amounts.items():
        sums[name] = sums.get(name, 0) + amount


def pod_requests(pod: ApiPod) -> dict[str, int]:
    """The pod's request by resource: `cpu` in milli-CPU, the rest in units, with overhead. Zero
    amounts are left out."""
    total = pod_total(
        (each.counted for each in pod.containers),
        (InitRequests(each.counted, each.sidecar) for each in pod.init_containers),
        pod.counted,
        pod.overhead,
    )
    return {name: amount for name, amount in total.items() if amount > 0}


def pod_cpu_limit_milli(pod: ApiPod) -> int | None:
    """The limit of all containers that run at the same time, None if one of them has no limit."""
    running = (*pod.containers, *(each for each in pod.init_containers if each.sidecar))
    if "cpu" in pod.limits:
        limit = pod.limits["cpu"]
    elif running and all(each.limits.get("cpu") for each in running):
        limit = sum(each.limits["cpu"] for each in running)
    else:
        return None
    return limit + pod.overhead.get("cpu", 0)
