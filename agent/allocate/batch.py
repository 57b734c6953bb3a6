"""The values of a pod's cgroups that follow from batch-cpu and batch-memory (Koordinator:
pkg/koordlet/runtimehooks/hooks/batchresource/batch_resource.go).

The request is the weight, the limit is the quota. A pod gets the sum of its containers, and has no
limit where one of them has none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import msgspec

from agent.model.batch import BatchResources, cpu_request_milli
from agent.model.qos import QoS
from agent.model.snapshot import (
    LEAST_QUOTA_MICROSECONDS,
    LEAST_SHARES,
    MOST_SHARES,
    PERIOD_MICROSECONDS,
    UNLIMITED,
    CgroupLimits,
)


class BatchLimits(msgspec.Struct, frozen=True):
    """The pod's own group, and its containers' by name."""

    pod: CgroupLimits
    containers: dict[str, CgroupLimits]


def batch_limits(
    qos: QoS, containers: Mapping[str, BatchResources], cpu_normalization_ratio: float = 1.0
) -> BatchLimits | None:
    """None for a pod that is not BE or carries no amounts: its groups are left alone.

    `cpu_normalization_ratio`: how much faster this node's CPUs are than those that pods count in;
    above 1, quotas shrink by it.
    """
    if qos is not QoS.BE or not containers:
        return None
    each = {
        name: CgroupLimits(
            quota_microseconds=_quota(amounts.cpu_limit_milli, cpu_normalization_ratio),
            shares=_shares(amounts.cpu_request_milli),
            memory_limit_bytes=_bytes(amounts.memory_limit_bytes),
        )
        for name, amounts in containers.items()
    }
    cpu_milli = _sum(amounts.cpu_limit_milli for amounts in containers.values())
    memory_bytes = _sum(amounts.memory_limit_bytes for amounts in containers.values())
    pod = CgroupLimits(
        quota_microseconds=_quota(cpu_milli, cpu_normalization_ratio),
        shares=_shares(cpu_request_milli(containers)),
        memory_limit_bytes=_bytes(memory_bytes),
    )
    return BatchLimits(pod, each)


def _quota(cpu_milli: int | None, ratio: float) -> int:
    if cpu_milli is None:
        return UNLIMITED
    quota = cpu_milli * PERIOD_MICROSECONDS // 1000
    return max(LEAST_QUOTA_MICROSECONDS, math.ceil(quota / ratio) if ratio > 1 else quota)


def _shares(cpu_milli: int) -> int:
    return min(max(LEAST_SHARES, cpu_milli * 1024 // 1000), MOST_SHARES)


def _bytes(limit: int | None) -> int:
    return UNLIMITED if limit is None else limit


def _sum(limits: Iterable[int | None]) -> int | None:
    total = 0
    for each in limits:
        if each is None:
            return None
        total += each
    return total
