"""What is done for pods that find no node, as one: they are tried again when there is room for
them, and room is made for the important ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from agent.allocate.place.wish import WishError
from agent.host.periodic import Periodic
from agent.kube.listwatch import ListWatch
from agent.kube.objects import Change
from agent.kube.transport import Transport
from agent.scheduler import disruption
from agent.scheduler.asked import Recent, asked
from agent.scheduler.attending import Attending, Views, waiter
from agent.scheduler.cluster import Cluster
from agent.scheduler.disruption import Budget, Budgets
from agent.scheduler.evict import Evictor
from agent.scheduler.extender import Verbs
from agent.scheduler.groupname import GroupError
from agent.scheduler.groups import Groups
from agent.scheduler.pending import pending
from agent.scheduler.preempt import Preemption
from agent.scheduler.readings import PodReading
from agent.scheduler.retry import Retry
from agent.scheduler.shapes import Shapes
from agent.scheduler.tenants import Tenants
from agent.scheduler.waiter import Waiter
from agent.scheduler.waiting import Waiting

# Between two rounds.
RETRY_SECONDS: Final = 0.5
EVICT_SECONDS: Final = 1.0


class Unplaced:
    """`preempt` is the verb, for who decides; `verbs` are all of them, to be answered."""

    def __init__(
        self,
        transport: Transport,
        cluster: Cluster,
        groups: Groups,
        shapes: Shapes,
        recent: Recent,
        leading: Callable[[], bool],
        scheduler: str,
        *,
        evict: bool,
    ) -> None:
        """`scheduler`: the schedulerName of pods that are ours. `evict`: not only at
        kube-scheduler's word."""
        self._transport = transport
        self._cluster = cluster
        self._recent = recent
        self._scheduler = scheduler
        self._waiting = Waiting()
        budgets = Budgets()
        self._budgets: ListWatch[Budget] = ListWatch(
            transport, disruption.PATH, {}, disruption.read, budgets.changed
        )
        self.preempt = Preemption(cluster, groups, self._waiting, budgets)
        self._retry = Retry(transport, self._waiting, Views(cluster, shapes), leading, self._before)
        self._evictor: Evictor | None = None
        self._rounds = [Periodic("retry", RETRY_SECONDS, self._retry.round)]
        if evict:
            self._evictor = Evictor(transport, Tenants(cluster), self._waiting, budgets, leading)
            self._rounds.append(Periodic("evict", EVICT_SECONDS, self._evictor.round))

    def verbs(self, deciding: Verbs) -> Attending:
        return Attending(deciding, self._recent, self._cluster, self._waiting, self._evictor)

    def pods_changed(self, changes: Sequence[Change[PodReading]]) -> None:
        """What the watch tells, after the cluster has heard it."""
        self._waiting.pods_changed(changes)

    @property
    def waiting(self) -> int:
        """Pods that found no node."""
        return len(self._waiting)

    @property
    def retried(self) -> int:
        """How often one was tried again."""
        return self._retry.tried

    @property
    def evicted(self) -> int:
        """Pods that we ended."""
        return 0 if self._evictor is None else self._evictor.evicted

    def start(self) -> None:
        self._budgets.start()
        for each in self._rounds:
            each.start()

    def stop(self) -> None:
        for each in self._rounds:
            each.stop()
        self._budgets.stop()

    def _before(self) -> Iterator[Waiter]:
        for pod in pending(self._transport, self._scheduler):
            try:
                yield waiter(asked(pod), self._cluster, time.monotonic(), nominated=pod.nominated)
            except (WishError, GroupError):
                continue  # its own change makes it another pod; no node's does
