"""The cluster-state cache: the nodes with what their pods and the reservations hold, and the nodes
that changed since a serial.

Everything but the reservations follows from the API objects: a process that starts, or begins to
lead, has the same ledger once its watches are synced.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Final, TypeVar

import msgspec

from agent.allocate.node_allocator.answer import Granted
from agent.allocate.node_allocator.assigned_pods import AssignedPod
from agent.allocate.node_allocator.pod_request import PodRequest
from agent.allocate.node_allocator.properties import AllocatorRules
from agent.kube.objects import Change, ChangeKind
from agent.model.apiobjects import PodGroup
from agent.model.cpu.cpuset import CpuSet
from agent.model.devices.device_object import DeviceObject
from agent.model.nrt.resource_topology import NodeTopology
from agent.scheduler.state.node_info import CpuMismatch, NodeChange, NodeInfo
from agent.scheduler.state.pod_info import (
    UNKNOWN_NODE,
    Feasibility,
    Infeasible,
    PodInfo,
    Requirements,
)
from agent.scheduler.state.records import NodeRecord, PodRecord, Unreadable

T = TypeVar("T")
EXPIRY_SECONDS: Final = 75.0
"""The outcome of a Binding without an answer is final by then: the API server cancels a request
after 60 s (--request-timeout), and a write that it passed to etcd ends a few seconds later."""
MAX_NAMES: Final = 100_000


class Reservation(msgspec.Struct, frozen=True):
    """What is promised to a pod that no watch shows bound yet. `until` is when the API server is
    asked for the outcome of a Binding that it took, or may have taken; None while the Binding is in
    flight, and for a part of a group."""

    node: str
    holding: AssignedPod
    until: float | None = None

    @property
    def uid(self) -> str:
        return self.holding.uid

    @property
    def title(self) -> str:
        """The pod's namespace/name."""
        return self.holding.title

    @property
    def sent(self) -> bool:
        """Whether only the API server knows if the pod is bound."""
        return self.until is not None

    def over(self, now: float) -> bool:
        return self.until is not None and now >= self.until


class ReserveError(Exception):
    """Nothing can be reserved on the node; the message is the reason."""


