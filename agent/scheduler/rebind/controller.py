"""Serves RebindResource objects: one rebind of a node at a time, one write in each step.

While a rebind has a plan that is not completed, its node is locked: it takes no further pods that
need CPUs or devices. The plan is written into the status before the first pod is changed. Every
write of a pod or of the status fails if the object has changed since the step read it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from agent.host.log_once import about
from agent.kube import objects, wire
from agent.kube.auth import AccessError
from agent.kube.errors import ConflictError, KubeError, NotFoundError
from agent.kube.objects import Change, ChangeKind, pod_path
from agent.kube.transport import Query, Transport, segment
from agent.model.objects import ObjectError
from agent.model.pod import apiobjects
from agent.model.pod.annotations import (
    RESOURCE_STATUS,
    AnnotationError,
    resource_status,
    with_allocation,
)
from agent.model.pod.apiobjects import ApiPod
from agent.model.rebind_resource import (
    RebindPhase,
    RebindRequest,
    RebindStatus,
    StatusPlan,
    status_body,
    time_text,
    unix_seconds,
)
from agent.scheduler.rebind.progress import (
    PodNow,
    Rewrite,
    first_status,
    next_step,
    pod_now,
    status_of,
)
from agent.scheduler.state.cluster import SchedulerCache
from agent.telemetry.schedulermetrics import RebindValues

log = logging.getLogger(__name__)

MAX_WRITES: Final = 50
"""The most writes of one step."""
MAX_REASON: Final = 1024
_ENDS: Final = (RebindPhase.SUCCEED, RebindPhase.FAILED, RebindPhase.UNKNOWN)


class RebindRequests:
    """The RebindResources, as a watch reports them. A node is locked while the watch reports a
    rebind of it in progress, and while the controller holds it (`hold`). Safe for many threads."""

    def __init__(self, cluster: SchedulerCache) -> None:
        self._cluster = cluster
        self._lock = threading.Lock()
        self._requests: dict[str, RebindRequest] = {}
        self._held: dict[str, str] = {}
        self._locked: set[str] = set()

    @property
    def locked(self) -> int:
        return len(self._locked)

    def changed(self, changes: Sequence[Change[RebindRequest]]) -> None:
        """Applies the events of the watch."""
        for change in changes:
            with self._lock:
                before = self._requests.pop(change.key.name, None)
                if change.kind is not ChangeKind.DELETED:
                    self._requests[change.key.name] = change.value
                elif self._held.get(change.value.node) == change.key.name:
                    del self._held[change.value.node]
                for node in {each.node for each in (before, change.value) if each is not None}:
                    self._update(node)

    def all(self) -> list[RebindRequest]:
        """The oldest first."""
        with self._lock:
            return self._sorted()

    def hold(self, request: RebindRequest) -> None:
        """Locks the node of the request until `release`."""
        with self._lock:
            self._held[request.node] = request.name
            self._update(request.node)

    def release(self, node: str) -> None:
        """Ends `hold`. The node stays locked while the watch reports a rebind in progress."""
        with self._lock:
            if self._held.pop(node, None) is not None:
                self._update(node)

    def release_all(self) -> None:
        for node in tuple(self._held):
            self.release(node)

    def _sorted(self) -> list[RebindRequest]:
        return sorted(self._requests.values(), key=lambda each: (each.created_at, each.name))

    def _update(self, node: str) -> None:
        active = (
            each.name for each in self._sorted() if each.node == node and each.status.in_progress
        )
        name = self._held.get(node) or next(active, "")
        reason = f"RebindResource {name} moves pods of the node" if name else ""
        (self._locked.add if name else self._locked.discard)(node)
        self._cluster.lock_node(node, reason)


class Rebinds:
    """Serves RebindResources. One thread calls `step`.

    `leading`: returns whether this process leads; only the leader writes.
    `clock`: seconds since 1970, since other processes read its times."""

    def __init__(
        self,
        transport: Transport,
        cluster: SchedulerCache,
        requests: RebindRequests,
        leading: Callable[[], bool],
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._transport = transport
        self._cluster = cluster
        self._requests = requests
        self._leading = leading
        self._clock = clock
        self._versions: dict[str, str] = {}
        self._ended: dict[str, int] = dict.fromkeys(_ENDS, 0)
        self._plans = self._made = self._undone = self._finished = 0
        self._seconds = 0.0

    @property
    def values(self) -> RebindValues:
        """Counted since the start of the process."""
        return RebindValues(
            dict(self._ended),
            plans=self._plans,
            made=self._made,
            undone=self._undone,
            finished=self._finished,
            seconds=self._seconds,
            locked=self._requests.locked,
        )

    def step(self) -> None:
        """One step of the first rebind of each node. Never raises."""
        if not self._leading():
            self._requests.release_all()
            self._versions.clear()
            return
        busy: set[str] = set()
        requests = [each for each in self._requests.all() if not each.status.ended]
        for name in self._versions.keys() - {each.name for each in requests}:
            del self._versions[name]
        # A rebind in progress comes before older ones that wait.
        for request in sorted(requests, key=lambda each: not each.status.in_progress):
            try:
                if request.node in busy and request.status.in_progress:
                    continue
                if request.node in busy:
                    self._wait(request, "waits for another RebindResource of the node")
                else:
                    busy.add(request.node)
                    self._serve(request)
            except ConflictError as error:
                log.info("RebindResource %s: read again: %s", request.name, error)
            except NotFoundError:
                log.info("RebindResource %s or a pod of its node no longer exists", request.name)
            except (KubeError, AccessError, ObjectError, AnnotationError) as error:
                log.warning("RebindResource %s: %s", request.name, error)

    def _serve(self, request: RebindRequest) -> None:
        if self._versions.get(request.name) == request.resource_version:
            return  # the watch has not reported the last write yet
        status = request.status
        if not status.in_progress or status.plan is None:
            self._begin(request)
            return
        self._requests.hold(request)
        for _ in range(MAX_WRITES):
            if not self._advance(request, status, status.plan):
                return

    def _begin(self, request: RebindRequest) -> None:
        if reason := self._obstacle(request.node):
            self._write(request, RebindStatus(RebindPhase.FAILED, reason))
            return
        if not request.dry_run and not request.hours.contain(self._clock()):
            self._wait(request, "waits for the hours of its spec")
            return
        if request.dry_run:
            self._write(request, self._first_status(request))
            return
        self._requests.hold(request)
        status: RebindStatus | None = None
        try:
            if self._cluster.has_reservation(request.node):
                self._wait(request, "waits for pods that are being bound to the node")
            else:
                planned = self._first_status(request)
                self._write(request, planned)
                status = planned
                if status.plan is not None:
                    self._plans += 1
        finally:
            # No pod was moved yet. If the API server wrote the status nevertheless, the watch
            # reports the rebind in progress, and the node is locked again.
            if status is None or status.phase is not RebindPhase.PENDING:
                self._requests.release(request.node)

    def _obstacle(self, name: str) -> str:
        """Why no rebind can be served on the node, "" if one can."""
        if self._cluster.node(name) is None:
            return f"node {name} does not exist"
        if self._cluster.lacks_agent(name):
            return f"no agent of Topolet is Ready on node {name}, which would move its pods"
        return ""

    def _first_status(self, request: RebindRequest) -> RebindStatus:
        pods = self._pods(request.node)
        with self._cluster.lock:
            node = self._cluster.node(request.node)
            if node is None:
                return RebindStatus(RebindPhase.FAILED, f"node {request.node} does not exist")
            properties = node.allocator.properties
            held = [each for each in node.allocator.assigned_pods.values() if each.reservation]
        return first_status(request, properties, pods, held, self._clock())

    def _wait(self, request: RebindRequest, reason: str) -> None:
        if request.status.reason != reason or not request.status.taken:
            self._write(request, RebindStatus(RebindPhase.PENDING, reason))

    def _advance(self, request: RebindRequest, status: RebindStatus, plan: StatusPlan) -> bool:
        """Takes one step of the plan. Returns whether it wrote a pod, so that the next step may
        follow at once."""
        pods = self._pods(request.node)
        started = unix_seconds(plan.started_at)
        overdue = started is None or self._clock() >= started + request.deadline_seconds
        now = {pod.uid: pod_now(pod) for pod in pods}
        step = next_step(status, plan, now, overdue=overdue)
        if isinstance(step, Rewrite):
            pod = next(pod for pod in pods if pod.uid == step.pod.uid)
            self._rewrite(pod, step.status)
            self._undone += plan.undoing
            self._made += not plan.undoing
            return True
        ends = step.status.phase is not RebindPhase.PENDING
        if ends and not self._cached(request.node, now):
            return False
        self._write(request, step.status)
        if ends:
            self._requests.release(request.node)
            if started is not None:
                self._finished += 1
                self._seconds += max(0.0, self._clock() - started)
        return False

    def _cached(self, name: str, now: Mapping[str, PodNow]) -> bool:
        """Whether the watch has reported these allocations, so that the next pods of the node are
        placed by them."""
        with self._cluster.lock:
            node = self._cluster.node(name)
            assigned_pods = node.allocator.assigned_pods if node is not None else {}
            return all(
                uid in assigned_pods and status_of(assigned_pods[uid].allocation) == pod.status
                for uid, pod in now.items()
            )

    def _rewrite(self, pod: ApiPod, status: str) -> None:
        """Writes the allocation.

        Raises ConflictError if the pod was written meanwhile."""
        wanted = resource_status({RESOURCE_STATUS: status})
        text = pod.annotations.get(RESOURCE_STATUS, "")
        metadata = {
            "uid": pod.uid,
            "resourceVersion": pod.resource_version,
            "annotations": {
                RESOURCE_STATUS: with_allocation(text, wanted.cpus(), wanted.amounts())
            },
        }
        self._transport.merge(pod_path(pod.namespace, pod.name), {"metadata": metadata})
        log.info(
            "pod %s is moved: %s is now %s",
            pod.title,
            RESOURCE_STATUS,
            status,
            extra=about(pod.title, reason="rebind", node=pod.node),
        )

    def _pods(self, node: str) -> list[ApiPod]:
        """The pods of the node that are not terminal.

        Raises ObjectError for one that can't be read: its CPUs would count as free."""
        select: Query = {"fieldSelector": f"spec.nodeName={node}"}
        path = objects.path("", "v1", objects.POD.plural)
        pods = wire.listed(path, select, self._transport.get, _pod).found
        return [pod for pod in pods if not pod.terminal]

    def _write(self, request: RebindRequest, status: RebindStatus) -> None:
        now = time_text(self._clock())
        reason = status.reason[:MAX_REASON]
        written = msgspec.structs.replace(status, reason=reason, update_timestamp=now)
        path = objects.path(objects.REBIND.group, objects.REBIND.versions[0], objects.REBIND.plural)
        self._transport.merge(
            f"{path}/{segment(request.name)}/status", status_body(request, written)
        )
        self._versions[request.name] = request.resource_version
        if status.phase in _ENDS:
            self._ended[status.phase] += 1
        log.info("RebindResource %s: %s: %s", request.name, status.phase, reason)


def _pod(raw: msgspec.Raw) -> ApiPod:
    return apiobjects.decode(bytes(raw))
