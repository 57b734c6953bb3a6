"""One node: its API objects, its agent, and the allocation state that follows from them.

Pods without CPUs or devices from Topolet use the NUMA nodes by the node's NodeResourceTopology
report, without the pods that the report does not count yet. It does not name the pods that it
counts; it has only a fingerprint of them. Which pods fit the fingerprint is found from the order in
which pods started, the last pods that ended, and the pods that were added since the report. A
process that has just started does not know these. If the report then counts unknown pods, the free
amounts are unknown until the next report.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from agent.allocate import node_score
from agent.allocate.devices.need import listed_resources
from agent.allocate.node_allocation import TopologyOptions
from agent.allocate.node_allocator.allocator import NodeAllocator
from agent.allocate.node_allocator.node_states import NodeStates
from agent.allocate.node_allocator.properties import (
    AllocatorRules,
    NodeProperties,
    node_properties,
    topology_options,
)
from agent.allocate.node_allocator.zones import assumed_of
from agent.allocate.nrt.node import (
    DECLINING,
    Assumed,
    NrtFreshness,
    ZonedNode,
    ZoneReport,
    freshness,
    without,
    zone_report,
)
from agent.allocate.placement.demand import NodeCapacity, node_capacity
from agent.allocate.policies_in_force import PROFILES
from agent.allocate.refusal import Reason, Refusal
from agent.model import bounds
from agent.model.cpu.cpuset import CpuSet
from agent.model.cpu.policies import Strategy, kubelet_numa_policy
from agent.model.devices.device_object import DeviceObject, DeviceType
from agent.model.nrt import node_annotations, resource_topology
from agent.model.nrt.node_status import GPU_MODEL
from agent.model.nrt.resource_topology import FingerprintMethod, NodeTopology
from agent.model.pod.annotations import AnnotationError
from agent.model.pod.numa_request import NO_NUMA_REQUEST, NumaRequest, exclusive, foreign
from agent.model.pod_request import Needs, Reads
from agent.scheduler.state.records import InternPool, NodeRecord, PodRecord, Unreadable

MAX_REMOVED: Final = 8
"""The number of the last deleted pods that a report may still count."""


class ReportFreshness:
    """Determines the pods that the report of one node counts. One thread at a time."""

    __slots__ = ("_admitted", "_counted", "_deleted", "_ended", "_pods", "_started", "_unreported")

    def __init__(self, pods: Mapping[str, PodRecord]) -> None:
        """`pods` are the assigned pods of the whole cluster, by uid."""
        self._pods = pods
        self._started: list[str] = []
        self._admitted: list[str] = []
        self._ended: dict[str, PodRecord] = _NO_PODS
        self._deleted: tuple[tuple[int, NumaRequest | None], ...] = ()
        self._unreported: frozenset[str] = frozenset()
        self._counted: _Counted | None = None

    @property
    def empty(self) -> bool:
        """Whether no pod has started."""
        return not self._started

    def reported(self) -> None:
        """Must be called for each new report of the node, which may count all started pods."""
        self._counted = None
        if self._unreported:
            self._unreported = self._unreported.difference(self._started)

    def updated(self, pod: PodRecord, *, new: bool = False) -> None:
        """Takes the current record of a pod on the node, terminated or not. `new`: no report can
        count it yet."""
        uid, pods = pod.uid, self._started
        if pod.terminated:
            self._ended = {**self._ended, uid: pod}
        elif new or not pod.started:
            self._unreported |= {uid}
        if not (pod.started or pod.terminated):
            pods = self._admitted
        elif uid in self._admitted:
            self._admitted.remove(uid)
        if uid not in pods:
            pods.append(uid)
        self._counted = None

    def deleted(self, pod: PodRecord) -> None:
        """Takes the last record of a deleted pod."""
        uid = pod.uid
        if uid in self._unreported:
            self._unreported -= {uid}
        if uid in self._ended:
            self._ended = {key: each for key, each in self._ended.items() if key != uid}
        if uid in self._admitted:
            self._admitted.remove(uid)
        if uid in self._started:
            self._started.remove(uid)
            self._deleted = (*self._deleted[1 - MAX_REMOVED :], (_hash(pod), pod.numa_request))
        self._counted = None

    def counted(self, zones: ZoneReport) -> frozenset[str] | None:
        """Returns the uids of the pods that the report counts; None if it counts unknown pods."""
        if self._counted is None:
            self._counted = self._count(zones)
        return self._counted.uids

    def _count(self, zones: ZoneReport) -> _Counted:
        if zones.fingerprint is None:
            return _Counted(frozenset(self._started) - self._unreported)
        deleted = [
            pod_hash for pod_hash, numa_request in self._deleted if _counts(zones, numa_request)
        ]
        for uids in self._reported_sets():
            pods = [pod for pod in map(self._pod, uids) if _counts(zones, pod.numa_request)]
            found = freshness(zones.fingerprint, [_hash(each) for each in pods], deleted)
            if found.state is not NrtFreshness.OTHER:
                missing = {each.uid for each in pods[len(pods) - found.missing :]}
                return _Counted(frozenset(uids) - missing)
        return _Counted(None)

    def _reported_sets(self) -> Iterator[list[str]]:
        """Yields the sets of pods that reports may count, in the order of their start: all started
        pods, as Topolet's agent reports; without terminated pods, as a kubelet reports; and with
        the pods that the kubelet has admitted but that do not run yet by the API server."""
        yield self._started
        running = [uid for uid in self._started if uid not in self._ended]
        if self._ended:
            yield running
        if self._admitted:
            yield [*running, *self._admitted]

    def _pod(self, uid: str) -> PodRecord:
        return self._ended.get(uid) or self._pods[uid]


class _Counted(msgspec.Struct, frozen=True):
    uids: frozenset[str] | None


_NO_PODS: Final[dict[str, PodRecord]] = {}


def _counts(zones: ZoneReport, numa_request: NumaRequest | None) -> bool:
    if zones.method is FingerprintMethod.ALL:
        return True
    return numa_request is not None and exclusive(numa_request, zones.reported.available)


def _hash(pod: PodRecord) -> int:
    namespace, _, name = pod.title.partition("/")
    return resource_topology.pod_hash(namespace, name)


def change_of_zones(topology: object, strategy: Strategy) -> NodeChange:
    """What a change of the report is, by the pods whose feasibility or score depends on it. NOTHING
    without a report."""
    if not isinstance(topology, NodeTopology):
        return NodeChange.NOTHING
    policy = kubelet_numa_policy(topology.policy)
    if policy in DECLINING or strategy is Strategy.LEAST_NUMA_NODES:
        return NodeChange.ZONE_REPORT
    has_devices = any(foreign(name) for zone in topology.zones for name in zone.resources)
    return NodeChange.DEVICE_ZONES if has_devices else NodeChange.NOTHING


def remaining(
    zones: ZoneReport,
    report_freshness: ReportFreshness,
    pods: Iterable[PodRecord],
    properties: NodeProperties,
) -> ZonedNode | None:
    """Returns the amounts that `pods`, all pods bound to the node, leave free; None if the report
    counts unknown pods. The report may still count deleted pods: their amounts stay unavailable
    until the next report. `properties` tell the NUMA nodes of the pods' CPUs and devices."""
    counted = report_freshness.counted(zones)
    if counted is None:
        return None
    taken = [
        assumed
        for each in pods
        if each.uid not in counted and (assumed := _assumed(each, properties)) is not None
    ]
    return without(zones.reported, taken) if taken else zones.reported


