"""What all containers of a pod ask for together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec


class InitRequests(msgspec.Struct, frozen=True):
    """Of an init container; `sidecar`: it keeps running beside all that come after it."""

    requests: Mapping[str, int]
    sidecar: bool = False


def pod_total(
    containers: Iterable[Mapping[str, int]], init: Iterable[InitRequests] = ()
) -> dict[str, int]:
    """By resource, as the API server counts: the containers beside all sidecars, or more where an
    init container, beside the sidecars before it, asks for more."""
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
    return total


def _add(sums: dict[str, int], amounts: Mapping[str, int]) -> None:
    for name, amount in amounts.items():
        sums[name] = sums.get(name, 0) + amount