class SchedulerCache:
    """Safe for many threads. Every method holds `lock`; a caller that reads a node's state, or
    needs several steps to be atomic, holds it too, and shortly."""

    def __init__(
        self,
        *,
        agents: bool = True,
        rules: AllocatorRules | None = None,
        expiry_seconds: float = EXPIRY_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`agents`: a node must have a Ready agent to give CPUs or devices. `rules` apply to the
        allocation on every node. A reservation whose Binding was taken is overdue after
        `expiry_seconds`."""
        self.lock = threading.RLock()
        self._agents = agents
        self._rules = rules
        self._expiry_seconds = expiry_seconds
        self._clock = clock
        self._states: dict[str, NodeInfo] = {}
        self._pods: dict[str, PodRecord] = {}
        self._grouped: dict[str, set[str]] = {}
        self._reservations: dict[str, Reservation] = {}
        self._log = ChangeLog()
        self._placement_log = ChangeLog()
        self._report_log = ChangeLog()

    # queries
    def node(self, name: str) -> NodeInfo | None:
        """Returns None where the Node does not exist. The caller holds the lock while it reads the
        node."""
        with self.lock:
            state = self._states.get(name)
            return state if state is not None and state.node is not None else None

    def nodes(self) -> tuple[NodeInfo, ...]:
        """The nodes whose Node object exists. The caller holds the lock while it reads them."""
        with self.lock:
            return tuple(each for each in self._states.values() if each.node is not None)

    def eligible(self, name: str, pod_request: PodRequest) -> str | None:
        """Returns why the node can't take such a pod even when it is empty; None where it can."""
        with self.lock:
            state = self._states.get(name)
            if state is None:
                return "the node is not known"
            return state.ineligibility(pod_request.needs, agents=self._agents)

    def changed_since(self, serial: int) -> ChangedNodes:
        """The nodes whose feasibility for some pod may have changed after that serial (0 is the
        first)."""
        with self.lock:
            return self._log.since(serial)

    def placement_changed_since(self, serial: int) -> ChangedNodes:
        """The nodes that changed after that serial, without those of which only the zone report
        changed, which concerns only pods without claims. Its serials are its own."""
        with self.lock:
            return self._placement_log.since(serial)

    def reports_changed_since(self, serial: int) -> ChangedNodes:
        """The nodes whose NodeResourceTopology, or the holding of one of whose pods, changed after
        that serial. Its serials are its own."""
        with self.lock:
            return self._report_log.since(serial)

    def cpu_mismatches(self, name: str) -> tuple[CpuMismatch, ...]:
        """The pods of the node whose annotation names other CPUs than the kubelet gave them."""
        with self.lock:
            state = self._states.get(name)
            return () if state is None else state.cpu_mismatches()

    def numa_nodes(self, name: str) -> dict[int, int]:
        """The NUMA node of each CPU of the node."""
        with self.lock:
            state = self._states.get(name)
            cpus = None if state is None else state.place.properties.cpus
            areas = cpus.layout.nodes if cpus is not None and cpus.layout is not None else ()
            return {cpu: area.id for area in areas for cpu in CpuSet.from_int(area.cpus)}

    def bound(self, uid: str) -> str | None:
        """The node that a watch shows the pod bound to."""
        with self.lock:
            pod = self._pods.get(uid)
            return pod.node if pod is not None else None

    def pod(self, uid: str) -> PodRecord | None:
        """The record of a pod that a watch shows bound."""
        with self.lock:
            return self._pods.get(uid)

    def bound_members(self, group: PodGroup) -> dict[str, PodRecord]:
        """The pods of a group that a watch shows bound, by uid in its order. Their annotations may
        give another size of the group."""
        with self.lock:
            return {uid: self._pods[uid] for uid in sorted(self._grouped.get(group.title, ()))}

    def group_node(self, group: PodGroup) -> str | None:
        """The node of most bound members of the group; None where no member is bound."""
        nodes = [each.node for each in self.bound_members(group).values()]
        return max(sorted(nodes), key=nodes.count, default=None)

    def requirements(self, info: PodInfo) -> Requirements:
        """The requirements of a pod without node, or of all such members of its group."""
        return info.requirements(len(self.bound_members(info.group)) if info.group else 0)

    def reservation(self, uid: str) -> Reservation | None:
        with self.lock:
            return self._reservations.get(uid)

    # reservations
    def reserve(self, name: str, granted: Granted) -> None:
        """Reserves the offer until `confirm` or `release`. Raises ReserveError, and StaleOfferError
        where something of the offer was given away since."""
        with self.lock:
            state = self.node(name)
            if state is None:
                raise ReserveError(f"node {name} is not known")
            if (pod := self._pods.get(granted.uid)) is not None:
                raise ReserveError(f"pod {granted.pod_request.title} is bound to {pod.node}")
            before = self._reservations.get(granted.uid)
            if before is not None:
                raise ReserveError(f"a bind of pod {before.title} to {before.node} is under way")
            holding = state.place.commit(granted)
            self._mark_changed(state)
            self._reservations[holding.uid] = Reservation(name, holding)

    def confirm(self, uid: str) -> None:
        """The API server took the pod's Binding, or may have taken it: the reservation stays until
        a watch shows the pod."""
        with self.lock:
            kept = self._reservations.get(uid)
            if kept is not None:
                until = self._clock() + self._expiry_seconds
                self._reservations[uid] = Reservation(kept.node, kept.holding, until)

    def release(self, uid: str) -> bool:
        """Ends a reservation. Returns False where there was none, or the pod is bound already."""
        with self.lock:
            kept = self._reservations.pop(uid, None)
            if kept is not None:
                self._give_back(kept)
            return kept is not None

    def overdue(self) -> tuple[Reservation, ...]:
        """The confirmed reservations that no watch has shown bound in time."""
        with self.lock:
            now = self._clock()
            return tuple(each for each in self._reservations.values() if each.over(now))

    def expire(self, reservation: Reservation) -> bool:
        """Ends an overdue reservation. Returns False where it has changed since."""
        with self.lock:
            return self._reservations.get(reservation.uid) is reservation and self.release(
                reservation.uid
            )

    # watch events
    def pods_changed(self, changes: Sequence[Change[PodRecord]]) -> None:
        for change in changes:
            with self.lock:
                if change.kind is ChangeKind.DELETED:
                    self._pod_ended(change.value, gone=True)
                else:
                    self._pod_updated(change.value)

    def nodes_changed(self, changes: Sequence[Change[NodeRecord]]) -> None:
        for change in changes:
            with self.lock:
                state = self._state(change.key.name)
                self._apply(state, state.see_node(_value(change)))

    def topologies_changed(self, changes: Sequence[Change[NodeTopology | Unreadable]]) -> None:
        for change in changes:
            with self.lock:
                state = self._state(change.key.name)
                self._report_log.add(state.name)
                self._apply(state, state.see_topology(_value(change)))

    def devices_changed(self, changes: Sequence[Change[DeviceObject | Unreadable]]) -> None:
        for change in changes:
            with self.lock:
                state = self._state(change.key.name)
                self._apply(state, state.see_devices(_value(change)))

    def _apply(self, state: NodeInfo, node_change: NodeChange) -> None:
        """Records a change of the node in the logs that it concerns."""
        if node_change is NodeChange.ALL:
            self._mark_changed(state)
        elif node_change is NodeChange.ZONE_REPORT:
            self._log.add(state.name)
        self._remove_if_empty(state)

    def _pod_updated(self, pod: PodRecord) -> None:
        if pod.holding is None:
            # A pod is never unbound: it has ended, or this event is an old one.
            if pod.node:
                self._pod_ended(pod)
            return
        before = self._pods.get(pod.uid)
        if before is not None and before.node != pod.node:
            self._pod_ended(before, gone=True)
        elif before is not None and before.group != pod.group:
            self._ungroup(before)
        self._pods[pod.uid] = pod
        if pod.group is not None:
            self._grouped.setdefault(pod.group.title, set()).add(pod.uid)
        reservation = self._reservations.pop(pod.uid, None)
        if reservation is not None and reservation.node != pod.node:
            self._give_back(reservation)
        state = self._state(pod.node)
        node_change = state.agent(pod.uid, pod.agent_ready)
        if state.place.holdings.get(pod.uid) != pod.holding:
            state.place.record(pod.holding)
            self._holding_changed(state, pod.uid)
            node_change = True
        if node_change:
            self._mark_changed(state)
        if before is None or _report_fields(before) != _report_fields(pod):
            self._apply(state, state.see_pod(pod, new=reservation is not None))

    def _pod_ended(self, pod: PodRecord, *, gone: bool = False) -> None:
        """Releases what the pod held. Until the pod is deleted it may be an agent, and the zone
        report of its node counts it."""
        if (reservation := self._reservations.pop(pod.uid, None)) is not None:
            self._give_back(reservation)
        known = self._pods.pop(pod.uid, None)
        if known is not None:
            self._ungroup(known)
        # The last event of the pod may be older than its binding.
        node = pod.node if known is None else known.node
        state = self._states.get(node)
        if state is None:
            if gone:
                return
            state = self._state(node)
        node_change = state.lose_pod(known or pod) if gone else state.see_pod(pod)
        released = state.place.release(pod.uid)
        if released is not None:
            self._holding_changed(state, pod.uid)
        if state.agent(pod.uid, None if gone else pod.agent_ready) or released is not None:
            self._mark_changed(state)
        self._apply(state, node_change)

    def _holding_changed(self, state: NodeInfo, uid: str) -> None:
        """Records that the pod holds something else than before."""
        state.holds(uid)
        self._report_log.add(state.name)

    def _ungroup(self, pod: PodRecord) -> None:
        if pod.group is None:
            return
        uids = self._grouped[pod.group.title]
        uids.discard(pod.uid)
        if not uids:
            del self._grouped[pod.group.title]

    def _give_back(self, reservation: Reservation) -> None:
        state = self._state(reservation.node)
        state.place.release(reservation.uid)
        self._holding_changed(state, reservation.uid)
        self._mark_changed(state)
        self._remove_if_empty(state)

    def _state(self, name: str) -> NodeInfo:
        state = self._states.get(name)
        if state is None:
            state = self._states[name] = NodeInfo(name, self._pods, self._rules)
        return state

    def _mark_changed(self, state: NodeInfo) -> None:
        self._log.add(state.name)
        self._placement_log.add(state.name)
        state.changed()

    def _remove_if_empty(self, state: NodeInfo) -> None:
        if state.empty:
            self._states.pop(state.name, None)


def _report_fields(pod: PodRecord) -> tuple[object, ...]:
    """The fields that decide whether the zone report of the pod's node counts the pod."""
    return pod.begun, pod.started_at, pod.zoned


def _value(change: Change[T]) -> T | None:
    return None if change.kind is ChangeKind.DELETED else change.value


class RequirementsCheck(msgspec.Struct, frozen=True):
    """Checks whether a node is eligible and has room."""

    cluster: SchedulerCache
    requirements: Requirements

    @property
    def equivalence_class(self) -> Hashable:
        return self.requirements.equivalence_class

    @property
    def reads_zone_report(self) -> bool:
        return self.requirements.pod_request.zoned is not None

    def run(self, node: str) -> Feasibility:
        """The caller holds the cluster's lock."""
        ineligibility = self.cluster.eligible(node, self.requirements.pod_request)
        state = self.cluster.node(node)
        if state is None:
            return UNKNOWN_NODE
        if ineligibility is not None:
            return Infeasible(ineligibility, unresolvable=True)
        return self.requirements.check(state.place)


class ChangedNodes(msgspec.Struct, frozen=True):
    """`names` are the nodes that changed; None means that any node may have changed. `serial` is
    the argument of the next call."""

    serial: int
    names: frozenset[str] | None


class ChangeLog:
    """Keeps the last change of each name, in order. One thread at a time."""

    def __init__(self, most_names: int = MAX_NAMES) -> None:
        """The log drops the oldest changes when it has more than `most_names` names."""
        self._most = most_names
        self._last: dict[str, int] = {}
        self._forgotten = 0
        self.serial = 0

    def add(self, name: str) -> None:
        """Records one change."""
        self.serial += 1
        self._last.pop(name, None)
        self._last[name] = self.serial
        if len(self._last) > self._most:
            oldest = next(iter(self._last))
            self._forgotten = self._last.pop(oldest)

    def since(self, serial: int) -> ChangedNodes:
        """Returns the nodes that changed after that serial; any node where the log does not reach
        back so far."""
        if serial < self._forgotten:
            return ChangedNodes(self.serial, None)
        names = []
        for name in reversed(self._last):
            if self._last[name] <= serial:
                break
            names.append(name)
        return ChangedNodes(self.serial, frozenset(names))
