"""Counts the pods of the cluster by kind, builds the placement from the counts, and keeps the
counts in a ConfigMap.

Every replica counts each pod that its watch reports once; after a start, these are all pods that
exist. Only the ConfigMap has pods that were deleted before. The leader writes it, and a new leader
merges it into its own counts. A new placement applies to all nodes at once."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Final

import msgspec

from agent.allocate.node_allocator.properties import AllocatorRules
from agent.allocate.placement.demand import MAX_KINDS, Demand, NodeCapacity, most_frequent
from agent.allocate.placement.residual import placement
from agent.host.daemon import Periodic
from agent.host.log_once import Problem
from agent.kube.errors import NotFoundError, StoreError
from agent.kube.objects import Change, ChangeKind
from agent.kube.transport import Transport, segment
from agent.model.cpu.policies import PlacementPolicy
from agent.model.objects import ObjectError, decoded
from agent.model.pod_request import GPU_MILLI, PodKind
from agent.scheduler.state.cluster import SchedulerCache
from agent.scheduler.state.records import PodRecord

log = logging.getLogger(__name__)

NAME: Final = "topolet-scheduler-pods-seen"
"""The ConfigMap, in the namespace of the leader's Lease."""
KEY: Final = "pods"
KIND: Final = "ConfigMap"
MAX_BYTES: Final = 60_000
"""The largest content; the rarest kinds that do not fit are left out."""
STEP_SECONDS: Final = 1.0
WRITE_SECONDS: Final = 60.0
"""The least time between two writes of the ConfigMap."""
CAPACITIES_SECONDS: Final = 300.0
"""The interval in which the nodes are compared with those of the placement."""

_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
_Entry = tuple[
    _Count,
    _Count,
    Annotated[int, msgspec.Meta(ge=0, le=1024)],
    Annotated[int, msgspec.Meta(ge=0, le=GPU_MILLI)],
    tuple[str, ...],
    Annotated[int, msgspec.Meta(ge=1, le=1 << 40)],
]
"""A PodKind and the number of its pods."""


class _Content(msgspec.Struct, frozen=True):
    data: dict[str, str] = {}


_entries: Final = msgspec.json.Decoder(tuple[_Entry, ...])
_objects: Final = msgspec.json.Decoder(_Content)


def encode(counts: Mapping[PodKind, int]) -> str:
    """The content of the ConfigMap: the most frequent kinds that fit. Kinds that `decode` would
    refuse are left out: anybody can create a pod that requests 2,000 GPUs."""
    lines: list[str] = []
    left = MAX_BYTES
    for kind, pods in most_frequent(counts, MAX_KINDS).items():
        entry = (kind.cpu_milli, kind.memory_bytes, kind.gpus, kind.gpu_milli, kind.models, pods)
        try:
            msgspec.convert(entry, _Entry)
        except msgspec.ValidationError:
            continue
        line = msgspec.json.encode(entry).decode()
        left -= len(line.encode()) + 2
        if left < 0:
            break
        lines.append(line)
    return "[" + ",\n".join(lines) + "]"


def decode(text: str) -> dict[PodKind, int]:
    """Raises ObjectError."""
    entries = decoded(text.encode(), KIND, _entries)
    found: dict[PodKind, int] = {}
    for cpu_milli, memory_bytes, gpus, gpu_milli, models, pods in entries[:MAX_KINDS]:
        found[PodKind(cpu_milli, memory_bytes, gpus, gpu_milli, tuple(sorted(set(models))))] = pods
    return found


class PodsSeen:
    """Counts the pods that a watch reports. Safe for many threads. `hurry` is called when the
    placement has to be rebuilt, and must not block."""

    def __init__(self) -> None:
        self.hurry: Callable[[], None] = lambda: None
        self._lock = threading.Lock()
        self._uids: set[str] = set()
        self._demand = Demand()
        self._built_from = 0

    def pods_changed(self, changes: Sequence[Change[PodRecord]]) -> None:
        with self._lock:
            for change in changes:
                pod = change.value
                if change.kind is ChangeKind.DELETED:
                    self._uids.discard(pod.uid)
                elif pod.uid not in self._uids:
                    self._uids.add(pod.uid)
                    self._demand.add(pod.kind)
            due = self._demand.due(self._built_from)
        if due:
            self.hurry()

    def merge(self, counts: Mapping[PodKind, int]) -> None:
        with self._lock:
            self._demand.merge(counts)

    def due(self) -> bool:
        """Whether a placement from these counts has to be rebuilt."""
        with self._lock:
            return self._demand.due(self._built_from)

    def counts_to_build(self) -> dict[PodKind, int]:
        """The counts by kind. The caller must build a placement from them: `due` compares with
        them from now on."""
        with self._lock:
            self._built_from = self._demand.pods
            return dict(self._demand.counts)

    def counts(self) -> tuple[dict[PodKind, int], int]:
        """The counts by kind, and the number of all pods that were ever counted."""
        with self._lock:
            return dict(self._demand.counts), self._demand.pods


