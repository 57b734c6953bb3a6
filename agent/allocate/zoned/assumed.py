"""Pods that were placed since a node told of its zones: what is gone without them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

import msgspec

from agent.allocate.zoned.node import ZonedNode

Key = TypeVar("Key", int, str)


class Assumed(msgspec.Struct, frozen=True):
    """What one pod takes, by NUMA node and resource; and what it takes of NUMA nodes that the
    kubelet chooses, so that it may be any of them (`anywhere`, by resource)."""

    zones: Mapping[int, Mapping[str, int]] = {}
    anywhere: Mapping[str, int] = {}


def without(node: ZonedNode, pods: Iterable[Assumed]) -> ZonedNode:
    """What is left beside these pods, at least: what may be gone from any NUMA node is gone from
    each one, though only once from all together. Never less than nothing; resources that the
    node's zones do not tell of are passed over."""
    zones: dict[str, dict[int, int]] = {}
    total = dict(node.together)
    for pod in pods:
        for zone, amounts in pod.zones.items():
            for resource, amount in amounts.items():
                there = node.available.get(resource, {})
                if zone in there:
                    _take(zones.setdefault(resource, dict(there)), (zone,), amount)
                    _take(total, (resource,), amount)
        for resource, amount in pod.anywhere.items():
            there = node.available.get(resource, {})
            if there:
                _take(zones.setdefault(resource, dict(there)), node.zones, amount)
                _take(total, (resource,), amount)
    return msgspec.structs.replace(node, available={**node.available, **zones}, together=total)


def _take(amounts: dict[Key, int], keys: Iterable[Key], amount: int) -> None:
    for key in keys:
        if key in amounts:
            amounts[key] = max(0, amounts[key] - amount)
