"""The cluster-state cache: the nodes with the allocations of their pods and of the reservations,
and the nodes that changed since a serial.

Everything except the reservations follows from the API objects: a process that starts, or begins to
lead, has the same state once its watches are synced.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence, Set
from typing import Final, TypeVar

import msgspec

from agent.allocate.node_allocator.answer import NodeOffer
from agent.allocate.node_allocator.assigned_pods import AssignedPod
from agent.allocate.node_allocator.node_states import NodeStates
from agent.allocate.node_allocator.properties import (
    AllocatorRules,
    prepare_devices,
    prepare_topology,
)
from agent.allocate.refusal import Reason, Refusal
from agent.kube.objects import Change, ChangeKind
from agent.model.cpu.cpuset import CpuSet
from agent.model.cpu.policies import BindPolicy, DeviceLocality
from agent.model.devices.device_object import DeviceObject
from agent.model.nrt.resource_topology import NodeTopology
from agent.model.pod.apiobjects import PodGroup
from agent.model.pod_request import Needs, PodRequest
from agent.scheduler.state.koordinator_reservations import (
    KoordinatorReservations,
    ReservationRecord,
    ReservedPart,
)
from agent.scheduler.state.node_info import (
    CpuMismatch,
    DeviceResources,
    NodeChange,
    NodeInfo,
)
from agent.scheduler.state.pod_info import (
    PodDefaults,
    PodInfo,
    Requirements,
)
from agent.scheduler.state.records import NodeRecord, PodRecord, Unreadable

T = TypeVar("T")
OS_LABEL: Final = "kubernetes.io/os"
LINUX: Final = "linux"
EXPIRY_SECONDS: Final = 75.0
"""The outcome of a Binding without an answer is final by then: the API server cancels a request
after 60 s (--request-timeout), and a write that it passed to etcd ends a few seconds later."""


class Reservation(msgspec.Struct, frozen=True):
    """The allocation of a pod that no watch has reported as bound yet. `until` is when the outcome
    of a Binding that the API server accepted, or may have accepted, is read from it; None while the
    Binding is in flight, and for a part of a group."""

    node: str
    assigned: AssignedPod
    until: float | None = None

    @property
    def uid(self) -> str:
        return self.assigned.uid

    @property
    def title(self) -> str:
        """The pod's namespace/name."""
        return self.assigned.title

    @property
    def confirmed(self) -> bool:
        """Whether the API server accepted a Binding of the pod, or may have."""
        return self.until is not None

    def overdue(self, now: float) -> bool:
        return self.until is not None and now >= self.until


MAX_OFFERS: Final = 256
"""Offers kept, of some kilobytes each. Beyond them all are dropped."""


class ReserveError(Exception):
    """Nothing can be reserved on the node; the message is the reason."""


MAX_NAMES: Final = 100_000


class ChangedNodes(msgspec.Struct, frozen=True):
    """`names` are the nodes that changed; None means that any node may have changed. `serial` is
    the argument of the next call."""

    serial: int
    names: frozenset[str] | None


class ChangeLog:
    """Keeps the last change of each name, in order. One thread at a time."""

    def __init__(self, max_names: int = MAX_NAMES) -> None:
        """The log drops the oldest changes when it has more than `max_names` names."""
        self._max_names = max_names
        self._last: dict[str, int] = {}
        self._dropped = 0
        self.serial = 0

    def add(self, name: str) -> None:
        """Records one change."""
        self.serial += 1
        self._last.pop(name, None)
        self._last[name] = self.serial
        if len(self._last) > self._max_names:
            oldest = next(iter(self._last))
            self._dropped = self._last.pop(oldest)

    def since(self, serial: int) -> ChangedNodes:
        """Returns the nodes that changed after that serial; any node may have changed if the log
        does not reach back that far."""
        if serial < self._dropped:
            return ChangedNodes(self.serial, None)
        names = []
        for name in reversed(self._last):
            if self._last[name] <= serial:
                break
            names.append(name)
        return ChangedNodes(self.serial, frozenset(names))


