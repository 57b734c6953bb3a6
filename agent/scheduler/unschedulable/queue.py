"""The queue of the pods that the extender rejected. `retryable` finds the queued pods for which a
changed node has room."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable, Sequence
from typing import Final, Protocol

import msgspec

from agent.kube.objects import Change, ChangeKind
from agent.model.explanation import Explanation
from agent.model.pod.apiobjects import PodGroup
from agent.scheduler.state.cluster import ChangedNodes, SchedulerCache
from agent.scheduler.state.pod_info import (
    Feasibility,
    Feasible,
    PodInfo,
    PodName,
    Requirements,
    RequirementsCheck,
)
from agent.scheduler.state.records import PodRecord


class QueuedPod(msgspec.Struct, frozen=True, eq=False):
    """An unschedulable pod. `since` and `rejected_at` are the times of its first and last
    rejection, by a monotonic clock. `offered` are the nodes that kube-scheduler accepted, as bits
    (see `NodeSets`), None if they are unknown. `candidates` are some of these nodes where an
    eviction may help, `requirements` those of the pod or its group. `nominated` is the pod's
    nominated node, or empty. The members of `group` are handled as one. `reasons`: of the last
    rejection, each with its number of nodes, the most frequent ones first."""

    uid: str
    namespace: str
    name: str
    check: RequirementsCheck
    since: float
    rejected_at: float
    priority: int = 0
    offered: int | None = None
    candidates: tuple[str, ...] = ()
    requirements: Requirements | None = None
    nominated: str = ""
    group: PodGroup | None = None
    reasons: tuple[tuple[str, int], ...] = ()

    @property
    def title(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def info(self) -> PodInfo | None:
        """The pod as the verbs need it; None if its requirements are unknown."""
        if self.requirements is None:
            return None
        name = PodName(self.namespace, self.name, self.uid)
        return PodInfo(name, self.requirements.pod_request, self.group)

    @property
    def unit(self) -> str:
        return scheduling_unit(self.uid, self.group)

    @property
    def rank(self) -> tuple[int, float, str]:
        """Smaller comes first: the highest priority, then the longest wait."""
        return -self.priority, self.since, self.uid


def scheduling_unit(uid: str, group: PodGroup | None) -> str:
    """The key of the pods that are placed together: the uid of a pod, or the title of its group."""
    return uid if group is None else group.title


MAX_NAMES: Final = 100_000
"""Names of nodes that are numbered."""


class NodeSets:
    """Numbers node names, so that a set of nodes is the bits of one integer, which is small enough
    to be kept for every queued pod. One thread at a time."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    @property
    def full(self) -> bool:
        """Whether there are more than MAX_NAMES names: most must be those of deleted nodes."""
        return len(self._numbers) > MAX_NAMES

    def clear(self) -> None:
        """Drops all names, which invalidates all sets."""
        self._numbers.clear()

    def bits(self, nodes: Iterable[str]) -> int:
        numbers = self._numbers
        return _bits([numbers.setdefault(node, len(numbers)) for node in nodes])

    def known_bits(self, nodes: Iterable[str]) -> int:
        """The nodes that are in any set, as bits."""
        found = (self._numbers.get(node) for node in nodes)
        return _bits([each for each in found if each is not None])

    def among(self, nodes: Iterable[str], bits: int) -> list[str]:
        """The nodes that are in the set `bits`."""
        numbers = self._numbers
        return [node for node in nodes if node in numbers and bits >> numbers[node] & 1]


