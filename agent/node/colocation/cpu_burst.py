"""CPU burst: LS and SYSTEM pods get CPU above their limits while the node has some to spare.

A group's quota without the strategy is its base: what the kubelet, or whatever normalizes CPUs, has
written. Another content than the base and what the agent wrote is a new base. A quota at its base
is not among the wanted files, so that nothing is written over a resize."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from agent.allocate.colocation import cpu_burst
from agent.allocate.colocation.cpu_burst import (
    BurstContainer,
    BurstPod,
    CpuValues,
    SharedUse,
    SharePool,
)
from agent.cgroup import limits
from agent.cgroup.hierarchy import CgroupError, Controllers
from agent.cgroup.journal import Journal, JournalError, OriginalValue
from agent.model.linux_resources import (
    LEAST_QUOTA_MICROSECONDS,
    NO_QUOTA,
    PERIOD_MICROSECONDS,
    CpuQuota,
    LinuxResources,
)
from agent.model.node_slo import CpuBurst
from agent.model.pod.annotations import AnnotationError
from agent.model.pod.apiobjects import ApiPod
from agent.model.pod.qos import QoS
from agent.model.pod.resource_request import pod_cpu_limit_milli
from agent.model.snapshot import PodWanted
from agent.node.colocation.moment import ColocatedPod, Moment
from agent.node.features import Key, WantedFiles
from agent.node.usage import CgroupUse

_CLASSES: Final = (QoS.LS, QoS.SYSTEM)
_MICROSECONDS_OF_MILLI: Final = PERIOD_MICROSECONDS // 1000
_ROUNDED: Final = 0.01
"""The part by which a quota may differ from that of its limit, by periods and ratios."""


class _Group(msgspec.Struct):
    """What is known of a group with a quota."""

    base: str
    """The content of the file of the quota without the strategy."""
    quota: CpuQuota
    """The same."""
    present: str
    present_quota: CpuQuota
    wanted: str
    """The content after this second."""
    throttled_periods: int | None = None
    used_seconds: float | None = None
    at: float = 0.0
    """When `used_seconds` was read."""
    tokens: float | None = None


class CpuBursting:
    """The strategy `cpuBurstStrategy`.

    `shared_use`: returns the use of the CPUs that no pod owns, None while it is not known; it may
        raise AnnotationError.
    `wake`: lets the agent make a pass, which sets the quotas that are not burst's any more."""

    name = "cpu-burst"

    def __init__(
        self,
        controllers: Controllers,
        journal: Journal,
        shared_use: Callable[[], SharedUse | None],
        wake: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._controllers = controllers
        self._use = CgroupUse(controllers)
        self._journal = journal
        self._shared_use = shared_use
        self._wake = wake
        self._clock = clock
        v1 = controllers.version("cpu") == 1
        self._quota_file = limits.QUOTA if v1 else limits.MAX
        self._burst_file = limits.BURST if v1 else limits.MAX_BURST
        self._saves: bool | None = None
        self._before: dict[str, _Group] = {}
        self._groups: dict[str, _Group] = {}
        self._originals: Mapping[Key, OriginalValue] = {}

    def wanted(self, moment: Moment) -> WantedFiles:
        self._before, self._groups = self._groups, {}
        bursting = [
            pod
            for pod in moment.pods
            if pod.qos in _CLASSES and pod.strategies.cpu_burst.policy != "none"
        ]
        if not bursting or moment.decision is None:
            return WantedFiles()
        self._originals = self._journal.values  # sorted at each read
        problems, use = [], None
        try:
            use = self._shared_use()
        except AnnotationError as error:
            problems.append(str(error))
        pool = cpu_burst.share_pool(moment.strategies.slo.cpu_burst_strategy, use)
        ratio = 1.0 if use is None else use.cpu_normalization_ratio
        files: dict[Key, str] = {}
        for pod in bursting:
            decided = moment.decision.pods.get(pod.uid)
            if decided is not None:
                files |= self._files(pod, decided, pool, ratio, self._kernel_saves(pod.group))
        saving = any(pod.strategies.cpu_burst.policy in cpu_burst.SAVING for pod in bursting)
        if saving and self._saves is False:
            problems.append(f"this kernel has no {self._burst_file}")
        return WantedFiles(files, "; ".join(problems))

    def _kernel_saves(self, group: str) -> bool:
        """Whether this kernel has bursts, by the files of a group of a pod."""
        if self._saves is None:
            try:
                self._saves = self._controllers.read(group, self._burst_file) is not None
            except CgroupError:  # the group is gone: the next one tells
                return False
        return self._saves

    def _files(
        self, pod: ColocatedPod, decided: PodWanted, pool: SharePool, ratio: float, saves: bool
    ) -> dict[Key, str]:
        strategy, groups = pod.strategies.cpu_burst, {}
        limits_milli = _limits_milli(pod.api_pod)
        for name, group in pod.containers.items():
            limit_milli = limits_milli.get(name)
            if limit_milli is None or decided.of(name).resources.quota is not None:
                continue
            followed = self._followed(group, limit_milli, ratio)
            if followed is not None:
                groups[name] = followed
                if not _is_of(followed.quota, limit_milli, ratio):
                    # A resize is in progress. The kernel refuses the kubelet's quotas below a
                    # burst, and on v1 those of the pod below one of a container.
                    strategy = CpuBurst()
        of_pod = None
        if decided.group.quota is None:
            of_pod = self._followed(pod.group, pod_cpu_limit_milli(pod.api_pod), ratio)
        elif pod.group in self._before:
            self._wake()
        values = cpu_burst.pod_burst(
            strategy,
            pool,
            BurstPod(
                None if of_pod is None else _microseconds(of_pod.quota),
                {
                    name: self._measured(strategy, pod.containers[name], followed)
                    for name, followed in groups.items()
                },
            ),
        )
        files: dict[Key, str] = {}
        saves = saves and strategy.policy != "none"
        if of_pod is not None:
            files |= self._of_group(pod.group, of_pod, values.pod, saves)
        for name, followed in groups.items():
            files |= self._of_group(pod.containers[name], followed, values.containers[name], saves)
        return files

    def _followed(self, group: str, limit_milli: int | None, ratio: float) -> _Group | None:
        """None for a group that is gone or has no quota."""
        try:
            present = self._controllers.read(group, self._quota_file)
            if present is None:
                return None
            followed = self._before.get(group) or self._first(group, present)
            followed.present_quota = self._quota(group, present, followed)
        except CgroupError:
            return None
        # A kubelet may write what a quota was scaled to, and a write may have failed.
        if present not in (followed.base, followed.present, followed.wanted) or (
            _is_of(followed.present_quota, limit_milli, ratio)
            and not _is_of(followed.quota, limit_milli, ratio)
        ):
            followed.base, followed.quota = present, followed.present_quota
        if followed.quota == NO_QUOTA:
            return None
        followed.present = present
        self._groups[group] = followed
        return followed

    def _first(self, group: str, present: str) -> _Group:
        """Raises CgroupError."""
        journalled = self._originals.get((group, self._quota_file))
        base = present if journalled is None else limits.original(journalled, present)
        quota = self._quota(group, base)
        return _Group(base, quota, present, quota, present)

    def _quota(self, group: str, text: str, followed: _Group | None = None) -> CpuQuota:
        """Raises CgroupError."""
        if followed is not None and text == followed.base:
            return followed.quota
        resources = limits.parsed(self._controllers, group, {self._quota_file: text})
        return resources.quota or NO_QUOTA

    def _measured(self, strategy: CpuBurst, group: str, followed: _Group) -> BurstContainer:
        limit, quota = _microseconds(followed.quota), _microseconds(followed.present_quota)
        if strategy.policy not in cpu_burst.SCALING:
            return BurstContainer(limit, quota)
        counters = self._use.throttling(group)
        periods = 0 if counters is None else counters.throttled_periods
        throttled = followed.throttled_periods is not None and periods > followed.throttled_periods
        followed.throttled_periods = periods
        return BurstContainer(limit, quota, throttled, self._limited(strategy, group, followed))

    def _limited(self, strategy: CpuBurst, group: str, followed: _Group) -> bool:
        capacity = cpu_burst.token_capacity(strategy)
        if capacity is None:
            return False
        used_seconds, now = self._use.cpu_seconds(group), self._clock()
        if used_seconds is not None:
            percent = passed = 0.0
            if followed.used_seconds is not None and now > followed.at:
                passed = now - followed.at
                cores = max(0.0, used_seconds - followed.used_seconds) / passed
                percent = 100 * cores * PERIOD_MICROSECONDS / _microseconds(followed.quota)
            followed.tokens = cpu_burst.tokens(capacity, followed.tokens, percent, passed)
            followed.used_seconds, followed.at = used_seconds, now
        return followed.tokens is not None and followed.tokens <= 0

    def _of_group(
        self, group: str, followed: _Group, values: CpuValues, saves: bool
    ) -> Mapping[Key, str]:
        files: dict[Key, str] = {}
        key, followed.wanted = (group, self._quota_file), followed.base
        quota = values.quota
        if quota is not None and quota.microseconds > _microseconds(followed.quota):
            try:
                resources = LinuxResources(quota=quota)
                followed.wanted = limits.text(self._controllers, *key, resources, followed.present)
            except CgroupError:  # the group is gone
                return files
        if followed.wanted != followed.base or not self._original_is_base(key, followed):
            files[key] = followed.wanted
        if saves:
            period = followed.quota.period_microseconds
            burst = values.burst_microseconds * period // PERIOD_MICROSECONDS
            files[group, self._burst_file] = str(burst)
        return files

    def _original_is_base(self, key: Key, followed: _Group) -> bool:
        """Makes a base that another process has written the original value. Returns whether it
        is."""
        journalled = self._originals.get(key)
        if journalled is None or journalled.value == followed.base:
            return True
        try:
            self._journal.update_values([OriginalValue(*key, followed.base)], [key])
        except JournalError:  # the file counts as wanted until the journal can be written
            return False
        return True


def _limits_milli(pod: ApiPod) -> dict[str, int]:
    """The CPU limits of the containers that run at the same time."""
    running = (*pod.containers, *(each for each in pod.init_containers if each.sidecar))
    return {each.name: each.limits["cpu"] for each in running if each.limits.get("cpu")}


def _microseconds(quota: CpuQuota) -> int:
    """For a period of 100 ms."""
    return quota.microseconds * PERIOD_MICROSECONDS // quota.period_microseconds


def _is_of(quota: CpuQuota, limit_milli: int | None, ratio: float) -> bool:
    """Whether it is the quota of this limit, as it is or normalized."""
    if limit_milli is None:
        return False
    of_limit = max(LEAST_QUOTA_MICROSECONDS, limit_milli * _MICROSECONDS_OF_MILLI)
    return any(
        math.isclose(_microseconds(quota), whole, rel_tol=_ROUNDED)
        for whole in (of_limit, of_limit / ratio)
    )