_empty: Final = InternPool[ZonedNode]()
# A pool keeps the layouts alive, of up to some megabytes each (see `properties`).
_options: Final = InternPool[TopologyOptions](max_values=32)


def _assumed(pod: PodRecord, properties: NodeProperties) -> Assumed | None:
    """Returns the amounts that a pod takes on known NUMA nodes; the choice of the kubelet is
    unknown."""
    if pod.assigned is None:
        return None
    request = pod.numa_request or NO_NUMA_REQUEST
    held = pod.assigned
    return assumed_of(held.allocation, held.devices, request.whole.taken, request, properties)


log = logging.getLogger(__name__)


class NodeChange(enum.IntEnum):
    """What changed on a node: each includes those before."""

    NOTHING = enum.auto()
    DEVICE_ZONES = enum.auto()
    """Its zone report, which only pods with devices read."""
    ZONE_REPORT = enum.auto()
    """Its zone report, which all pods read but BestEffort ones without devices."""
    ALL = enum.auto()


class DeviceResources:
    """The resources that Device objects assign to device types (see `need.listed_resources`):
    `names`, of all nodes. One thread at a time."""

    def __init__(self) -> None:
        self.names: frozenset[str] = frozenset()
        self._by_node: dict[str, set[str]] = {}

    def update(self, node: str, devices: DeviceObject | Unreadable | None) -> None:
        """An unreadable object keeps the resources that it listed before: otherwise pods would get
        them as plain extended resources."""
        if isinstance(devices, Unreadable):
            return
        listed: set[str] = set() if devices is None else listed_resources(devices.devices)
        if listed == self._by_node.get(node, set()):
            return
        self._by_node[node] = listed
        if not listed:
            del self._by_node[node]
        self.names = frozenset().union(*self._by_node.values())