class GroupMembers:
    """The existing pods of each group, as uids. A bound pod counts for the name of its group, since
    annotations may give another size; a waiting one, which has no node yet, for the size too."""

    def __init__(self) -> None:
        self._uids: dict[str | PodGroup, set[str]] = {}
        self._keys: dict[str, str | PodGroup] = {}

    def bound(self, group: PodGroup) -> Set[str]:
        return self._uids.get(group.title, frozenset())

    def waiting(self, group: PodGroup) -> Set[str]:
        return self._uids.get(group, frozenset())

    def update(self, uid: str, group: PodGroup | None, *, bound: bool) -> None:
        """`group` None: the pod is in none, or does not exist any more."""
        if (before := self._keys.pop(uid, None)) is not None:
            self._uids[before].discard(uid)
            if not self._uids[before]:
                del self._uids[before]
        if group is not None:
            key = self._keys[uid] = group.title if bound else group
            self._uids.setdefault(key, set()).add(uid)


class SchedulerCache:
    """The state of the cluster by the API objects and the reservations. Safe for many threads.
    Every method holds `lock`. A caller that reads a node's state, or needs several steps to be
    atomic, holds it too, for a short time."""

    def __init__(
        self,
        *,
        agents: bool = True,
        rules: AllocatorRules | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`agents`: a node must have a Ready agent to give CPUs or devices. `rules` apply to the
        allocation on every node. A reservation whose Binding was accepted is overdue after
        EXPIRY_SECONDS."""
        self.lock = threading.RLock()
        self.agents = agents
        self.node_states = NodeStates()
        self._rules = rules
        self._clock = clock
        self._nodes: dict[str, NodeInfo] = {}
        self._pods: dict[str, PodRecord] = {}
        self._members = GroupMembers()
        self._untried: set[str] = set()
        self._reservations: dict[str, Reservation] = {}
        self._offers: dict[str, NodeOffer] = {}
        self._koordinator_reservations = KoordinatorReservations(self._pods)
        self._device_resources = DeviceResources()
        self._device_localities: dict[str, DeviceLocality] = {}
        self._pod_defaults = PodDefaults()
        self._log, self._zone_log, self._placement_log = ChangeLog(), ChangeLog(), ChangeLog()
        self._report_log = ChangeLog()

    # queries
    def node(self, name: str) -> NodeInfo | None:
        """Returns None if the Node does not exist. The caller holds the lock while it reads the
        node."""
        with self.lock:
            node_info = self._nodes.get(name)
            return node_info if node_info is not None and node_info.node is not None else None

    def nodes(self) -> tuple[NodeInfo, ...]:
        """The nodes whose Node object exists. The caller holds the lock while it reads them."""
        with self.lock:
            return tuple(each for each in self._nodes.values() if each.node is not None)

    def ineligibility(self, name: str, pod_request: PodRequest) -> Refusal | None:
        """Returns why the node can't take such a pod even when it is empty; None if it can."""
        with self.lock:
            node_info = self._nodes.get(name)
            if node_info is None:
                return Refusal(Reason.NODE_UNKNOWN, detail="the node is not known")
            if pod_request.cards and not isinstance(node_info.devices, Unreadable):
                pod_request = node_info.allocator.as_here(pod_request)
            return node_info.ineligibility(pod_request.needs)

    def lock_node(self, name: str, reason: str) -> None:
        """The node takes no further pods that need CPUs or devices, for this reason; "" ends it."""
        with self.lock:
            node_info = self._node_info(name)
            if node_info.lock_reason != reason:
                node_info.lock_reason = reason
                self._mark_changed(node_info)
            self._remove_if_empty(node_info)

    def use_rules(self, rules: AllocatorRules) -> None:
        """Other rules apply from now on."""
        with self.lock:
            self._rules = rules
            for node_info in self._nodes.values():
                node_info.use_rules(rules)
                self._mark_changed(node_info)

    def unable_nodes(self) -> dict[str, Reason]:
        """Why the scheduler gives no CPUs of a node, by the name of each such node, whatever pods
        it has. Omits nodes of other systems than Linux."""
        with self.lock:
            found = {
                each.name: each.lack(Needs.CPUS)
                for each in self.nodes()
                if each.node is not None and each.node.labels.get(OS_LABEL, LINUX) == LINUX
            }
            return {name: lack.reason for name, lack in found.items() if lack is not None}

    @property
    def untried(self) -> int:
        """The number of pods that wait for this scheduler, and that kube-scheduler has not tried or
        could not try."""
        return len(self._untried)

    def lacks_agent(self, name: str) -> bool:
        """Whether the node needs a Ready agent and has none."""
        with self.lock:
            node_info = self._nodes.get(name)
            return self.agents and (node_info is None or not node_info.agent_ready)

    def has_reservation(self, name: str) -> bool:
        """Whether a pod has a reservation on the node that no watch has reported as bound."""
        with self.lock:
            return any(each.node == name for each in self._reservations.values())

    @property
    def pod_defaults(self) -> PodDefaults:
        """What the requests of pods depend on."""
        with self.lock:
            names, localities = self._device_resources.names, self._device_localities
            scoring = self._rules.scoring if self._rules is not None else None
            bind = BindPolicy.FULL_PCPUS if scoring is None else scoring.bind
            if self._pod_defaults.device_resources is not names or (
                self._pod_defaults.device_localities is not localities
                or self._pod_defaults.bind is not bind
            ):
                self._pod_defaults = PodDefaults(names, bind, localities)
            return self._pod_defaults

    def changed_since(self, serial: int) -> ChangedNodes:
        """The nodes whose feasibility for some pod may have changed after that serial (0 is the
        first)."""
        with self.lock:
            return self._log.since(serial)

    def placement_changed_since(self, serial: int) -> ChangedNodes:
        """The nodes that changed after that serial in more than their zone report. This log has
        serials of its own."""
        with self.lock:
            return self._placement_log.since(serial)

    def zones_changed_since(self, serial: int) -> ChangedNodes:
        """The nodes that changed after that serial in more than the devices of their zone report.
        This log has serials of its own."""
        with self.lock:
            return self._zone_log.since(serial)

    def reports_changed_since(self, serial: int) -> ChangedNodes:
        """The nodes whose NodeResourceTopology, or the allocation of one of whose pods, changed
        after that serial. This log has serials of its own."""
        with self.lock:
            return self._report_log.since(serial)

    def cpu_mismatches(self, name: str) -> tuple[CpuMismatch, ...]:
        """The pods of the node whose annotation names other CPUs than the kubelet gave them."""
        with self.lock:
            node_info = self._nodes.get(name)
            return () if node_info is None else node_info.cpu_mismatches()

    def numa_nodes(self, name: str) -> dict[int, int]:
        """The NUMA node of each CPU of the node."""
        with self.lock:
            node_info = self._nodes.get(name)
            cpus = None if node_info is None else node_info.allocator.properties.cpus
            areas = cpus.layout.nodes if cpus is not None and cpus.layout is not None else ()
            return {cpu: area.id for area in areas for cpu in CpuSet.from_int(area.cpus)}

    def node_of(self, uid: str) -> str | None:
        """The node to which the pod is bound, by the watch of pods."""
        with self.lock:
            pod = self._pods.get(uid)
            return pod.node if pod is not None else None

    def pod(self, uid: str) -> PodRecord | None:
        """The record of a pod that is bound, by the watch of pods."""
        with self.lock:
            return self._pods.get(uid)

    def bound_members(self, group: PodGroup) -> dict[str, PodRecord]:
        """The bound pods of a group by uid, sorted. Their annotations may give another size of the
        group."""
        with self.lock:
            return {uid: self._pods[uid] for uid in sorted(self._members.bound(group))}

    def waiting_members(self, group: PodGroup) -> frozenset[str]:
        """The uids of existing pods of the group that have no node yet."""
        with self.lock:
            return frozenset(self._members.waiting(group))

    def group_node(self, group: PodGroup) -> str | None:
        """The node of most bound members of the group; None if no member is bound."""
        nodes = [each.node for each in self.bound_members(group).values()]
        return max(sorted(nodes), key=nodes.count, default=None)

    def requirements(self, info: PodInfo) -> Requirements:
        """The requirements of an unbound pod, or of all unbound members of its group."""
        return info.requirements(len(self.bound_members(info.group)) if info.group else 0)

    def reservation(self, uid: str) -> Reservation | None:
        with self.lock:
            return self._reservations.get(uid)

    # reservations
    def keep_offer(self, name: str, node_offer: NodeOffer) -> None:
        """Keeps the last offer of the node until the node changes, for the bind of such a pod."""
        with self.lock:
            if len(self._offers) >= MAX_OFFERS:
                self._offers.clear()
            self._offers[name] = node_offer

    def offer(self, name: str, pod_request: PodRequest) -> NodeOffer | Refusal | None:
        """What the node offers to a pod that holds nothing on it; None if the Node does not
        exist."""
        with self.lock:
            node_info, kept = self.node(name), self._offers.get(name)
            if node_info is None:
                return None
            if kept and kept.pod_request.equivalence_key == pod_request.equivalence_key:
                return kept.to(node_info.allocator.as_here(pod_request))
            return node_info.allocator.offer(pod_request)

    def reserve(self, name: str, node_offer: NodeOffer) -> None:
        """Reserves the offer until `confirm` or `release`. Raises ReserveError, and StaleOfferError
        if a part of the offer was allocated since."""
        with self.lock:
            node_info = self.node(name)
            if node_info is None:
                raise ReserveError(f"node {name} is not known")
            if (pod := self._pods.get(node_offer.uid)) is not None:
                raise ReserveError(f"pod {node_offer.pod_request.title} is bound to {pod.node}")
            before = self._reservations.get(node_offer.uid)
            if before is not None:
                raise ReserveError(f"a bind of pod {before.title} to {before.node} is in progress")
            assigned = node_info.allocator.commit(node_offer)
            self._mark_changed(node_info)
            self._reservations[assigned.uid] = Reservation(name, assigned)

    def confirm(self, uid: str) -> None:
        """Keeps the reservation until a watch reports the pod as bound: the API server accepted its
        Binding, or may have accepted it."""
        with self.lock:
            kept = self._reservations.get(uid)
            if kept is not None:
                until = self._clock() + EXPIRY_SECONDS
                self._reservations[uid] = Reservation(kept.node, kept.assigned, until)

    def release(self, uid: str) -> bool:
        """Ends a reservation. Returns False if there was none, or if the pod is bound already."""
        with self.lock:
            kept = self._reservations.pop(uid, None)
            if kept is not None:
                self._release_allocation(kept)
            return kept is not None

    def overdue(self) -> tuple[Reservation, ...]:
        """The confirmed reservations whose pods no watch has reported as bound in time."""
        with self.lock:
            now = self._clock()
            return tuple(each for each in self._reservations.values() if each.overdue(now))

    def expire(self, reservation: Reservation) -> bool:
        """Ends an overdue reservation. Returns False if it has changed since."""
        with self.lock:
            return self._reservations.get(reservation.uid) is reservation and self.release(
                reservation.uid
            )

    # watch events
    def pods_changed(self, changes: Sequence[Change[PodRecord]]) -> None:
        for change in changes:
            with self.lock:
                if change.kind is ChangeKind.DELETED:
                    self._remove_pod(change.value, deleted=True)
                else:
                    self._update_pod(change.value)
                if change.value.untried and change.kind is not ChangeKind.DELETED:
                    self._untried.add(change.value.uid)
                else:
                    self._untried.discard(change.value.uid)

    def nodes_changed(self, changes: Sequence[Change[NodeRecord]]) -> None:
        for change in changes:
            with self.lock:
                node_info = self._node_info(change.key.name)
                self._apply(node_info, node_info.update_node(_value(change)))

    def topologies_changed(self, changes: Sequence[Change[NodeTopology | Unreadable]]) -> None:
        for change in changes:
            found = _value(change)
            if isinstance(found, NodeTopology):
                prepare_topology(found)
            with self.lock:
                node_info = self._node_info(change.key.name)
                self._report_log.add(node_info.name)
                self._apply(node_info, node_info.update_topology(found))

    def devices_changed(self, changes: Sequence[Change[DeviceObject | Unreadable]]) -> None:
        for change in changes:
            found = _value(change)
            if isinstance(found, DeviceObject):
                prepare_devices(found, (self._rules or AllocatorRules()).gpu_objective)
            with self.lock:
                node_info = self._node_info(change.key.name)
                self._device_resources.update(node_info.name, found)
                self._apply(node_info, node_info.update_devices(found))

    def namespaces_changed(self, changes: Sequence[Change[DeviceLocality | None]]) -> None:
        """Namespaces with a label for device locality; None for a value that is not known."""
        with self.lock:
            localities = dict(self._device_localities)
            for change in changes:
                locality = _value(change)
                if locality is None:
                    localities.pop(change.key.name, None)
                else:
                    localities[change.key.name] = locality
            self._device_localities = localities

    def koordinator_reservations_changed(
        self, changes: Sequence[Change[ReservationRecord]]
    ) -> None:
        """Reservations of Koordinator."""
        for change in changes:
            with self.lock:
                self._hold(self._koordinator_reservations.update(change.key.name, _value(change)))

    def _hold(self, parts: Sequence[ReservedPart]) -> None:
        """Updates what Reservations of Koordinator hold."""
        for part in parts:
            if part.held is None and part.node not in self._nodes:
                continue
            node_info = self._node_info(part.node)
            if node_info.allocator.assigned_pods.get(part.uid) != part.held:
                if part.held is None:
                    node_info.allocator.release(part.uid)
                else:
                    node_info.allocator.record(part.held)
                self._mark_changed(node_info)
                self._remove_if_empty(node_info)

    def _apply(self, node_info: NodeInfo, node_change: NodeChange) -> None:
        """Adds a change of the node to the logs that it concerns."""
        if node_change is NodeChange.ALL:
            self._mark_changed(node_info)
        elif node_change is not NodeChange.NOTHING:
            self._log.add(node_info.name)
            self._offers.pop(node_info.name, None)
            if node_change is NodeChange.ZONE_REPORT:
                self._zone_log.add(node_info.name)
        self._remove_if_empty(node_info)

    def _update_pod(self, pod: PodRecord) -> None:
        if pod.assigned is None:
            # A pod is never unbound: it is terminated, or this event is an old one.
            if pod.node:
                self._remove_pod(pod)
            elif pod.uid not in self._pods:
                self._members.update(pod.uid, pod.group, bound=False)
            return
        before = self._pods.get(pod.uid)
        if before is not None and before.node != pod.node:
            self._remove_pod(before, deleted=True)
        self._pods[pod.uid] = pod
        self._members.update(pod.uid, pod.group, bound=True)
        reservation = self._reservations.pop(pod.uid, None)
        if reservation is not None and reservation.node != pod.node:
            self._release_allocation(reservation)
        node_info = self._node_info(pod.node)
        if before is None and reservation is None:
            node_info.foreign_bound_at = self._clock()
        changed = node_info.update_agent(pod.uid, pod.agent_ready)
        if node_info.allocator.assigned_pods.get(pod.uid) != pod.assigned:
            node_info.allocator.record(pod.assigned)
            self._allocation_changed(node_info, pod.uid)
            changed = True
        if changed:
            self._mark_changed(node_info)
        if before is None or before.report_fields != pod.report_fields:
            self._apply(node_info, node_info.update_pod(pod, new=reservation is not None))
        self._hold(self._koordinator_reservations.pod_changed(pod.uid, before, pod))

    def _remove_pod(self, pod: PodRecord, *, deleted: bool = False) -> None:
        """Releases the allocation of a terminated or deleted pod. Until it is deleted, the zone
        report of its node counts it, and it may be an agent."""
        if (reservation := self._reservations.pop(pod.uid, None)) is not None:
            self._release_allocation(reservation)
        before = self._pods.pop(pod.uid, None)
        self._members.update(pod.uid, None, bound=False)
        reserved = self._koordinator_reservations.pod_changed(pod.uid, before, None)
        # The last event of the pod may be older than its binding.
        node = pod.node if before is None else before.node
        node_info = self._nodes.get(node)
        if node_info is None:
            if deleted:
                self._hold(reserved)
                return
            node_info = self._node_info(node)
        node_change = node_info.remove_pod(before or pod) if deleted else node_info.update_pod(pod)
        released = node_info.allocator.release(pod.uid)
        if released is not None:
            self._allocation_changed(node_info, pod.uid)
        ready = None if deleted else pod.agent_ready
        if node_info.update_agent(pod.uid, ready) or released is not None:
            self._mark_changed(node_info)
        self._apply(node_info, node_change)
        # After the node knows that the pod has ended.
        self._hold(reserved)

    def _allocation_changed(self, node_info: NodeInfo, uid: str) -> None:
        """Adds a changed allocation of a pod to the log."""
        node_info.allocation_changed(uid)
        self._report_log.add(node_info.name)

    def _release_allocation(self, reservation: Reservation) -> None:
        node_info = self._node_info(reservation.node)
        node_info.allocator.release(reservation.uid)
        self._allocation_changed(node_info, reservation.uid)
        self._mark_changed(node_info)
        self._remove_if_empty(node_info)

    def _node_info(self, name: str) -> NodeInfo:
        node_info = self._nodes.get(name)
        if node_info is None:
            node_info = self._nodes[name] = NodeInfo(
                name, self._pods, self._rules, agents=self.agents
            )
        return node_info

    def _mark_changed(self, node_info: NodeInfo) -> None:
        for log in (self._log, self._zone_log, self._placement_log):
            log.add(node_info.name)
        self._offers.pop(node_info.name, None)
        node_info.changed()

    def _remove_if_empty(self, node_info: NodeInfo) -> None:
        if node_info.empty:
            self._nodes.pop(node_info.name, None)


def _value(change: Change[T]) -> T | None:
    return None if change.kind is ChangeKind.DELETED else change.value
