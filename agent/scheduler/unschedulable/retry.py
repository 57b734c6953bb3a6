"""Makes kube-scheduler retry a pod that only the extender rejected, once a node has room.

kube-scheduler does not retry a pod that an extender rejected until a pod or a node changes, or for
five minutes; it does not watch NodeResourceTopology and Device objects. A change of the pod itself
makes it retry that pod at once (the queueing hint for a rejection by an extender). A condition in
the pod's status is the smallest such change, and informs users.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from agent.kube.auth import AccessError
from agent.kube.errors import ConflictError, KubeError, NotFoundError, RejectedError
from agent.kube.transport import Transport
from agent.model.pod.apiobjects import GroupError
from agent.model.pod_request import PodRequestError
from agent.scheduler.state.cluster import SchedulerCache
from agent.scheduler.state.pod_info import pod_info
from agent.scheduler.state.pods_api import condition, patch_status, unscheduled_pods
from agent.scheduler.unschedulable.queue import (
    FeasibilitySource,
    QueuedPod,
    RetryCandidate,
    UnschedulableQueue,
    queued_pod,
)

ROOM_FOUND: Final = "topolet.io/RoomFound"

log = logging.getLogger(__name__)


class Retry:
    """One thread calls `step`. `leading` returns whether this process leads; only the leader
    patches pods. `initial` lists the unschedulable pods at the beginning of a term."""

    def __init__(
        self,
        transport: Transport,
        queue: UnschedulableQueue,
        source: FeasibilitySource,
        leading: Callable[[], bool],
        initial: Callable[[], Iterable[QueuedPod]] = tuple,
    ) -> None:
        self._transport = transport
        self._queue = queue
        self._source = source
        self._leading = leading
        self._initial = initial
        self._led = False
        self.retried = 0

    def step(self) -> None:
        """Patches the pods for which a changed node has room. Clears the queue if this process does
        not lead."""
        if not self._leading():
            self._queue.clear()
            self._led = False
            return
        if not self._led:
            self._led = self._restore_queue()
        self._patch_retryable()

    def _restore_queue(self) -> bool:
        try:
            for queued in self._initial():
                self._queue.restore(queued)
        except (KubeError, AccessError) as error:
            log.warning("the unschedulable pods can't be listed: %s", error)
            return False
        return True

    def _patch_retryable(self) -> None:
        for candidate in self._queue.retryable(self._source, time.monotonic()):
            queued = candidate.queued
            try:
                patch_status(
                    self._transport, queued.namespace, queued.name, queued.uid, _status(candidate)
                )
            except (NotFoundError, ConflictError, RejectedError) as error:
                log.info("pod %s left the unschedulable queue: %s", queued.title, error)
                self._queue.remove(queued.uid)
                continue
            except (KubeError, AccessError) as error:
                log.warning("pod %s: retry failed: %s", queued.title, error)
                continue
            self.retried += 1
            log.info("pod %s is retried: node %s has room", queued.title, candidate.node)


def _status(candidate: RetryCandidate) -> dict[str, Any]:
    message = f"node {candidate.node} has changed and has room now"
    return {"conditions": [condition(ROOM_FOUND, "NodeChanged", message)]}


def unschedulable_pods(
    transport: Transport, cluster: SchedulerCache, scheduler: str
) -> Iterator[QueuedPod]:
    """The pods of that `schedulerName` that have no node. Raises KubeError and AccessError."""
    for pod in unscheduled_pods(transport, scheduler):
        try:
            info = pod_info(pod, cluster.pod_defaults)
            yield queued_pod(info, cluster, time.monotonic(), nominated=pod.nominated)
        except (PodRequestError, GroupError):
            continue  # no change of a node helps an invalid pod