class CpuMismatch(msgspec.Struct, frozen=True):
    """A pod whose annotation names the CPUs `claimed`, but the static kubelet of its node gave it
    the CPUs `given`."""

    uid: str
    title: str
    claimed: CpuSet
    given: CpuSet


class NodeInfo:
    """The objects of a node, its agent, and its allocator. Mutable; one thread at a time."""

    __slots__ = (
        "_agents",
        "_agents_required",
        "_allocator",
        "_ineligibilities",
        "_kubelet_cpus",
        "_new_report",
        "_new_rules",
        "_outdated",
        "_pods",
        "_properties_numbers",
        "_recount",
        "_report_freshness",
        "_rules",
        "_state_numbers",
        "_zone_change",
        "devices",
        "foreign_bound_at",
        "lock_reason",
        "name",
        "node",
        "topology",
    )

    def __init__(
        self,
        name: str,
        pods: Mapping[str, PodRecord],
        rules: AllocatorRules | None = None,
        *,
        agents: bool = True,
    ) -> None:
        """`pods` are the bound pods of the whole cluster, by uid. `agents`: a node must have a
        Ready agent to give CPUs or devices."""
        self.name = name
        self.node: NodeRecord | None = None
        """None until the Node is reported, which may be after its pods."""
        self.topology: NodeTopology | Unreadable | None = None
        self.devices: DeviceObject | Unreadable | None = None
        self.foreign_bound_at: float | None = None
        """When a watch last reported a pod on the node that this process did not bind; None if it
        never did."""
        self.lock_reason = ""
        """Why the node takes no pods that need CPUs or devices now, "" if it does."""
        self._agents_required = agents
        self._pods = pods
        self._rules = rules or AllocatorRules()
        self._agents: dict[str, bool] = {}
        self._ineligibilities: dict[int, Refusal | None] = {}
        self._state_numbers: dict[Reads, int] = {}
        self._properties_numbers: dict[Reads, int | None] = {}
        self._kubelet_cpus: Mapping[str, CpuSet] = {}
        self._outdated = False
        self._recount = self._new_report = self._new_rules = False
        self._zone_change = NodeChange.NOTHING
        self._report_freshness = ReportFreshness(pods)
        self._allocator = NodeAllocator(node_properties(name, {}, rules=self._rules))

    @property
    def allocator(self) -> NodeAllocator:
        """The allocations of pods and reservations on the node, by the current objects."""
        if not (self._outdated or self._new_rules or self._recount):
            return self._allocator
        before = self._allocator.properties
        if self._outdated:
            properties = msgspec.structs.replace(self._properties(), zones=self._zone_report())
            for fault in properties.faults:
                if fault not in before.faults:
                    log.warning("node %s: %s", self.name, fault)
            self._allocator = self._allocator.with_properties(properties, self._reserved_uids())
        elif self._new_rules:
            properties = msgspec.structs.replace(before, rules=self._rules)
            self._allocator = self._allocator.with_properties(properties, self._reserved_uids())
        if self._outdated or self._recount or self._new_rules:
            self._update_zones()
        has_report = self._allocator.properties.zones is not None
        if self._outdated or self._new_rules or has_report != (before.zones is not None):
            self._properties_numbers.clear()
        self._state_numbers.clear()
        self._outdated = self._recount = self._new_report = self._new_rules = False
        return self._allocator

    def use_rules(self, rules: AllocatorRules) -> None:
        """The rules differ from those before in their placement only."""
        self._rules, self._new_rules = rules, True

    @property
    def capacity(self) -> NodeCapacity:
        """The node without pods, for placements."""
        node = self.node or NodeRecord(self.name, "")
        devices = self.devices.devices if isinstance(self.devices, DeviceObject) else ()
        gpus = sum(each.healthy and each.type == DeviceType.GPU for each in devices)
        amounts, model = node.allocatable, node.labels.get(GPU_MODEL, "")
        return node_capacity(
            self.name, amounts.get("cpu", 0), amounts.get("memory", 0), gpus, model
        )

    # Each method returns what changed.
    def update_node(self, node: NodeRecord | None) -> NodeChange:
        if self.node == node:
            return NodeChange.NOTHING
        self.node, self._outdated = node, True
        return NodeChange.ALL

    def update_devices(self, devices: DeviceObject | Unreadable | None) -> NodeChange:
        if self.devices == devices:
            return NodeChange.NOTHING
        self.devices, self._outdated = devices, True
        return NodeChange.ALL

    def update_topology(self, topology: NodeTopology | Unreadable | None) -> NodeChange:
        """For every pod that starts or ends, the agent writes a new report of the free resources
        and of the pods that it counts."""
        before, self.topology = self.topology, topology
        if before == topology:
            return NodeChange.NOTHING
        self._recount = self._new_report = True
        before_change = self._zone_change
        self._zone_change = change_of_zones(topology, self._rules.zones.type)
        self._kubelet_cpus = _kubelet_cpus(topology)
        self._report_freshness.reported()
        both_readable = isinstance(before, NodeTopology) and isinstance(topology, NodeTopology)
        if both_readable and not self._outdated:
            current = self._allocator.properties
            if msgspec.structs.replace(self._properties(), zones=current.zones) == current:
                return max(before_change, self._zone_change)
        self._outdated = True
        return NodeChange.ALL

    def allocation_changed(self, uid: str) -> None:
        """Must be called when the allocation of a pod changes: the node properties exclude its CPUs
        from those that the kubelet gave the pod."""
        if uid in self._kubelet_cpus:
            self._outdated = True

    def cpu_mismatches(self) -> tuple[CpuMismatch, ...]:
        """The pods whose annotation names other CPUs than the kubelet gave them."""
        return tuple(
            CpuMismatch(uid, held.title, held.allocation.cpus, cpus)
            for uid, cpus in sorted(self._kubelet_cpus.items())
            if uid in self._pods and (held := self._allocator.assigned_pods.get(uid)) is not None
            if held.allocation.cpus and held.allocation.cpus != cpus
        )

    def claim_refusals(self) -> dict[str, tuple[str, str]]:
        """By uid, title and reason of the pods whose claim of CPUs the report names as refused;
        without a reason those that only have the condition of such pods."""
        reasons = _refused_claims(self.topology)
        pods = (self._pods[uid] for uid in self._allocator.assigned_pods if uid in self._pods)
        return {
            pod.uid: (pod.title, reasons.get(pod.uid, ""))
            for pod in pods
            if pod.uid in reasons or pod.has_claim_condition
        }

    def update_pod(self, pod: PodRecord, *, new: bool = False) -> NodeChange:
        """`new`: the pod had only a reservation before."""
        self._report_freshness.updated(pod, new=new)
        return self._recount_pods()

    def remove_pod(self, pod: PodRecord) -> NodeChange:
        """Removes a pod that is deleted or on another node, by its last record."""
        self._report_freshness.deleted(pod)
        return self._recount_pods()

    def _recount_pods(self) -> NodeChange:
        if self._zone_change is not NodeChange.NOTHING:
            self._recount = True
        return self._zone_change

    @property
    def agent_ready(self) -> bool:
        return any(self._agents.values())

    @property
    def empty(self) -> bool:
        """Whether the node has no object and no pod."""
        objects = (self.node, self.topology, self.devices)
        return (
            objects == (None, None, None)
            and not self.lock_reason
            and not self._agents
            and not self._allocator.assigned_pods
            and self._report_freshness.empty
        )

    def overcommitted(self, resources: Iterable[str]) -> str:
        """Returns the amounts of one overcommitted resource: the pods and reservations on the node
        request more of it than the node has. Checks `resources` and the number of pods. Returns ""
        if none is overcommitted."""
        allocatable = self.node.allocatable if self.node is not None else {}
        pods = sum(not each.reservation for each in self._allocator.assigned_pods.values())
        requested = {**self._allocator.requested, "pods": pods}
        for name in (*resources, "pods"):
            if name in allocatable and requested.get(name, 0) > allocatable[name]:
                unit = "milli-CPU" if name == "cpu" else name
                return f"its pods request {requested[name]} of {allocatable[name]} {unit}"
        return ""

    def changed(self) -> None:
        """Must be called after a change of the objects, the allocations or the agent."""
        self._ineligibilities.clear()
        self._state_numbers.clear()

    def update_agent(self, uid: str, ready: bool | None) -> bool:
        """Sets whether the agent pod of that uid is Ready; None for a deleted pod, and for pods
        that are not agents. Returns whether that is a change."""
        if self._agents.get(uid) == ready:
            return False
        if ready is None:
            del self._agents[uid]
        else:
            self._agents[uid] = ready
        return True

    def ineligibility(self, needs: Needs) -> Refusal | None:
        """Returns why no such pod can be placed here even when the node is empty: because of a
        lock, or of what the pod lacks here; None if it can."""
        if self.lock_reason and (needs or self._allocator.properties.binds_all):
            return Refusal(Reason.LOCKED, detail=self.lock_reason)
        key = needs.value
        if key not in self._ineligibilities:
            self._ineligibilities[key] = self.lack(needs)
        return self._ineligibilities[key]

    def state_number(self, states: NodeStates, read: Reads) -> int | None:
        """The node's state number for offers that read `read` of it. It is None if no other node
        can have the same."""
        allocator = self.allocator
        if read not in self._properties_numbers:
            self._properties_numbers[read] = states.of_properties(allocator.properties, read)
        fixed = self._properties_numbers[read]
        if fixed is None:
            return None
        number = self._state_numbers.get(read)
        if number is None:
            number = states.of(fixed, allocator.state(read), read)
            self._state_numbers[read] = number
        return number

    def _properties(self) -> NodeProperties:
        """The properties of the node, without the zone report."""
        node = self.node or NodeRecord(self.name, "")
        device = self.devices if isinstance(self.devices, DeviceObject) else None
        rules, allocatable = self._rules, node.allocatable
        if not isinstance(self.topology, NodeTopology):
            return node_properties(
                self.name, node.labels, None, device, rules, allocatable=allocatable
            )
        assigned_pods = self._allocator.assigned_pods
        cpus, faults = topology_options(
            node.labels,
            node.annotations,
            self.topology,
            allocatable.get("cpu"),
            node_score.profile(rules.scoring) if rules.scoring else PROFILES["koordinator"],
            {
                uid: assigned_pods[uid].allocation.cpus
                for uid in self._kubelet_cpus
                if uid in assigned_pods
            },
        )
        return node_properties(
            self.name, node.labels, _shared(cpus), device, rules, faults, allocatable
        )

    def _reserved_uids(self) -> list[str]:
        return [uid for uid in self._allocator.assigned_pods if uid not in self._pods]

    def _zone_report(self) -> ZoneReport | None:
        """Returns None also if no pod's feasibility or score depends on the report."""
        if not isinstance(self.topology, NodeTopology) or self._zone_change is NodeChange.NOTHING:
            return None
        allocatable = self.node.allocatable if self.node else ()
        return zone_report(self.topology, allocatable, _empty.of)

    def _update_zones(self) -> None:
        """Subtracts the pods that the zone report does not count."""
        report = self._allocator.properties.zones
        if self._new_report and not self._outdated:
            report = self._zone_report()
        if report is None:
            self._allocator.update_report(None, None)
            return
        pods = [self._pods[uid] for uid in self._allocator.assigned_pods if uid in self._pods]
        left = remaining(report, self._report_freshness, pods, self._allocator.properties)
        self._allocator.update_report(report, left, self._reserved_uids())

    def lack(self, needs: Needs) -> Refusal | None:
        """Which object or agent such a pod lacks here, whether the node is locked or not; None if
        it lacks none."""
        if self.node is None:
            return Refusal(Reason.NODE_UNKNOWN, detail="the node is not known")
        if Needs.CPUS in needs and not isinstance(self.topology, NodeTopology):
            return _missing("NodeResourceTopology", self.topology, Reason.NO_REPORT)
        if Needs.DEVICES in needs and not isinstance(self.devices, DeviceObject):
            return _missing("Device", self.devices, Reason.NO_DEVICE_OBJECT)
        if Needs.LISTED in needs and isinstance(self.devices, Unreadable):
            return Refusal(Reason.NO_DEVICE_OBJECT, detail=self.devices.text)
        if self._agents_required and needs & (Needs.CPUS | Needs.DEVICES) and not self.agent_ready:
            if self._agents:
                return Refusal(Reason.AGENT_NOT_READY)
            return Refusal(Reason.NO_AGENT)
        return None


