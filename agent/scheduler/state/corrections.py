"""Corrects the annotation resource-status of pods to which a static kubelet gave other CPUs.

The kubelet does not know which CPUs a scheduler chose. The NodeResourceTopology of the node lists
the CPUs that the kubelet gave to each pod, by uid. Each mismatch is corrected once: if another
client restores the old value, it stays.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from typing import Final

from agent.kube.errors import NotFoundError, StoreError, TooManyRequestsError, UnreachableError
from agent.kube.kinds import pod_path
from agent.kube.schedule import Backoff
from agent.kube.transport import Transport
from agent.model import apiobjects
from agent.model.cpu.cpuset import EMPTY
from agent.model.objects import ObjectError
from agent.model.pod.annotations import RESOURCE_STATUS, AnnotationError, resource_status, with_cpus
from agent.scheduler.state.cluster import SchedulerCache
from agent.scheduler.state.node_info import CpuMismatch

MAX_PER_STEP: Final = 50
"""Pods that one step corrects at most."""

log = logging.getLogger(__name__)


class _Open:
    """A mismatch to correct. `due` is when the next attempt may begin."""

    def __init__(self, node: str, mismatch: CpuMismatch) -> None:
        self.node = node
        self.mismatch = mismatch
        self.due = 0.0
        self.backoff = Backoff(random.random)


class Corrections:
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
        self._open: dict[str, _Open] = {}
        self._sent: dict[str, frozenset[CpuMismatch]] = {}
        self.written = 0
        self.failed = 0

    @property
    def open(self) -> int:
        """The number of pods whose annotation is wrong and not corrected yet."""
        return len(self._open)

    def step(self) -> None:
        """Reads the reports of the nodes that changed, and tries the corrections that are due.
        Never raises."""
        if not self._leading():
            self._serial = None
            self._open.clear()
            return
        self._read_reports()
        now = self._clock()
        for each in [each for each in self._open.values() if each.due <= now][:MAX_PER_STEP]:
            if not self._try(each):
                break

    def _read_reports(self) -> None:
        serial = 0 if self._serial is None else self._serial
        with self._cluster.lock:
            changes = self._cluster.reports_changed_since(serial)
            names = changes.names
            if self._serial is None or names is None:
                names = frozenset(each.name for each in self._cluster.nodes())
            found = {name: self._cluster.cpu_mismatches(name) for name in names}
            self._serial = changes.serial
        if not found:
            return
        for uid, open_ in tuple(self._open.items()):
            if open_.node in found and open_.mismatch not in found[open_.node]:
                del self._open[uid]
        for uid in tuple(self._sent.keys()):
            if self._cluster.pod(uid) is None:
                del self._sent[uid]
        for name, of_node in found.items():
            for each in of_node:
                known = self._open.get(each.uid)
                if each in self._sent.get(each.uid, ()) or (known and known.mismatch == each):
                    continue
                self._open[each.uid] = _Open(name, each)

    def _try(self, open_: _Open) -> bool:
        """Returns False if the API server can't answer other requests now."""
        each = open_.mismatch
        try:
            self._correct(each)
        except NotFoundError:
            log.info("pod %s no longer exists", each.title)
        except (StoreError, ObjectError, AnnotationError) as error:
            self.failed += 1
            open_.due = self._clock() + open_.backoff.next()
            log.warning("pod %s: %s is not corrected: %s", each.title, RESOURCE_STATUS, error)
            return not isinstance(error, TooManyRequestsError | UnreachableError)
        self._sent[each.uid] = self._sent.get(each.uid, frozenset()) | {each}
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
