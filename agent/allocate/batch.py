"""Batch resources: the amounts of a batch pod's containers, and the cgroup values that follow from
them.

For Kubernetes such pods are BestEffort, so their cgroups do not have the amounts. Koordinator's
webhook copies the amounts of batch-cpu and batch-memory into an annotation, by container
(pkg/webhook/pod/mutating/extended_resource_spec.go, mutateByExtendedResources). The request becomes
the weight of a cgroup, the limit its quota (Koordinator:
pkg/koordlet/runtimehooks/hooks/batchresource/batch_resource.go). A pod's cgroup gets the sum over
its containers; it has no limit if one of them has none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Annotated, Final

import msgspec

from agent.model import bounds
from agent.model.linux_resources import (
    LEAST_QUOTA_MICROSECONDS,
    LEAST_SHARES,
    MAX_SHARES,
    NO_QUOTA,
    PERIOD_MICROSECONDS,
    UNLIMITED,
    CpuQuota,
    LinuxResources,
)
from agent.model.pod.annotations import (
    BATCH_CPU_NAMES,
    BATCH_MEMORY_NAMES,
    EXTENDED_RESOURCE_SPEC,
    AnnotationError,
    decoded,
)
from agent.model.pod.qos import QoS
from agent.model.quantities import Quantity, QuantityError, whole

MAX_CPU_MILLI: Final = 10**8
MAX_MEMORY_BYTES: Final = 2**50
"""No machine has more, and the kernel accepts a sum of many."""


class BatchResources(msgspec.Struct, frozen=True):
    """The batch resources of one container. A limit of None is no limit; so is 0 in the annotation,
    as for Koordinator."""

    cpu_request_milli: int = 0
    cpu_limit_milli: int | None = None
    memory_request_bytes: int = 0
    memory_limit_bytes: int | None = None


_Resources = Annotated[dict[str, Quantity], msgspec.Meta(max_length=bounds.MAX_RESOURCES)]


class _Amounts(msgspec.Struct, frozen=True):
    requests: _Resources | None = None
    limits: _Resources | None = None


class _Spec(msgspec.Struct, frozen=True):
    containers: (
        Annotated[dict[str, _Amounts | None], msgspec.Meta(max_length=bounds.MAX_CONTAINERS)] | None
    ) = None


_decoder: Final = msgspec.json.Decoder(_Spec | None)
_NO_RESOURCES: Final = BatchResources()


def batch_resources(annotations: Mapping[str, str]) -> dict[str, BatchResources]:
    """The batch resources by container name; empty for a pod without any. Raises AnnotationError,
    which names the container and the resource."""
    spec = decoded(annotations, EXTENDED_RESOURCE_SPEC, _decoder, bounds.POD_LIST_BYTES)
    containers = (spec and spec.containers) or {}
    return {name: _container(name, each) for name, each in containers.items()}


def cpu_request_milli(containers: Mapping[str, BatchResources]) -> int:
    """The request of the whole pod."""
    return sum(each.cpu_request_milli for each in containers.values())


def batch_excess(
    named: Mapping[str, BatchResources],
    spec: Mapping[str, tuple[Mapping[str, int], Mapping[str, int]]],
) -> str:
    """The message about an annotation that names more than the containers' own resources, which a
    scheduler has counted: it names the container and the resource. "" if the annotation does not.
    `named`: the amounts in the annotation. `spec`: the requests and limits of the containers by
    name; others do not count."""
    for name, amounts in named.items():
        if name not in spec:
            continue
        requests, limits = spec[name]
        for field, resources, names, amount in (
            ("requests", requests, BATCH_CPU_NAMES, amounts.cpu_request_milli),
            ("requests", requests, BATCH_MEMORY_NAMES, amounts.memory_request_bytes),
            ("limits", limits, BATCH_CPU_NAMES, amounts.cpu_limit_milli),
            ("limits", limits, BATCH_MEMORY_NAMES, amounts.memory_limit_bytes),
        ):
            own = next((resources[each] for each in names if each in resources), 0)
            if field == "limits" and not own:
                continue
            if amount is None or amount > own:
                shown = "no limit" if amount is None else amount
                text = f"containers.{name[:63]}.{field}.{names[0]}: {shown} is more than {own}"
                return f"{text}, which the container has"
    return ""


def _container(name: str, amounts: _Amounts | None) -> BatchResources:
    if amounts is None:
        return _NO_RESOURCES
    try:
        requests = _cpu_and_memory("requests", amounts.requests)
        limits = _cpu_and_memory("limits", amounts.limits)
    except QuantityError as error:
        where = f"containers.{name[:63]}"
        raise AnnotationError(EXTENDED_RESOURCE_SPEC, f"{where}.{error}") from None
    return BatchResources(requests[0], limits[0] or None, requests[1], limits[1] or None)


def _cpu_and_memory(field: str, amounts: Mapping[str, Quantity] | None) -> tuple[int, int]:
    """Raises QuantityError; its message begins with the field."""
    if not amounts:
        return 0, 0
    cpu = _amount(field, amounts, BATCH_CPU_NAMES, MAX_CPU_MILLI)
    return cpu, _amount(field, amounts, BATCH_MEMORY_NAMES, MAX_MEMORY_BYTES)


def _amount(field: str, amounts: Mapping[str, Quantity], names: tuple[str, ...], most: int) -> int:
    for name in names:
        if name not in amounts:
            continue
        try:
            amount = whole(amounts[name])
        except QuantityError as error:
            raise QuantityError(f"{field}.{name}: {error}") from None
        if not 0 <= amount <= most:
            reason = "is below zero" if amount < 0 else f"is more than {most}"
            text = str(amounts[name])[:40]
            raise QuantityError(f"{field}.{name}: {text!r} {reason}")
        return amount
    return 0


class BatchLimits(msgspec.Struct, frozen=True):
    """The values of the pod's cgroup, and of its containers' cgroups by name."""

    pod: LinuxResources
    containers: dict[str, LinuxResources]


def batch_limits(
    qos: QoS, containers: Mapping[str, BatchResources], cpu_normalization_ratio: float = 1.0
) -> BatchLimits | None:
    """The cgroup values; None for a pod that is not BE or has no batch resources, whose cgroups are
    not changed.

    `cpu_normalization_ratio`: the speed of this node's CPUs relative to the CPUs that requests
    count in; above 1, quotas are divided by it.
    """
    if qos is not QoS.BE or not containers:
        return None
    each = {
        name: LinuxResources(
            quota=_quota(amounts.cpu_limit_milli, cpu_normalization_ratio),
            shares=_shares(amounts.cpu_request_milli),
            memory_limit_bytes=_bytes(amounts.memory_limit_bytes),
        )
        for name, amounts in containers.items()
    }
    cpu_milli = _sum(amounts.cpu_limit_milli for amounts in containers.values())
    memory_bytes = _sum(amounts.memory_limit_bytes for amounts in containers.values())
    pod = LinuxResources(
        quota=_quota(cpu_milli, cpu_normalization_ratio),
        shares=_shares(cpu_request_milli(containers)),
        memory_limit_bytes=_bytes(memory_bytes),
    )
    return BatchLimits(pod, each)


def _quota(cpu_milli: int | None, ratio: float) -> CpuQuota:
    if cpu_milli is None:
        return NO_QUOTA
    microseconds = cpu_milli * PERIOD_MICROSECONDS // 1000
    if ratio > 1:
        microseconds = math.ceil(microseconds / ratio)
    return CpuQuota(max(LEAST_QUOTA_MICROSECONDS, microseconds))


def _shares(cpu_milli: int) -> int:
    return min(max(LEAST_SHARES, cpu_milli * 1024 // 1000), MAX_SHARES)


def _bytes(limit: int | None) -> int:
    return UNLIMITED if limit is None else limit


def _sum(limits: Iterable[int | None]) -> int | None:
    total = 0
    for each in limits:
        if each is None:
            return None
        total += each
    return total
