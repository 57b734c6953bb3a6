"""The queue of unschedulable pods: those that our rules rejected, and those of them for which a
changed node has room."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable, Sequence
from typing import Final, Protocol

import msgspec

from agent.kube.objects import Change, ChangeKind
from agent.model.apiobjects import PodGroup
from agent.scheduler.state.cluster import ChangedNodes, RequirementsCheck, SchedulerCache
from agent.scheduler.state.pod_info import Feasibility, Feasible, NodeCheck, PodInfo, Requirements
from agent.scheduler.state.records import PodRecord


class QueuedPod(msgspec.Struct, frozen=True, eq=False):
    """An unschedulable pod. `since` and `refused_at` are the times of its first and last rejection,
    by a monotonic clock. `offered` are the nodes that kube-scheduler accepted, as bits (see
    `NodeSets`), None where they are unknown; `candidates` are some of them where an eviction may
    help, and `requirements` is what the pod or its group needs there. `nominated` is the node where
    room is made for the pod, or empty. The members of `group` are handled as one."""

    uid: str
    namespace: str
    name: str
    check: NodeCheck
    since: float
    refused_at: float
    priority: int = 0
    offered: int | None = None
    candidates: tuple[str, ...] = ()
    requirements: Requirements | None = None
    nominated: str = ""
    group: PodGroup | None = None

    @property
    def title(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def unit(self) -> str:
        return scheduling_unit(self.uid, self.group)

    @property
    def rank(self) -> tuple[int, float, str]:
        """Smaller comes first: the highest priority, then the longest wait."""
        return -self.priority, self.since, self.uid


def scheduling_unit(uid: str, group: PodGroup | None) -> str:
    """The pods that are placed as one: a pod by its uid, or a group."""
    return uid if group is None else group.title


MAX_NAMES: Final = 100_000


class NodeSets:
    """Numbers node names, so that a set of nodes is the bits of one integer, small enough to be
    kept for every queued pod. One thread at a time."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    @property
    def full(self) -> bool:
        """Whether there are so many names that most must be those of deleted nodes."""
        return len(self._numbers) > MAX_NAMES

    def forget(self) -> None:
        """Drops all names, which invalidates all sets."""
        self._numbers.clear()

    def bits(self, nodes: Iterable[str]) -> int:
        numbers = self._numbers
        return _bits([numbers.setdefault(node, len(numbers)) for node in nodes])

    def known(self, nodes: Iterable[str]) -> int:
        """The nodes that are in any set, as bits."""
        found = (self._numbers.get(node) for node in nodes)
        return _bits([each for each in found if each is not None])

    def among(self, nodes: Iterable[str], bits: int) -> list[str]:
        """The nodes that are in the set `bits`."""
        numbers = self._numbers
        return [node for node in nodes if node in numbers and bits >> numbers[node] & 1]


