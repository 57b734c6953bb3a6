"""Writes to pods what the NodeResourceTopology of their node reports about them. The leading
scheduler does this, because the agent that makes the report has no permission to write pods.

- The annotation resource-status of a pod to which a static kubelet gave other CPUs. The kubelet
  does not know which CPUs a scheduler chose. The report lists the CPUs that the kubelet gave to
  each pod, by uid. Each mismatch is corrected once; if another client restores the old value, that
  value stays. Only the last mismatches of a pod are remembered.
- The condition topolet.io/CPUClaimRefused of a pod whose CPU claim the agent refuses. The report
  names these pods; the agent's Events expire. The condition is True with the agent's reason when
  the refusal lasts, and False when the report no longer names the pod. A report changes only
  conditions of pods on its own node.

A report that changes again and again causes ever fewer writes (`_Pace`).
"""

from __future__ import annotations

import logging
import math
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Generic, TypeVar

from agent.kube.auth import AccessError
from agent.kube.errors import (
    KubeError,
    NotFoundError,
    RejectedError,
    StoreError,
    TooManyRequestsError,
    UnreachableError,
)
from agent.kube.objects import pod_path
from agent.kube.schedule import Backoff
from agent.kube.transport import Transport
from agent.model.cpu.cpuset import EMPTY
from agent.model.objects import ObjectError
from agent.model.pod import apiobjects
from agent.model.pod.annotations import RESOURCE_STATUS, AnnotationError, resource_status, with_cpus
from agent.scheduler.state.cluster import SchedulerCache
from agent.scheduler.state.node_info import CpuMismatch
from agent.scheduler.state.pods_api import condition, patch_status
from agent.scheduler.state.records import CLAIM_REFUSED

LASTING_SECONDS: Final = 10.0
"""The time for which a claim must be refused until the condition is set: the previous owner of the
CPUs may still be terminating."""
MAX_PER_STEP: Final = 50
"""The most pods that one step writes."""
FREE_WRITES: Final = 4
"""Writes to one pod without a pause; the remembered mismatches of a pod."""
PAUSE_SECONDS: Final = 10.0
"""Before the next write to the pod; doubled for each one after it."""
LONGEST_PAUSE_SECONDS: Final = 3600.0
"""After so long a time without a write, writes are free again."""

log = logging.getLogger(__name__)

OfNode = TypeVar("OfNode")
"""What the report of a node contains about its pods."""


