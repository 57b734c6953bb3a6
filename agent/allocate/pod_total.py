"""The total requests of a pod's containers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from agent.model.apiobjects import ApiPod

_NOTHING: Final[Mapping[str, int]] = MappingProxyType({})


class InitRequests(msgspec.Struct, frozen=True):
    """Of an init container; `sidecar`: it keeps running while all later containers run."""

    requests: Mapping[str, int]
    sidecar: bool = False


def pod_total(
    containers: Iterable[Mapping[str, int]],
    init: Iterable[InitRequests] = (),
    whole: Mapping[str, int] = _NOTHING,
    overhead: Mapping[str, int] = _NOTHING,
) -> dict[str, int]:
    """By resource, as the API server counts: the containers together with all sidecars, or more
    where an init container, together with the sidecars before it, requests more. Pod-level requests
    (`whole`) override that for the resources that may be requested so; `overhead` is added."""
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


def requests(pod: ApiPod) -> dict[str, int]:
    """By resource: `cpu` in milli-CPU, the rest in units, overhead included; zeros are left out."""
    total = pod_total(
        (each.requests for each in pod.containers),
        (InitRequests(each.requests, each.sidecar) for each in pod.init_containers),
        pod.requests,
        pod.overhead,
    )
    return {name: amount for name, amount in total.items() if amount > 0}


def cpu_limit_milli(pod: ApiPod) -> int | None:
    """Of all that runs at the same time, None where something of it has no limit."""
    running = (*pod.containers, *(each for each in pod.init_containers if each.sidecar))
    if "cpu" in pod.limits:
        limit = pod.limits["cpu"]
    elif running and all(each.limits.get("cpu") for each in running):
        limit = sum(each.limits["cpu"] for each in running)
    else:
        return None
    return limit + pod.overhead.get("cpu", 0)