def _bits(places: Sequence[int]) -> int:
    marks = bytearray(max(places, default=0) // 8 + 1)
    for place in places:
        marks[place >> 3] |= 1 << (place & 7)
    return int.from_bytes(marks, "little")


MAX_RETRIES: Final = 128
"""Pods of one call: a node has room for few of many equal pods."""
RETRY_INTERVAL_SECONDS: Final = 4.0
"""Between two retries of one pod, since kube-scheduler may reject the node for its own reasons."""

EXTENDER_TIMEOUT_SECONDS: Final = 5.0
"""The longest time that kube-scheduler waits for a result."""
FORGET_SECONDS: Final = 900.0
"""Time after the last rejection of a pod until it is dropped."""


class FeasibilitySource(Protocol):
    """The feasibility of nodes for pods, and the nodes that changed."""

    def changed_since(self, serial: int) -> ChangedNodes: ...

    def known(self) -> Iterable[str]: ...

    def results(self, check: NodeCheck, nodes: Sequence[str]) -> Sequence[Feasibility]: ...


class RetryCandidate(msgspec.Struct, frozen=True):
    """A queued pod, and the node with room for it."""

    queued: QueuedPod
    node: str


class UnschedulableQueue:
    """Any thread may add and remove pods; one thread calls `retryable`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiters: dict[str, QueuedPod] = {}
        self._candidates: dict[str, str] = {}
        self._retried_at: dict[str, float] = {}
        self._serial: int | None = None  # None: all nodes count as changed
        self._recheck: set[str] = set()
        self._change_history: list[tuple[float, tuple[str, ...]]] = []
        self._round_at: float | None = None
        self._names = NodeSets()
        self._nominations: dict[str, set[str]] = {}

    def add(self, queued: QueuedPod, offered: Iterable[str] | None = None) -> None:
        """Adds a pod that was rejected on the nodes `offered`, for the first time or again."""
        with self._lock:
            if offered is not None:
                if self._names.full:
                    self._forget_names()
                queued = msgspec.structs.replace(queued, offered=self._names.bits(offered))
            before = self._waiters.get(queued.uid)
            if before is not None:
                queued = msgspec.structs.replace(queued, since=before.since)
            self._waiters[queued.uid] = queued
            self._nominated(before.nominated if before is not None else "", queued)

    def restore(self, queued: QueuedPod) -> None:
        """Adds a pod that was unschedulable before this process led."""
        with self._lock:
            if self._waiters.setdefault(queued.uid, queued) is queued:
                self._nominated("", queued)

    def clear(self) -> None:
        """Drops all pods, and all results of nodes."""
        with self._lock:
            self._waiters.clear()
            self._candidates.clear()
            self._retried_at.clear()
            self._nominations.clear()
            self._change_history.clear()
            self._serial = None

    def pods_changed(self, changes: Sequence[Change[PodRecord]]) -> None:
        """Removes the pods that a watch shows bound or deleted."""
        for change in changes:
            if change.kind is ChangeKind.DELETED or change.value.node:
                self.remove(change.value.uid)

    @property
    def has_nominations(self) -> bool:
        """Whether any node is nominated."""
        return bool(self._nominations)

    def nominate(self, uid: str, node: str) -> None:
        """Reserves the room on that node for the pod until `withdraw`, or until the pod leaves the
        queue."""
        with self._lock:
            self._nominations.setdefault(node, set()).add(uid)

    def withdraw(self, uid: str, node: str) -> None:
        """Ends the nomination."""
        with self._lock:
            self._withdraw(uid, node)

    def has_nomination(self, group: PodGroup) -> bool:
        """Whether a node is nominated for a member of the group."""
        with self._lock:
            uids = {uid for kept in self._nominations.values() for uid in kept}
            return any(self._waiters[uid].group == group for uid in uids & self._waiters.keys())

    def nominated_for_others(
        self, uid: str, priority: int, now: float, group: PodGroup | None = None
    ) -> frozenset[str]:
        """Returns the nodes that the pod, of that group, may not have: they are nominated for a pod
        of smaller rank. A nomination for a member counts for its whole group."""
        with self._lock:
            queued = self._waiters.get(uid)
            mine = (-priority, now if queued is None else queued.since, uid)
            return frozenset(
                node
                for node, uids in self._nominations.items()
                if any(
                    other.rank < mine and (group is None or other.group != group)
                    for other in map(self._waiters.get, uids)
                    if other is not None
                )
            )

    def __len__(self) -> int:
        return len(self._waiters)

    def contains(self, uid: str) -> bool:
        with self._lock:
            return uid in self._waiters

    def remove(self, uid: str) -> None:
        """Removes a pod that was offered a node, or is deleted."""
        with self._lock:
            queued = self._waiters.pop(uid, None)
            self._candidates.pop(uid, None)
            self._retried_at.pop(uid, None)
            if queued is not None and self._nominations:
                for node in [node for node, uids in self._nominations.items() if uid in uids]:
                    self._withdraw(uid, node)

    def pods(self) -> list[QueuedPod]:
        """The queued pods, by rank."""
        with self._lock:
            return sorted(self._waiters.values(), key=lambda each: each.rank)

    def retryable(self, source: FeasibilitySource, now: float) -> list[RetryCandidate]:
        """Returns the pods to retry now, by rank: those for which a node that changed since the
        last call has room. Pods beyond the limit are returned by later calls, if there is room
        still."""
        pods = self._current(now)
        new_changes = self._changed(source)
        # A pod that was added meanwhile may have been checked before the changes of the last call.
        recent = self._recent_changes(new_changes, now)
        last, self._round_at = self._round_at, now
        with self._lock:
            known = self._names.known(recent)
        room: dict[tuple[Hashable, str | None, int | None, bool], str | None] = {}
        found: list[RetryCandidate] = []
        for queued in pods:
            before = self._candidates.get(queued.uid)
            offered = None if queued.offered is None else queued.offered & known
            new = last is None or queued.refused_at >= last
            key = queued.check.equivalence_class, before, offered, new
            if key not in room:
                changed = recent if new else new_changes
                nodes = [] if before is None else [before]
                nodes += changed if offered is None else self._among(changed, offered)
                room[key] = _first(source, queued.check, nodes) if nodes else None
            if (node := room[key]) is not None:
                found.append(RetryCandidate(queued, node))
        rested = [
            each
            for each in found
            if now - self._retried_at.get(each.queued.uid, -RETRY_INTERVAL_SECONDS)
            >= RETRY_INTERVAL_SECONDS
        ][:MAX_RETRIES]
        tried = {each.queued.uid for each in rested}
        with self._lock:
            here = self._waiters.keys()
            self._candidates = {
                each.queued.uid: each.node
                for each in found
                if each.queued.uid not in tried and each.queued.uid in here
            }
            self._retried_at.update((uid, now) for uid in tried & here)
        return rested

    def _nominated(self, before: str, queued: QueuedPod) -> None:
        if before and before != queued.nominated:
            self._withdraw(queued.uid, before)
        if queued.nominated:
            self._nominations.setdefault(queued.nominated, set()).add(queued.uid)

    def _withdraw(self, uid: str, node: str) -> None:
        """Pods that were kept from the node must check it again: no event reports this change."""
        uids = self._nominations.get(node)
        if uids is not None and uid in uids:
            uids.discard(uid)
            self._recheck.add(node)
            if not uids:
                del self._nominations[node]

    def _recent_changes(self, new_changes: tuple[str, ...], now: float) -> tuple[str, ...]:
        """Returns the nodes that changed within the timeout of the extender, and `news`."""
        self._change_history = [
            each for each in self._change_history if now - each[0] <= EXTENDER_TIMEOUT_SECONDS
        ]
        if new_changes:
            self._change_history.append((now, new_changes))
        return tuple(dict.fromkeys(node for _, nodes in self._change_history for node in nodes))

    def _among(self, nodes: Iterable[str], offered: int) -> list[str]:
        with self._lock:
            return self._names.among(nodes, offered)

    def _forget_names(self) -> None:
        """All queued pods are checked once more than needed."""
        self._names.forget()
        self._waiters = {
            uid: msgspec.structs.replace(each, offered=None) for uid, each in self._waiters.items()
        }

    def _current(self, now: float) -> list[QueuedPod]:
        """Removes the pods that kube-scheduler has not retried for long; it retries a pod every
        five minutes."""
        pods = self.pods()
        for each in pods:
            if now - each.refused_at > FORGET_SECONDS:
                self.remove(each.uid)
        return [each for each in pods if now - each.refused_at <= FORGET_SECONDS]

    def _changed(self, source: FeasibilitySource) -> tuple[str, ...]:
        changes = source.changed_since(self._serial or 0)
        names = None if self._serial is None else changes.names
        self._serial = changes.serial
        with self._lock:
            again, self._recheck = self._recheck, set()
        if names is not None:
            names |= again
        return tuple(sorted(source.known() if names is None else names))


def _first(source: FeasibilitySource, check: NodeCheck, nodes: Sequence[str]) -> str | None:
    for node, answer in zip(nodes, source.results(check, nodes), strict=True):
        if isinstance(answer, Feasible):
            return node
    return None


def queued_pod(
    info: PodInfo,
    cluster: SchedulerCache,
    now: float,
    candidates: tuple[str, ...] = (),
    nominated: str = "",
) -> QueuedPod:
    """A pod that is unschedulable since `now`."""
    needed = cluster.requirements(info)
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
