"""The services for unschedulable pods: retries after a node changed, preemption, and evictions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from agent.allocate.node_allocator.pod_request import PodRequestError
from agent.host.daemon import Periodic
from agent.kube.listwatch import ListWatch
from agent.kube.objects import Change
from agent.kube.transport import Transport
from agent.scheduler import disruption_budgets, watch_freshness
from agent.scheduler.cluster import SchedulerCache
from agent.scheduler.cycle_state import PodInfoCache, pod_info
from agent.scheduler.disruption_budgets import Budget, Budgets
from agent.scheduler.equivalence_cache import EquivalenceCache
from agent.scheduler.evictor import Evictor
from agent.scheduler.extender import Extender
from agent.scheduler.group_reservations import GroupReservations
from agent.scheduler.pod_group import GroupError
from agent.scheduler.pods_api import unscheduled_pods
from agent.scheduler.preemption import Preemption
from agent.scheduler.queueing import ClusterFeasibility, QueueingExtender, queued_pod
from agent.scheduler.records import PodRecord
from agent.scheduler.retry import Retry
from agent.scheduler.unschedulable_queue import QueuedPod, UnschedulableQueue
from agent.scheduler.victim_selection import NodeSnapshots

# Intervals of the rounds.
RETRY_SECONDS: Final = 0.5
EVICT_SECONDS: Final = 1.0


class UnschedulablePods:
    """`preempt` is the handler of that verb; `wrap` adds the queue to the handlers."""

    def __init__(
        self,
        transport: Transport,
        cluster: SchedulerCache,
        groups: GroupReservations,
        cache: EquivalenceCache,
        pod_infos: PodInfoCache,
        leading: Callable[[], bool],
        scheduler: str,
        *,
        evict: bool,
        stale_seconds: float,
    ) -> None:
        """`scheduler` is the schedulerName of our pods. `evict` switches evictions on that
        kube-scheduler does not ask for. `stale_seconds` is the time that the watch may be out of
        touch."""
        self._transport = transport
        self._cluster = cluster
        self._pod_infos = pod_infos
        self._scheduler = scheduler
        self._queue = UnschedulableQueue()
        budgets = Budgets()
        self._stale_seconds = stale_seconds
        self._budgets: ListWatch[Budget] = ListWatch(
            transport,
            disruption_budgets.PATH,
            {},
            disruption_budgets.read,
            budgets.changed,
            pace=watch_freshness.pace(stale_seconds),
        )
        self.preempt = Preemption(cluster, groups, self._queue, budgets)
        self._retry = Retry(
            transport, self._queue, ClusterFeasibility(cluster, cache), leading, self._unscheduled
        )
        self._evictor: Evictor | None = None
        self._rounds = [Periodic("retry", RETRY_SECONDS, self._retry.round)]
        if evict:
            self._evictor = Evictor(
                transport, NodeSnapshots(cluster), self._queue, budgets, leading
            )
            self._rounds.append(Periodic("evict", EVICT_SECONDS, self._evictor.round))

    def wrap(self, handlers: Extender) -> QueueingExtender:
        return QueueingExtender(
            handlers, self._pod_infos, self._cluster, self._queue, self._evictor
        )

    def pods_changed(self, changes: Sequence[Change[PodRecord]]) -> None:
        """Takes the events of the pods' watch, after the cluster has them."""
        self._queue.pods_changed(changes)

    @property
    def pending(self) -> int:
        """The number of unschedulable pods."""
        return len(self._queue)

    @property
    def retried(self) -> int:
        """The number of retries."""
        return self._retry.tried

    @property
    def evicted(self) -> int:
        """The number of evictions."""
        return 0 if self._evictor is None else self._evictor.evicted

    @property
    def ages_seconds(self) -> dict[str, float]:
        """The time since each watch was in touch with the API server last, by resource."""
        return {disruption_budgets.PLURAL: self._budgets.age_seconds}

    def preemption_unavailable(self) -> str | None:
        """Returns why no victims may be selected now; None where they may."""
        return watch_freshness.stale(
            {disruption_budgets.PLURAL: self._budgets}, self._stale_seconds
        )

    def start(self) -> None:
        self._budgets.start()
        for each in self._rounds:
            each.start()

    def stop(self) -> None:
        for each in self._rounds:
            each.stop()
        self._budgets.stop()

    def _unscheduled(self) -> Iterator[QueuedPod]:
        for pod in unscheduled_pods(self._transport, self._scheduler):
            try:
                yield queued_pod(
                    pod_info(pod), self._cluster, time.monotonic(), nominated=pod.nominated
                )
            except (PodRequestError, GroupError):
                continue  # a change of a node does not help
