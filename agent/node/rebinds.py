"""RebindResources of this node: those that no scheduler has taken, and those that have ended.

The leader of Topolet's schedulers takes each object within seconds. If there is no leader, the
agent of the node sets the object to Failed, with the reason. Its write names the version of the
object that it has read, so it does not overwrite a scheduler that takes the object meanwhile.

For each object that ended while the agent ran, the agent records once in the audit trail which pods
were moved."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from agent.host.log_once import Problem
from agent.kube import objects
from agent.kube.auth import AccessError
from agent.kube.cluster import Cluster
from agent.kube.errors import ConflictError, KubeError, NotFoundError
from agent.model import rebind_resource
from agent.model.audit import AuditEvent, Record, of_pod
from agent.model.objects import ObjectError
from agent.model.pod.annotations import RESOURCE_STATUS, AnnotationError, resource_status
from agent.model.rebind_resource import RebindPhase, RebindRequest, RebindStatus
from agent.node.audit import Append

log = logging.getLogger(__name__)

PERIOD_SECONDS: Final = 120.0
"""Interval of the lists, which the API server answers from its cache."""
UNTAKEN_SECONDS: Final = 60.0
"""Less than the interval: an object in two lists failed."""


class NodeRebinds:
    """Fails the objects that no scheduler takes, and records those that have ended. One thread
    calls `step`.

    `clock`: monotonic.
    `now`: seconds since 1970.
    `append`: adds records to the audit trail."""

    def __init__(
        self,
        cluster: Cluster,
        node_name: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
        append: Append = lambda records: None,
    ) -> None:
        self._cluster = cluster
        self._node = node_name
        self._clock = clock
        self._now = now
        self._append = append
        self._seen: dict[str, float] | None = None
        self._recorded: set[str] = set()
        self._since = now()
        self._problem = Problem(log, "RebindResources of the node: ")

    def step(self) -> None:
        """Never raises. The first step does nothing: agents of many nodes start together."""
        if self._seen is None:
            self._seen = {}
            return
        try:
            rebinds = self._cluster.of_node(objects.REBIND, self._node, _read)
        except NotFoundError:
            rebinds = []
        except (KubeError, AccessError) as error:
            self._problem.report(str(error))
            return
        self._problem.clear()
        self._record([each for each in rebinds if each is not None and each.status.ended])
        now = self._clock()
        waiting = [each for each in rebinds if each is not None and not each.status.taken]
        self._seen = {each.uid: self._seen.get(each.uid, now) for each in waiting}
        for each in waiting:
            if now - self._seen[each.uid] >= UNTAKEN_SECONDS:
                self._fail(each)

    def _record(self, ended: Sequence[RebindRequest]) -> None:
        """Records the objects that ended since the agent's start, each once."""
        for request in ended:
            at = rebind_resource.unix_seconds(request.status.update_timestamp)
            if request.uid not in self._recorded and at is not None and at >= self._since:
                self._append(records(request))
        self._recorded = {request.uid for request in ended}

    def _fail(self, request: RebindRequest) -> None:
        reason = "NoController: no scheduler of Topolet has taken it for more than a minute"
        status = RebindStatus(RebindPhase.FAILED, reason, rebind_resource.time_text(self._now()))
        body = rebind_resource.status_body(request, status)
        try:
            self._cluster.merge_status(objects.REBIND, request.name, body)
        except (ConflictError, NotFoundError):
            return  # somebody has taken or deleted it
        except (KubeError, AccessError) as error:
            log.warning("RebindResource %s: %s", request.name, error)
            return
        log.warning("RebindResource %s: Failed: %s", request.name, reason)


def records(request: RebindRequest) -> list[Record]:
    """The records of an ended request: one for each pod that its plan moves, or one for the node
    without a plan; none for a dry run."""
    if request.dry_run:
        return []
    status = request.status
    message = ": ".join(filter(None, (f"RebindResource {request.name}", status.reason)))
    reason = status.phase.value
    moves = status.plan.moves if status.plan is not None else ()
    if not moves:
        return [Record(event=AuditEvent.CPUS_REBOUND, reason=reason, message=message)]
    return [
        msgspec.structs.replace(
            of_pod(each.pod, AuditEvent.CPUS_REBOUND, uid=each.uid),
            field="cpus",
            before=_cpus(each.source),
            after=_cpus(each.target),
            reason=reason,
            message=message,
        )
        for each in moves
    ]


def _cpus(text: str) -> str:
    """The CPUs of a resource-status, or the text itself if it can't be read."""
    try:
        return str(resource_status({RESOURCE_STATUS: text}).cpus())
    except AnnotationError:
        return text


def _read(raw: msgspec.Raw) -> RebindRequest | None:
    """The request, None for an object that can't be read."""
    try:
        return rebind_resource.decode(bytes(raw))
    except ObjectError as error:
        log.warning("%s", error)
        return None
