"""CPU suppression: BE pods get what all others leave, as a part of their pool or as a quota."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from agent.allocate.colocation import be_suppress
from agent.allocate.colocation.be_suppress import BePool, NodeUse, Suppression
from agent.allocate.pools import Decision
from agent.cgroup import limits
from agent.cgroup.hierarchy import CgroupError, Controllers
from agent.cgroup.journal import Journal, OriginalValue
from agent.cgroup.order import parent
from agent.model.bounds import JsonError
from agent.model.cpu.cpuset import EMPTY, CpuSet, CpuSetError, union
from agent.model.cpu.policies import BeOnOwned
from agent.model.cpu.topology import Topology
from agent.model.linux_resources import (
    NO_QUOTA,
    PERIOD_MICROSECONDS,
    UNLIMITED,
    CpuQuota,
    LinuxResources,
)
from agent.model.pod.annotations import AnnotationError
from agent.model.pod.qos import QoS, is_qos_root
from agent.node.colocation.moment import ColocatedPod, Moment
from agent.node.features import Key, WantedFiles
from agent.view import colocation

log = logging.getLogger(__name__)

_NOTHING: Final = Suppression()
GROW_SECONDS: Final = 5.0
"""BE pods lose CPUs at once, and get some back so long after the last change: each is a pass."""
LONGEST_PERIOD_MICROSECONDS: Final = 1_000_000
"""The kernel allows no longer one. When a period begins after BE pods were throttled, a service
that wakes then waits for them up to a tick, and ten periods a second have ten such moments
(docs/benchmarks.md)."""


def last(path: str) -> Suppression:
    """What the last agent has left to BE pods, by its file for people."""
    try:
        shown = colocation.read(path)
        if not shown.suppresses:
            return _NOTHING
        milli = shown.be_quota_milli
        return Suppression(
            CpuSet.parse(shown.be_cpus) or None,
            None if milli is None else CpuQuota(milli * PERIOD_MICROSECONDS // 1000),
        )
    except FileNotFoundError:
        return _NOTHING
    except (OSError, JsonError, CpuSetError) as error:
        log.warning("%s: what BE pods have is not known: %s", path, error)
        return _NOTHING


class CpuSuppression:
    """The strategy `resourceUsedThresholdWithBE`, as far as it is about CPUs.

    `node_use`: returns the newest use of CPU, None while it is not known; it may raise
        AnnotationError.
    `on_owned`: whether suppressed BE pods run on CPUs that LSR pods own.
    `last`: what BE pods have of the last agent. They keep it until the use is known."""

    name = "cpu-suppression"

    def __init__(
        self,
        controllers: Controllers,
        journal: Journal,
        node_use: Callable[[], NodeUse | None],
        on_owned: BeOnOwned = BeOnOwned.IN_PROPORTION,
        clock: Callable[[], float] = time.monotonic,
        last: Suppression = _NOTHING,
    ) -> None:
        self._controllers = controllers
        self._journal = journal
        self._node_use = node_use
        self._on_owned = on_owned
        self._clock = clock
        self._pool = BePool((), EMPTY)
        self._changed_at = 0.0
        self.now = last
        """What BE pods get."""

    def follow(self, topology: Topology, decision: Decision) -> None:
        """Takes the pools of a pass."""
        owned = union(owner.cpus for owner in decision.owners if owner.qos is QoS.LSR)
        self._pool = BePool(topology.cpus, decision.be_pool, owned, self._on_owned)

    def wanted(self, moment: Moment) -> WantedFiles:
        strategy = moment.strategies.slo.resource_used_threshold_with_be
        problem = ""
        try:
            use = self._node_use() if strategy.enable else None
        except AnnotationError as error:
            use, problem = None, str(error)
        new = be_suppress.suppression(strategy, use, self._pool, self.now)
        self.now = self._steady(new)
        quota = self.now.quota
        return WantedFiles({} if quota is None else self._quotas(quota, moment.pods), problem)

    def _steady(self, new: Suppression) -> Suppression:
        now, had = self._clock(), self.now.cpus
        if new.cpus is not None and had is not None and len(new.cpus) >= len(had):
            stays = len(new.cpus) == len(had) or now - self._changed_at < GROW_SECONDS
            if stays and had <= self._pool.usable():
                return msgspec.structs.replace(new, cpus=had)
        if new.cpus != had:
            self._changed_at = now
        return new

    def _quotas(self, of_all: CpuQuota, pods: Iterable[ColocatedPod]) -> dict[Key, str]:
        """The quota of the kubelet's group of all BE pods, in the longest period. On v1 no group in
        it may have a larger one."""
        quotas: dict[Key, str] = {}
        originals = self._journal.values  # sorted at each read
        for pod in pods:
            above = parent(pod.group)
            if pod.qos is not QoS.BE or not is_qos_root(above):
                continue
            with contextlib.suppress(CgroupError, ValueError):  # a group that is gone has none
                quotas |= self._of_all(above, of_all)
            if self._controllers.version("cpu") != 1:
                continue
            for group in (pod.group, *pod.containers.values()):
                with contextlib.suppress(CgroupError, ValueError):
                    own = self._own_quota(group, originals)
                    if be_suppress.within(own, of_all) != own:
                        quotas |= self._quota(group, of_all)
        return quotas

    def _of_all(self, group: str, quota: CpuQuota) -> dict[Key, str]:
        if self._controllers.version("cpu") == 1:
            text = limits.quota_text(quota, f"{UNLIMITED} {LONGEST_PERIOD_MICROSECONDS}")
            period = str(LONGEST_PERIOD_MICROSECONDS)
            return {(group, limits.QUOTA): text, (group, limits.PERIOD): period}
        return {(group, limits.MAX): limits.max_text(quota, f"max {LONGEST_PERIOD_MICROSECONDS}")}

    def _quota(self, group: str, quota: CpuQuota) -> dict[Key, str]:
        resources = LinuxResources(quota=quota)
        return {
            (group, file): limits.text(
                self._controllers, group, file, resources, self._controllers.read(group, file) or ""
            )
            for file in limits.files(self._controllers, resources)
        }

    def _own_quota(self, group: str, originals: Mapping[Key, OriginalValue]) -> CpuQuota:
        """The quota of a v1 group before suppression. Raises CgroupError, ValueError."""
        journalled = originals.get((group, limits.QUOTA))
        text = self._controllers.read(group, limits.QUOTA) or ""
        if journalled is not None:
            text = limits.original(journalled, text)
        texts = {limits.QUOTA: text}
        return limits.parsed(self._controllers, group, texts).quota or NO_QUOTA