def _shared(options: TopologyOptions) -> TopologyOptions:
    """Returns one object for equal options of nodes of one model, which share a layout."""
    without_layout = msgspec.structs.replace(options, layout=None)
    return _options.by_source((id(options.layout), without_layout), lambda: options)


def _kubelet_cpus(topology: NodeTopology | Unreadable | None) -> dict[str, CpuSet]:
    """By pod uid, the CPUs that a kubelet with the static policy gave, as the node reports them.
    Empty if the report is invalid: the node properties contain the fault."""
    if not isinstance(topology, NodeTopology):
        return {}
    notes = topology.annotations
    try:
        if node_annotations.cpu_manager(notes).static_options() is None:
            return {}
        return {
            uid: cpus for uid, cpus in node_annotations.kubelet_allocated(notes).items() if cpus
        }
    except AnnotationError:
        return {}


def _refused_claims(topology: NodeTopology | Unreadable | None) -> dict[str, str]:
    """By pod uid, why the agent refuses the claim; empty if the report is invalid."""
    if not isinstance(topology, NodeTopology):
        return {}
    try:
        found = node_annotations.refused_claims(topology.annotations)
    except AnnotationError as error:
        log.warning("node %s: %s", topology.name, error)
        return {}
    return {each.uid: bounds.reason(each.reason) or "no reason" for each in found}


def _missing(kind: str, found: Unreadable | object | None, reason: Reason) -> Refusal:
    text = found.text if isinstance(found, Unreadable) else f"it has no {kind}"
    return Refusal(reason, detail=text)