def _bits(numbers: Sequence[int]) -> int:
    marks = bytearray(max(numbers, default=0) // 8 + 1)
    for number in numbers:
        marks[number >> 3] |= 1 << (number & 7)
    return int.from_bytes(marks, "little")


MAX_RETRIES: Final = 128
"""The pods that one call returns at most: a node has room for few of many equal pods."""
RETRY_INTERVAL_SECONDS: Final = 4.0
"""The minimum between two retries of a pod, since kube-scheduler may reject the node by its own
rules."""

EXTENDER_TIMEOUT_SECONDS: Final = 5.0
"""The longest time that kube-scheduler waits for a result (`httpTimeout`)."""
FORGET_SECONDS: Final = 900.0
"""Time after the last rejection of a pod until it is dropped."""


class FeasibilitySource(Protocol):
    """The feasibility of nodes for pods, and the nodes that changed."""

    def changed_since(self, serial: int) -> ChangedNodes: ...

    def node_names(self) -> Iterable[str]: ...

    def results(self, check: RequirementsCheck, nodes: Sequence[str]) -> Sequence[Feasibility]: ...


class WaitingPodExplainer(Protocol):
    """What an `Explainer` does for queued pods."""

    def explain_waiting(self, info: PodInfo, *, until: float) -> Explanation: ...


class RetryCandidate(msgspec.Struct, frozen=True):
    """A queued pod, and the node with room for it."""

    queued: QueuedPod
    node: str


class UnschedulableQueue:
    """Any thread may add and remove pods; one thread calls `retryable`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queued: dict[str, QueuedPod] = {}
        self._candidates: dict[str, str] = {}
        self._retried_at: dict[str, float] = {}
        self._serial: int | None = None  # None: all nodes count as changed
        self._recheck: set[str] = set()
        self._change_history: list[tuple[float, tuple[str, ...]]] = []
        self._called_at: float | None = None
        self._names = NodeSets()
        self._nominations: dict[str, set[str]] = {}

    def add(self, queued: QueuedPod, offered: Iterable[str] | None = None) -> None:
        """Adds a pod that was rejected on the nodes `offered`, for the first time or again."""
        with self._lock:
            if offered is not None:
                if self._names.full:
                    self._clear_names()
                queued = msgspec.structs.replace(queued, offered=self._names.bits(offered))
            before = self._queued.get(queued.uid)
            if before is not None:
                queued = msgspec.structs.replace(queued, since=before.since)
            self._queued[queued.uid] = queued
            self._update_nomination(before.nominated if before is not None else "", queued)

    def restore(self, queued: QueuedPod) -> None:
        """Adds a pod that was unschedulable before this process led."""
        with self._lock:
            if self._queued.setdefault(queued.uid, queued) is queued:
                self._update_nomination("", queued)

    def clear(self) -> None:
        """Drops all pods, and all results of nodes."""
        with self._lock:
            self._queued.clear()
            self._candidates.clear()
            self._retried_at.clear()
            self._nominations.clear()
            self._change_history.clear()
            self._serial = None

    def pods_changed(self, changes: Sequence[Change[PodRecord]]) -> None:
        """Removes the pods that are bound or deleted, by the watch of pods."""
        for change in changes:
            if change.kind is ChangeKind.DELETED or change.value.node:
                self.remove(change.value.uid)

    @property
    def has_nominations(self) -> bool:
        """Whether any node is nominated."""
        return bool(self._nominations)

    def nominate(self, uid: str, node: str) -> None:
        """Nominates the node for the pod until `withdraw`, or until the pod leaves the queue."""
        with self._lock:
            self._nominations.setdefault(node, set()).add(uid)

    def withdraw(self, uid: str, node: str) -> None:
        """Ends the nomination."""
        with self._lock:
            self._withdraw(uid, node)

    def has_nomination(self, group: PodGroup) -> bool:
        """Whether a node is nominated for a member of the group."""
        with self._lock:
            uids = {uid for of_node in self._nominations.values() for uid in of_node}
            return any(self._queued[uid].group == group for uid in uids & self._queued.keys())

    def nominated_for_others(
        self, uid: str, priority: int, now: float, group: PodGroup | None = None
    ) -> frozenset[str]:
        """Returns the nodes that are nominated for other pods of smaller rank: the pod must not get
        them. A nomination for a member counts for its whole group."""
        with self._lock:
            queued = self._queued.get(uid)
            rank = (-priority, now if queued is None else queued.since, uid)
            return frozenset(
                node
                for node, uids in self._nominations.items()
                if any(
                    other.rank < rank and (group is None or other.group != group)
                    for other in map(self._queued.get, uids)
                    if other is not None
                )
            )

    def __len__(self) -> int:
        return len(self._queued)

    def contains(self, uid: str) -> bool:
        with self._lock:
            return uid in self._queued

    def remove(self, uid: str) -> None:
        """Removes a pod that found a node or was deleted."""
        with self._lock:
            queued = self._queued.pop(uid, None)
            self._candidates.pop(uid, None)
            self._retried_at.pop(uid, None)
            if queued is not None and self._nominations:
                for node in [node for node, uids in self._nominations.items() if uid in uids]:
                    self._withdraw(uid, node)

    def pods(self) -> list[QueuedPod]:
        """The queued pods, by rank."""
        with self._lock:
            return sorted(self._queued.values(), key=lambda each: each.rank)

    def retryable(self, source: FeasibilitySource, now: float) -> list[RetryCandidate]:
        """Returns the pods to retry now, by rank: those for which a node that changed since the
        last call has room. Later calls return the pods beyond the limit, if the node still has
        room."""
        pods = self._current(now)
        new_changes = self._changed(source)
        # A pod that was added meanwhile may have been checked before the changes of the last call.
        recent = self._recent_changes(new_changes, now)
        last, self._called_at = self._called_at, now
        with self._lock:
            known = self._names.known_bits(recent)
        room: dict[tuple[Hashable, str | None, int | None, bool], str | None] = {}
        found: list[RetryCandidate] = []
        for queued in pods:
            before = self._candidates.get(queued.uid)
            offered = None if queued.offered is None else queued.offered & known
            new = last is None or queued.rejected_at >= last
            key = queued.check.equivalence_class, before, offered, new
            if key not in room:
                changed = recent if new else new_changes
                nodes = [] if before is None else [before]
                nodes += changed if offered is None else self._among(changed, offered)
                room[key] = _first(source, queued.check, nodes) if nodes else None
            if (node := room[key]) is not None:
                found.append(RetryCandidate(queued, node))
        due = [
            each
            for each in found
            if now - self._retried_at.get(each.queued.uid, -RETRY_INTERVAL_SECONDS)
            >= RETRY_INTERVAL_SECONDS
        ][:MAX_RETRIES]
        tried = {each.queued.uid for each in due}
        with self._lock:
            queued_uids = self._queued.keys()
            self._candidates = {
                each.queued.uid: each.node
                for each in found
                if each.queued.uid not in tried and each.queued.uid in queued_uids
            }
            self._retried_at.update((uid, now) for uid in tried & queued_uids)
        return due

    def _update_nomination(self, before: str, queued: QueuedPod) -> None:
        if before and before != queued.nominated:
            self._withdraw(queued.uid, before)
        if queued.nominated:
            self._nominations.setdefault(queued.nominated, set()).add(queued.uid)

    def _withdraw(self, uid: str, node: str) -> None:
        """The node must be checked again for the pods that did not get it: no event reports this
        change."""
        uids = self._nominations.get(node)
        if uids is not None and uid in uids:
            uids.discard(uid)
            self._recheck.add(node)
            if not uids:
                del self._nominations[node]

    def _recent_changes(self, new_changes: tuple[str, ...], now: float) -> tuple[str, ...]:
        """Returns the nodes that changed within the timeout of the extender, and `new_changes`."""
        self._change_history = [
            each for each in self._change_history if now - each[0] <= EXTENDER_TIMEOUT_SECONDS
        ]
        if new_changes:
            self._change_history.append((now, new_changes))
        return tuple(dict.fromkeys(node for _, nodes in self._change_history for node in nodes))

    def _among(self, nodes: Iterable[str], offered: int) -> list[str]:
        with self._lock:
            return self._names.among(nodes, offered)

    def _clear_names(self) -> None:
        """Drops the names; all queued pods are checked once more than needed."""
        self._names.clear()
        self._queued = {
            uid: msgspec.structs.replace(each, offered=None) for uid, each in self._queued.items()
        }

    def _current(self, now: float) -> list[QueuedPod]:
        """Removes the pods that kube-scheduler has not retried for FORGET_SECONDS: it retries a pod
        every five minutes. Returns the others."""
        pods = self.pods()
        for each in pods:
            if now - each.rejected_at > FORGET_SECONDS:
                self.remove(each.uid)
        return [each for each in pods if now - each.rejected_at <= FORGET_SECONDS]

    def _changed(self, source: FeasibilitySource) -> tuple[str, ...]:
        changes = source.changed_since(self._serial or 0)
        names = None if self._serial is None else changes.names
        self._serial = changes.serial
        with self._lock:
            recheck, self._recheck = self._recheck, set()
        if names is not None:
            names |= recheck
        return tuple(sorted(source.node_names() if names is None else names))


def _first(source: FeasibilitySource, check: RequirementsCheck, nodes: Sequence[str]) -> str | None:
    for node, result in zip(nodes, source.results(check, nodes), strict=True):
        if isinstance(result, Feasible):
            return node
    return None


def queued_pod(
    info: PodInfo,
    cluster: SchedulerCache,
    now: float,
    candidates: tuple[str, ...] = (),
    nominated: str = "",
) -> QueuedPod:
    """Returns an entry for a pod that was rejected at `now`."""
    requirements = cluster.requirements(info)
    return QueuedPod(
        info.pod.uid,
        info.pod.namespace,
        info.pod.name,
        RequirementsCheck(cluster, requirements),
        now,
        now,
        info.pod_request.priority,
        None,
        candidates,
        requirements,
        nominated,
        info.group,
    )
