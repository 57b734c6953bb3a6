"""What the containers of a batch pod ask for and are held to (annotation extended-resource-spec).

Kubernetes knows such pods as BestEffort, so their cgroups say nothing of it. Koordinator's webhook
copies the amounts of the two batch resources here, by container
(pkg/webhook/pod/mutating/extended_resource_spec.go, mutateByExtendedResources)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

import msgspec

from agent.model import bounds
from agent.model.annotations import EXTENDED_RESOURCE_SPEC, AnnotationError, decoded
from agent.model.quantities import Quantity, QuantityError, whole

CPU_NAMES: Final = ("kubernetes.io/batch-cpu", "koordinator.sh/batch-cpu")
"""Milli-CPU, counted as whole units; the first resource that is present counts."""
MEMORY_NAMES: Final = ("kubernetes.io/batch-memory", "koordinator.sh/batch-memory")

MOST_CPU_MILLI: Final = 10**8
MOST_MEMORY_BYTES: Final = 2**50
"""No machine has more, and the kernel takes a sum of many."""


class BatchResources(msgspec.Struct, frozen=True):
    """One container's. No limit is None; Koordinator reads 0 as none too."""

    cpu_request_milli: int = 0
    cpu_limit_milli: int | None = None
    memory_request_bytes: int = 0
    memory_limit_bytes: int | None = None


_Resources = Annotated[dict[str, Quantity], msgspec.Meta(max_length=bounds.MOST_RESOURCES)]


class _Amounts(msgspec.Struct, frozen=True):
    requests: _Resources | None = None
    limits: _Resources | None = None


class _Spec(msgspec.Struct, frozen=True):
    containers: (
        Annotated[dict[str, _Amounts | None], msgspec.Meta(max_length=bounds.MOST_CONTAINERS)]
        | None
    ) = None


_decoder: Final = msgspec.json.Decoder(_Spec | None)
_NO_RESOURCES: Final = BatchResources()


def batch_resources(annotations: Mapping[str, str]) -> dict[str, BatchResources]:
    """By container name; empty for a pod without batch resources. Raises AnnotationError that names
    the container and the resource."""
    spec = decoded(annotations, EXTENDED_RESOURCE_SPEC, _decoder, bounds.POD_LIST_BYTES)
    containers = (spec and spec.containers) or {}
    return {name: _container(name, each) for name, each in containers.items()}


def cpu_request_milli(containers: Mapping[str, BatchResources]) -> int:
    """What the whole pod requests."""
    return sum(each.cpu_request_milli for each in containers.values())


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
    """Raises QuantityError that begins with the field."""
    if not amounts:
        return 0, 0
    cpu = _amount(field, amounts, CPU_NAMES, MOST_CPU_MILLI)
    return cpu, _amount(field, amounts, MEMORY_NAMES, MOST_MEMORY_BYTES)


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
            said = str(amounts[name])[:40]
            raise QuantityError(f"{field}.{name}: {said!r} {reason}")
        return amount
    return 0
