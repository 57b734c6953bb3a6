"""Wraps the extender handlers to fill the queue of unschedulable pods, and to keep nominated nodes
from pods of lower rank."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from agent.allocate.node_allocator.pod_request import Needs, PodRequestError
from agent.model.apiobjects import ApiPod
from agent.scheduler.changelog import ChangedNodes
from agent.scheduler.cluster import SchedulerCache
from agent.scheduler.cycle_state import PodInfo, PodInfoCache
from agent.scheduler.equivalence_cache import EquivalenceCache, Feasibility, NodeCheck
from agent.scheduler.evictor import Evictor
from agent.scheduler.extender import Extender
from agent.scheduler.extender_types import (
    ExtenderArgs,
    ExtenderBindingArgs,
    ExtenderBindingResult,
    ExtenderFilterResult,
    ExtenderPreemptionArgs,
    ExtenderPreemptionResult,
    HostPriority,
)
from agent.scheduler.pod_group import GroupError, PodGroup
from agent.scheduler.requirements import RequirementsCheck, requirements_of
from agent.scheduler.unschedulable_queue import QueuedPod, UnschedulableQueue

MAX_CANDIDATES: Final = 128
"""Infeasible nodes kept per pod for evictions; kube-scheduler sends them in another order each
time."""


class QueueingExtender:
    """The handlers around those of another Extender."""

    def __init__(
        self,
        handlers: Extender,
        pod_infos: PodInfoCache,
        cluster: SchedulerCache,
        queue: UnschedulableQueue,
        evictor: Evictor | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._handlers = handlers
        self._pod_infos = pod_infos
        self._cluster = cluster
        self._queue = queue
        self._evictor = evictor
        self._clock = clock

    def filter(self, args: ExtenderArgs) -> ExtenderFilterResult:
        nominated_nodes = self._nominated(args)
        if not nominated_nodes:
            result = self._handlers.filter(args)
        else:
            others = tuple(each for each in args.node_names if each not in nominated_nodes)
            result = self._handlers.filter(msgspec.structs.replace(args, node_names=others))
        if _is_empty(result.node_names):
            if not result.error:
                self._enqueue(args, result)
        else:
            self._queue.remove(args.pod.uid)
        return _without(result, [each for each in args.node_names if each in nominated_nodes])

    def prioritize(self, args: ExtenderArgs) -> Sequence[HostPriority] | msgspec.Raw:
        return self._handlers.prioritize(args)

    def preempt(self, args: ExtenderPreemptionArgs) -> ExtenderPreemptionResult:
        result = self._handlers.preempt(args)
        if result.victims and self._evictor is not None:
            self._evictor.pause(args.pod.uid, self._group(args.pod))
        return result

    def bind(self, args: ExtenderBindingArgs) -> ExtenderBindingResult:
        return self._handlers.bind(args)

    def _group(self, pod: ApiPod) -> PodGroup | None:
        try:
            return self._pod_infos.of(pod).group
        except (PodRequestError, GroupError):
            return None

    def _nominated(self, args: ExtenderArgs) -> frozenset[str]:
        """Returns the nodes that are nominated for other pods."""
        if not self._queue.has_nominations:
            return frozenset()
        try:
            info = self._pod_infos.of(args.pod)
        except (PodRequestError, GroupError):
            return frozenset()
        # A pod without CPUs or devices from us takes nothing of the room.
        if info.pod_request.needs is Needs.NOTHING:
            return frozenset()
        return self._queue.nominated_for_others(
            args.pod.uid, info.pod_request.priority, self._clock(), info.group
        )

    def _enqueue(self, args: ExtenderArgs, result: ExtenderFilterResult) -> None:
        try:
            info = self._pod_infos.of(args.pod)
        except (PodRequestError, GroupError):
            return  # a change of a node does not help, and kube-scheduler sees a change of the pod
        failed = result.failed_nodes
        if isinstance(failed, msgspec.Raw):
            failed = msgspec.json.decode(failed, type=dict[str, str])
        group_node = self._cluster.group_node(info.group) if info.group is not None else None
        candidates = failed if group_node is None else failed.keys() & {group_node}
        found = queued_pod(
            info,
            self._cluster,
            self._clock(),
            tuple(itertools.islice(candidates, MAX_CANDIDATES)),
            args.pod.nominated,
        )
        self._queue.add(found, args.node_names if group_node is None else (group_node,))


class ClusterFeasibility:
    """The feasibility of the cluster's nodes, for the unschedulable queue."""

    def __init__(self, cluster: SchedulerCache, cache: EquivalenceCache) -> None:
        self._cluster = cluster
        self._cache = cache

    def changed_since(self, serial: int) -> ChangedNodes:
        return self._cluster.changed_since(serial)

    def known(self) -> list[str]:
        return [each.name for each in self._cluster.nodes()]

    def results(self, check: NodeCheck, nodes: Sequence[str]) -> list[Feasibility]:
        return self._cache.results(check, nodes)


def queued_pod(
    info: PodInfo,
    cluster: SchedulerCache,
    now: float,
    candidates: tuple[str, ...] = (),
    nominated: str = "",
) -> QueuedPod:
    """A pod that is unschedulable since `now`."""
    needed = requirements_of(info, cluster)
    return QueuedPod(
        info.pod.uid,
        info.pod.namespace,
        info.pod.name,
        RequirementsCheck(cluster, needed),
        now,
        now,
        info.pod_request.priority,
        None,
        candidates,
        needed,
        nominated,
        info.group,
    )


def _is_empty(names: Sequence[str] | msgspec.Raw) -> bool:
    return bytes(names).strip() in (b"[]", b"null") if isinstance(names, msgspec.Raw) else not names


def _without(result: ExtenderFilterResult, nominated_nodes: Sequence[str]) -> ExtenderFilterResult:
    """Adds to the result why the nodes in `nominated_nodes` are missing."""
    if not nominated_nodes:
        return result
    reasons = result.failed_and_unresolvable_nodes
    if isinstance(reasons, msgspec.Raw):
        reasons = msgspec.json.decode(reasons, type=dict[str, str])
    nominated = dict.fromkeys(nominated_nodes, "room is being made here for a more important pod")
    return msgspec.structs.replace(result, failed_and_unresolvable_nodes={**reasons, **nominated})