def capacities(cluster: SchedulerCache) -> tuple[NodeCapacity, ...]:
    with cluster.lock:
        return tuple(each.capacity for each in cluster.nodes())


def apply_placement(
    seen: PodsSeen,
    cluster: SchedulerCache,
    rules: AllocatorRules,
    policy: PlacementPolicy,
    nodes: Collection[NodeCapacity],
) -> None:
    """Builds the placement from the counts, and applies it to all nodes."""
    built = placement(policy, seen.counts_to_build(), nodes)
    cluster.use_rules(msgspec.structs.replace(rules, placement=built))


class PlacementUpdates:
    """Rebuilds the placement when it is due, and writes the leader's counts to the ConfigMap.
    `periodic` calls `step`; the caller starts it."""

    def __init__(
        self,
        transport: Transport,
        namespace: str,
        cluster: SchedulerCache,
        seen: PodsSeen,
        rules: AllocatorRules,
        policy: PlacementPolicy,
        synced: Callable[[], bool],
        leading: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`synced`: all objects are known."""
        self._store = _Store(transport, namespace)
        self._cluster, self._seen = cluster, seen
        self._rules, self._policy = rules, policy
        self._synced, self._leading = synced, leading
        self._clock = clock
        self._merged = False
        self._stored_pods = 0
        self._capacities: Collection[NodeCapacity] | None = None
        self._compared_at = self._stored_at = 0.0
        self.periodic = Periodic("placement", STEP_SECONDS, self.step)
        seen.hurry = self.periodic.hurry

    def step(self) -> None:
        """Never raises."""
        if not self._synced():
            return
        leading = self._leading()
        if leading and not self._merged and (stored := self._store.read()) is not None:
            self._seen.merge(stored)
            self._merged = True
        self._merged = self._merged and leading
        self._rebuild()
        if self._merged:
            self._store_counts()

    def _rebuild(self) -> None:
        now = self._clock()
        due = self._seen.due()
        if (
            not due
            and self._capacities is not None
            and now - self._compared_at < CAPACITIES_SECONDS
        ):
            return
        self._compared_at = now
        nodes = capacities(self._cluster)
        if not due and nodes == self._capacities:
            return
        self._capacities = nodes
        apply_placement(self._seen, self._cluster, self._rules, self._policy, nodes)

    def _store_counts(self) -> None:
        counts, pods = self._seen.counts()
        if pods == self._stored_pods or self._clock() - self._stored_at < WRITE_SECONDS:
            return
        self._stored_at = self._clock()
        if self._store.write(counts):
            self._stored_pods = pods


class _Store:
    """Reads and writes the ConfigMap."""

    def __init__(self, transport: Transport, namespace: str) -> None:
        self._transport, self._namespace = transport, namespace
        self._path = f"/api/v1/namespaces/{segment(namespace)}/configmaps/{NAME}"
        self._problem = Problem(log, f"ConfigMap {namespace}/{NAME}: ")

    def read(self) -> dict[PodKind, int] | None:
        """The counts; none if the ConfigMap does not exist or can't be decoded. None if the API
        server does not answer."""
        try:
            found = content(self._transport.get(self._path))
        except NotFoundError:
            return {}
        except ObjectError as error:
            self._problem.report(str(error))
            return {}
        except StoreError as error:
            self._problem.report(str(error))
            return None
        self._problem.clear()
        return found

    def write(self, counts: Mapping[PodKind, int]) -> bool:
        wanted = {
            "apiVersion": "v1",
            "kind": KIND,
            "metadata": {"name": NAME, "namespace": self._namespace},
            "data": {KEY: encode(counts)},
        }
        try:
            self._transport.apply(self._path, wanted)
        except StoreError as error:
            self._problem.report(str(error))
            return False
        self._problem.clear()
        return True


def content(body: bytes) -> dict[PodKind, int]:
    """The counts in a ConfigMap's JSON. Raises ObjectError."""
    text = decoded(body, KIND, _objects).data.get(KEY, "")
    return decode(text) if text else {}