class _Pace:
    """When the next write to one pod may begin."""

    def __init__(self) -> None:
        self._writes = 0
        self._last = -math.inf
        self._backoff = Backoff(random.random, PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        self.due = -math.inf

    def wrote(self, now: float) -> None:
        if now - self._last >= LONGEST_PAUSE_SECONDS:
            self._writes = 0
            self._backoff.reset()
        self._writes, self._last = self._writes + 1, now
        if self._writes >= FREE_WRITES:
            self.due = now + self._backoff.next()


class _Patch:
    """A write to the pod `uid` of `node`. `due` is when the next attempt may begin."""

    def __init__(self, node: str, uid: str, due: float) -> None:
        self.node = node
        self.uid = uid
        self.due = due
        self.backoff = Backoff(random.random)


Pending = TypeVar("Pending", bound=_Patch)


class ReportPatches(ABC, Generic[OfNode, Pending]):
    """One thread calls `step`. `leading` returns whether this process leads; only the leader
    writes."""

    def __init__(
        self,
        transport: Transport,
        cluster: SchedulerCache,
        leading: Callable[[], bool],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._transport = transport
        self._cluster = cluster
        self._leading = leading
        self._clock = clock
        self._serial: int | None = None
        self._paces: dict[str, _Pace] = {}

    def step(self) -> None:
        """Reads the reports of the nodes that changed, and tries the writes that are due. Never
        raises."""
        if not self._leading():
            self._serial = None
            self._paces.clear()
            self._forget()
            return
        reports = self._changed_reports()
        if reports:
            gone = [uid for uid in self._paces if self._cluster.pod(uid) is None]
            for uid in gone:
                del self._paces[uid]
        self._update(reports)
        now = self._clock()
        for each in [each for each in self._pending() if self._due(each) <= now][:MAX_PER_STEP]:
            if not self._try(each):
                break

    def _due(self, patch: Pending) -> float:
        pace = self._paces.get(patch.uid)
        return patch.due if pace is None else max(patch.due, pace.due)

    def _wrote(self, patch: Pending) -> None:
        self._paces.setdefault(patch.uid, _Pace()).wrote(self._clock())

    def _changed_reports(self) -> dict[str, OfNode]:
        """The reports of the nodes that changed since the last call, by node; of all nodes at the
        beginning of a term."""
        serial = 0 if self._serial is None else self._serial
        with self._cluster.lock:
            changes = self._cluster.reports_changed_since(serial)
            names = changes.names
            if self._serial is None or names is None:
                names = frozenset(each.name for each in self._cluster.nodes())
            self._serial = changes.serial
            return {name: self._read(name) for name in names}

    def _retry(self, patch: Pending, error: Exception) -> bool:
        """Returns False if the API server can't answer other requests now."""
        patch.due = self._clock() + patch.backoff.next()
        return not isinstance(error, TooManyRequestsError | UnreachableError)

    @abstractmethod
    def _read(self, node: str) -> OfNode:
        """The caller holds the lock of the cluster."""

    @abstractmethod
    def _update(self, reports: Mapping[str, OfNode]) -> None:
        """Updates the pending writes."""

    @abstractmethod
    def _pending(self) -> Iterable[Pending]: ...

    @abstractmethod
    def _try(self, patch: Pending) -> bool:
        """Returns False if the API server can't answer other requests now."""

    @abstractmethod
    def _forget(self) -> None:
        """Drops all pending writes, because this process does not lead."""


class _Correction(_Patch):
    """The correction of one annotation, due at once."""

    def __init__(self, node: str, mismatch: CpuMismatch) -> None:
        super().__init__(node, mismatch.uid, 0.0)
        self.mismatch = mismatch


class Corrections(ReportPatches[tuple[CpuMismatch, ...], _Correction]):
    """Corrects annotations. `written` and `failed` count the attempts."""

    def __init__(
        self,
        transport: Transport,
        cluster: SchedulerCache,
        leading: Callable[[], bool],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(transport, cluster, leading, clock=clock)
        self._open: dict[str, _Correction] = {}
        self._sent: dict[str, tuple[CpuMismatch, ...]] = {}
        self.written = 0
        self.failed = 0

    @property
    def open(self) -> int:
        """The number of pods whose annotation is wrong and not corrected yet."""
        return len(self._open)

    def _forget(self) -> None:
        self._open.clear()

    def _pending(self) -> Iterable[_Correction]:
        return self._open.values()

    def _read(self, node: str) -> tuple[CpuMismatch, ...]:
        return self._cluster.cpu_mismatches(node)

    def _update(self, reports: Mapping[str, tuple[CpuMismatch, ...]]) -> None:
        if not reports:
            return
        for uid, open_ in tuple(self._open.items()):
            if open_.node in reports and open_.mismatch not in reports[open_.node]:
                del self._open[uid]
        for uid in tuple(self._sent.keys()):
            if self._cluster.pod(uid) is None:
                del self._sent[uid]
        for name, of_node in reports.items():
            for each in of_node:
                known = self._open.get(each.uid)
                if each in self._sent.get(each.uid, ()) or (known and known.mismatch == each):
                    continue
                self._open[each.uid] = _Correction(name, each)

    def _try(self, patch: _Correction) -> bool:
        each = patch.mismatch
        try:
            self._correct(each)
        except NotFoundError:
            log.info("pod %s no longer exists", each.title)
        except (StoreError, ObjectError, AnnotationError) as error:
            self.failed += 1
            log.warning("pod %s: %s is not corrected: %s", each.title, RESOURCE_STATUS, error)
            return self._retry(patch, error)
        self._sent[each.uid] = (*self._sent.get(each.uid, ())[1 - FREE_WRITES :], each)
        self._wrote(patch)
        del self._open[each.uid]
        return True

    def _correct(self, each: CpuMismatch) -> None:
        """Raises ConflictError if the pod was written meanwhile."""
        namespace, _, name = each.title.partition("/")
        path = pod_path(namespace, name)
        pod = apiobjects.decode(self._transport.get(path))
        text = pod.annotations.get(RESOURCE_STATUS, "")
        if pod.uid != each.uid or pod.terminal:
            return
        if resource_status(pod.annotations).cpus() in (each.given, EMPTY):
            return  # another client has corrected it; the watch lags
        with self._cluster.lock:
            node_of = self._cluster.numa_nodes(pod.node)
        metadata = {
            "uid": pod.uid,
            "resourceVersion": pod.resource_version,
            "annotations": {RESOURCE_STATUS: with_cpus(text, each.given, node_of)},
        }
        self._transport.merge(path, {"metadata": metadata})
        self.written += 1
        log.info(
            "pod %s: %s corrected from CPUs %s to CPUs %s, which the kubelet gave the pod",
            each.title,
            RESOURCE_STATUS,
            each.claimed,
            each.given,
        )


Refusals = dict[str, tuple[str, str]]
"""By uid, the pod's title and the reason, "" if the claim is no longer refused."""


class _Condition(_Patch):
    def __init__(self, node: str, due: float, uid: str, title: str) -> None:
        super().__init__(node, uid, due)
        self.title = title
        self.reason = ""


class ClaimConditions(ReportPatches[Refusals, _Condition]):
    """Sets the conditions of refused claims."""

    def __init__(
        self,
        transport: Transport,
        cluster: SchedulerCache,
        leading: Callable[[], bool],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(transport, cluster, leading, clock=clock)
        # Both by node and uid.
        self._wanted: dict[str, dict[str, _Condition]] = {}
        self._written: dict[str, Refusals] = {}

    def _forget(self) -> None:
        self._wanted.clear()
        self._written.clear()

    def _pending(self) -> Iterable[_Condition]:
        return (each for of_node in self._wanted.values() for each in of_node.values())

    def _read(self, node: str) -> Refusals:
        of_node = self._cluster.node(node)
        return of_node.claim_refusals() if of_node else {}

    def _update(self, reports: Mapping[str, Refusals]) -> None:
        for name, refusals in reports.items():
            known = self._cluster.pod
            written = self._written.pop(name, {})
            if written := {uid: each for uid, each in written.items() if known(uid)}:
                self._written[name] = written
            resolved = {uid: (title, "") for uid, (title, reason) in written.items() if reason}
            before = self._wanted.pop(name, {})
            if wanted := self._changed(name, resolved | refusals, before, written):
                self._wanted[name] = wanted

    def _changed(
        self, node: str, refusals: Refusals, before: dict[str, _Condition], written: Refusals
    ) -> dict[str, _Condition]:
        """The conditions to write. `before`: those by the last report of the node; a condition that
        is still to be written keeps its time."""
        wanted = {}
        for uid, now in refusals.items():
            if written.get(uid) == now:
                continue
            title, reason = now
            each = before.get(uid)
            if each is None or bool(each.reason) is not bool(reason):
                due = self._clock() + (LASTING_SECONDS if reason else 0)
                each = _Condition(node, due, uid, title)
            each.reason = reason
            wanted[uid] = each
        return wanted

    def _try(self, patch: _Condition) -> bool:
        namespace, _, name = patch.title.partition("/")
        status, reason = ("True", "ClaimRefused") if patch.reason else ("False", "ClaimNotRefused")
        shown = condition(CLAIM_REFUSED, reason, patch.reason, status)
        try:
            patch_status(self._transport, namespace, name, patch.uid, {"conditions": [shown]})
        except (NotFoundError, RejectedError) as error:
            log.info("pod %s gets no condition %s: %s", patch.title, CLAIM_REFUSED, error)
        except (KubeError, AccessError) as error:
            log.warning("pod %s: condition %s is not set: %s", patch.title, CLAIM_REFUSED, error)
            return self._retry(patch, error)
        self._written.setdefault(patch.node, {})[patch.uid] = (patch.title, patch.reason)
        self._wrote(patch)
        del self._wanted[patch.node][patch.uid]
        return True
