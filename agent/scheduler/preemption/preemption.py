"""The handler of the verb preempt: kube-scheduler's candidate nodes, with the victims that free the
CPUs, NUMA nodes and devices for the pod."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from agent.model.pod.apiobjects import GroupError, PodGroup
from agent.model.pod_request import Needs, PodRequestError
from agent.scheduler.extender.extender import (
    ExtenderPreemptionArgs,
    ExtenderPreemptionResult,
    MetaPod,
    MetaVictims,
)
from agent.scheduler.preemption.disruption_budgets import Budgets
from agent.scheduler.preemption.victim_selection import (
    BoundPod,
    NodeSnapshot,
    NodeSnapshots,
    PreemptionCandidate,
    select_victims,
)
from agent.scheduler.state.cluster import SchedulerCache
from agent.scheduler.state.group_reservations import GroupReservations
from agent.scheduler.state.pod_info import PodInfo, Requirements, pod_info
from agent.scheduler.unschedulable.queue import UnschedulableQueue

EVICTION_SECONDS: Final = 10.0
"""Time in which kube-scheduler evicts the victims and retries a member of the group."""
SEARCH_SECONDS: Final = 2.0
"""Time for the candidates of a request; candidates that are not checked in it are omitted.
kube-scheduler waits 5 s (`httpTimeout`), and its next request begins with other nodes."""
# Trials for all candidates of a request, and the minimum for each.
_TRIALS, _MIN_TRIALS = 2000, 20


class Preemption:
    """Answers the verb preempt: the pods whose eviction makes room. Safe for many threads."""

    def __init__(
        self,
        cluster: SchedulerCache,
        groups: GroupReservations,
        queue: UnschedulableQueue,
        budgets: Budgets,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._groups = groups
        self._queue = queue
        self._budgets = budgets
        self._clock = clock
        self._snapshots = NodeSnapshots(cluster)
        self._lock = threading.Lock()
        self._preemptions: dict[str, _Preemption] = {}

    def __call__(self, args: ExtenderPreemptionArgs) -> ExtenderPreemptionResult:
        """Returns the candidates on which victims of lower priority make room.

        Victims of kube-scheduler are replaced only if resources alone explain them, and only by
        victims that release as much: its other reasons are not known here.
        """
        try:
            info = pod_info(args.pod, self._cluster.pod_defaults)
        except (PodRequestError, GroupError):
            return ExtenderPreemptionResult({})
        if not info.pod_request.preempts:
            return ExtenderPreemptionResult({})
        if info.group is not None:
            with self._lock:
                return ExtenderPreemptionResult(self._for_group(args, info, info.group))
        return ExtenderPreemptionResult(self._for_pod(args, info))

    def _for_pod(self, args: ExtenderPreemptionArgs, info: PodInfo) -> dict[str, MetaVictims]:
        pod_request, requirements = info.pod_request, self._cluster.requirements(info)
        candidates: dict[str, MetaVictims] = {}
        expired = self._deadline()
        for node, named in args.victims.items():
            if expired():
                break
            snapshot = self._snapshots.take(node, pod_request)
            if snapshot is None:
                continue
            allocator = snapshot.allocator
            needs = allocator.as_here(pod_request).needs
            if needs is Needs.NOTHING and not allocator.properties.binds_all:
                candidates[node] = named
            elif found := self._select(args, requirements, snapshot, named, expired):
                candidates[node] = _victims(found)
        return candidates

    def _for_group(
        self, args: ExtenderPreemptionArgs, info: PodInfo, group: PodGroup
    ) -> Mapping[str, MetaVictims]:
        """Makes room once, on one node, for all members that have no room yet."""
        with self._cluster.lock:
            reserved_node = self._groups.reserved_node(group)
            group_node = self._cluster.group_node(group)
            requirements = self._cluster.requirements(info)
        if reserved_node is not None:
            # The group has reserved its parts there; kube-scheduler's victims have other reasons.
            return {node: named for node, named in args.victims.items() if node == reserved_node}
        if self._in_progress_for(group) or self._queue.has_nomination(group):
            return {}
        found: list[PreemptionCandidate] = []
        expired = self._deadline()
        for node, named in args.victims.items():
            if expired():
                break
            if group_node is not None and node != group_node:
                continue
            snapshot = self._snapshots.take(node, info.pod_request, group)
            if snapshot is None:
                continue
            if one := self._select(args, requirements, snapshot, named, expired):
                found.append(one)
        if not found:
            return {}
        best = min(found, key=lambda each: each.key)
        self._preemptions[group.title] = _Preemption(best.victims, self._clock())
        return {best.node: _victims(best)}

    def _select(
        self,
        args: ExtenderPreemptionArgs,
        requirements: Requirements,
        snapshot: NodeSnapshot,
        named: MetaVictims,
        expired: Callable[[], bool],
    ) -> PreemptionCandidate | None:
        uids = frozenset(each.uid for each in named.pods)
        replaceable = not args.constrained and snapshot.resources.explains(
            requirements.pod_request.requests, uids
        )
        return select_victims(
            snapshot.allocator,
            snapshot.potential_victims,
            requirements,
            self._budgets,
            required=() if replaceable else uids,
            resources=snapshot.resources if replaceable else None,
            trials=max(_MIN_TRIALS, _TRIALS // (len(args.victims) * requirements.pods)),
            expired=expired,
        )

    def _deadline(self) -> Callable[[], bool]:
        """Returns whether the time of a request has passed that begins now."""
        until = self._clock() + SEARCH_SECONDS
        return lambda: self._clock() >= until

    def _in_progress_for(self, group: PodGroup) -> bool:
        """Whether victims of the last result for the group are still terminating."""
        now = self._clock()
        for title, each in list(self._preemptions.items()):
            if self._snapshots.any_terminating(each.victims):
                each.seen_at = now
            elif now - each.seen_at >= EVICTION_SECONDS:
                del self._preemptions[title]
        return group.title in self._preemptions


class _Preemption(msgspec.Struct):
    """`seen_at` is when the preemption was last observed in progress."""

    victims: tuple[BoundPod, ...]
    seen_at: float


def _victims(found: PreemptionCandidate) -> MetaVictims:
    return MetaVictims(tuple(MetaPod(each.uid) for each in found.victims), found.violations)
