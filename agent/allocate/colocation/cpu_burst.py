"""CPU above its limit for a container that is throttled while the node has CPU to spare
(Koordinator: pkg/koordlet/qosmanager/plugins/cpuburst; Linux: kernel/sched/core.c,
tg_set_cfs_bandwidth).

A group may save CPU time that it does not use up to its burst, and a quota that is too small grows
in steps up to a multiple of the limit. Both are for pods of the classes LS and SYSTEM: the others
own CPUs, or get what is left.

A mainline kernel refuses a burst above the group's quota, and a quota below its burst. So no burst
is larger than the quota of the limit, which a runtime or a kubelet may write again at any time. A
pod's quota is made of its limit and of what its containers got above theirs, whatever its cgroup
has, so a write that failed leaves nothing behind.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

import msgspec

from agent.model.linux_resources import LEAST_QUOTA_MICROSECONDS, CpuQuota
from agent.model.node_slo import CpuBurst

SAVING: Final = ("cpuBurstOnly", "auto")
SCALING: Final = ("cfsQuotaBurstOnly", "auto")
"""The policies with which groups save CPU time, and those with which quotas grow."""
_UP, _SAME, _DOWN = 12, 10, 8
"""Tenths of a quota."""
_COOLING: Final = 0.9
"""The part of the threshold from which on no quota grows."""
_FIRST_TOKENS: Final = 0.25
"""The part of a limiter's capacity that a container starts with."""
_SAVES_BELOW_PERCENT: Final = 60


class SharedUse(msgspec.Struct, frozen=True):
    """The CPUs of a node and the use of those that no pod owns."""

    cpus: int
    owned_milli: int
    """What LSE and LSR pods request."""
    used_cores: float | None
    """What all others but BE pods use, over some seconds; None if it is not known."""
    cpu_normalization_ratio: float = 1.0
    """What the quotas of limits may be divided by."""


class SharePool(enum.Enum):
    """The state of the CPUs that are shared."""

    IDLE = "idle"
    COOLING = "cooling"
    """No quota grows."""
    OVERLOAD = "overload"
    """Quotas shrink to their limits."""
    UNKNOWN = "unknown"
    """Not measured: no quota grows."""


def share_pool(strategy: CpuBurst, use: SharedUse | None) -> SharePool:
    """The state by the part that is used of the CPUs that no pod owns."""
    if use is None or use.used_cores is None:
        return SharePool.UNKNOWN
    shared = use.cpus - use.owned_milli / 1000
    used = use.used_cores / shared if shared > 0 else 1.0
    threshold = strategy.share_pool_threshold_percent / 100
    if used >= threshold:
        return SharePool.OVERLOAD
    return SharePool.COOLING if used >= _COOLING * threshold else SharePool.IDLE


class BurstContainer(msgspec.Struct, frozen=True):
    """A container. Quotas are for a period of 100 ms."""

    limit_microseconds: int | None
    """What its limit means on this node, maybe less than the kernel takes; None without a limit, or
    where its quota is lifted."""
    quota_microseconds: int | None = None
    """The present quota, UNLIMITED without one; None if the container does not run."""
    throttled: bool = False
    """Whether it was throttled in the last second."""
    limited: bool = False
    """Whether its tokens are used up."""

    def scales(self) -> bool:
        """Whether its quota is this strategy's."""
        return self.limit_microseconds is not None and self.quota_microseconds is not None


class BurstPod(msgspec.Struct, frozen=True):
    """A pod and its containers."""

    limit_microseconds: int | None
    """None where the pod has no quota: one of its containers has no limit, or it is lifted."""
    containers: Mapping[str, BurstContainer]
    """By name."""


class CpuValues(msgspec.Struct, frozen=True):
    """Wanted values of a group."""

    quota: CpuQuota | None
    """None: it stays as it is."""
    burst_microseconds: int
    """For a period of 100 ms, 0 for none."""


class PodCpuValues(msgspec.Struct, frozen=True):
    """Wanted values of the groups of a pod."""

    pod: CpuValues
    containers: Mapping[str, CpuValues]
    """By name."""


def pod_burst(strategy: CpuBurst, pool: SharePool, pod: BurstPod) -> PodCpuValues:
    """The values of a pod and its containers in this round, a second after the one before. Where
    the strategy is off, they are those of the limits, without a burst.

    `strategy`: the pod's own, which its annotation may have changed."""
    quotas = {name: _quota(strategy, pool, each) for name, each in pod.containers.items()}
    bases = {name: _base(each) for name, each in pod.containers.items()}
    bursts = {
        name: min(wanted_burst(strategy, each), bases[name])
        for name, each in pod.containers.items()
    }
    whole, burst = None, sum(bursts.values())
    if pod.limit_microseconds is not None:
        of_limit = max(LEAST_QUOTA_MICROSECONDS, pod.limit_microseconds, *bases.values())
        whole = of_limit + sum(quotas.values()) - sum(bases.values())
        burst = min(burst, of_limit)
    return PodCpuValues(
        CpuValues(None if whole is None else CpuQuota(whole), burst),
        {
            name: CpuValues(CpuQuota(quotas[name]) if each.scales() else None, bursts[name])
            for name, each in pod.containers.items()
        },
    )


def wanted_burst(strategy: CpuBurst, container: BurstContainer) -> int:
    """By the strategy alone, in microseconds."""
    limit = container.limit_microseconds
    if limit is None or strategy.policy not in SAVING:
        return 0
    return limit * strategy.cpu_burst_percent // 100


def _base(container: BurstContainer) -> int:
    """The quota of the limit, 0 without one."""
    limit = container.limit_microseconds
    return 0 if limit is None else max(LEAST_QUOTA_MICROSECONDS, limit)


def _quota(strategy: CpuBurst, pool: SharePool, container: BurstContainer) -> int:
    least, present = _base(container), container.quota_microseconds
    if present is None or strategy.policy not in SCALING:
        return least
    most = least * strategy.cfs_quota_burst_percent // 100
    return min(max(least, present * _tenths(pool, container) // 10), most)


def _tenths(pool: SharePool, container: BurstContainer) -> int:
    if container.limited or pool is SharePool.OVERLOAD:
        return _DOWN
    return _UP if container.throttled and pool is SharePool.IDLE else _SAME


def token_capacity(strategy: CpuBurst) -> int | None:
    """The most tokens that a container may save or owe: percent of its limit times seconds. None if
    nothing limits how long it is above its limit."""
    period = strategy.cfs_quota_burst_period_seconds
    return None if period < 0 else period * (strategy.cfs_quota_burst_percent - 100)


def tokens(capacity: int, before: float | None, used_percent: float, seconds: float) -> float:
    """The tokens of a container, which pay for use above its limit; without any, its quota shrinks.

    `before`: the container had so many; None if it was not seen before.
    `used_percent`: it used so much of its limit since then.
    `seconds`: so much time has passed since then."""
    left = capacity * _FIRST_TOKENS if before is None else before
    if used_percent >= 100 or used_percent < _SAVES_BELOW_PERCENT:
        left += (100 - used_percent) * seconds
    return min(max(left, -capacity), capacity)
