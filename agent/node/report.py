"""The reports of a pass: objects of the cluster, log, metrics, Events, and PodResources."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from agent.allocate.cpu_claims import ClaimRefusal
from agent.allocate.locality import NearNodes
from agent.allocate.pools import Decision
from agent.allocate.reserved_cpus import KubeletCpus, cpus_outside_scheduling
from agent.allocate.visibility.pod_devices import UNDECIDED, DeviceVisibility
from agent.kubelet.configuration import KubeletConfiguration
from agent.model import bounds
from agent.model.cpu.cpuset import EMPTY, CpuSet
from agent.model.cpu.topology import Topology
from agent.model.devices.device_object import Device
from agent.model.devices.gpus import GpuReading
from agent.model.devices.holding import GpuUse, gpu_users
from agent.model.nrt import resource_topology
from agent.model.nrt.node_annotations import (
    NearRequests,
    NodeConfiguration,
    PodCpuAlloc,
    RefusedClaim,
)
from agent.model.nrt.resource_topology import OwnerReference
from agent.model.pod.annotations import RESOURCE_STATUS, AnnotationError, resource_status
from agent.model.pod.apiobjects import ApiNode, ApiPod, Phase
from agent.model.pod.pods import Pod
from agent.model.pod.qos import label_faults
from agent.model.snapshot import PodWanted
from agent.node import change_log
from agent.node import node_resource_topology as report
from agent.node.audit import Append, OtherWriters, PassAudit
from agent.node.change_log import ChangeRecorder, DeviceFaults, NodeNotes, PodEvents
from agent.node.cluster_view import ClusterState
from agent.node.devices import DeviceState
from agent.node.kai import KaiPlacements
from agent.node.kubelet_view import PodResourcesState
from agent.node.node_configuration import rules
from agent.node.node_resource_topology import (
    Allocated,
    DeviceReport,
    Report,
    ReportedOffer,
    ReportValues,
    Reserved,
)
from agent.node.sources import Sources
from agent.node.violations import RefusedLimit, Shortfall, find_unallocated, unmet
from agent.telemetry.metrics import AgentMetrics

FollowUsage = Callable[[Collection[Pod], ClusterState, Topology, Decision, "GpuMoment"], None]
UpdatePodResources = Callable[
    [Iterable[Pod], Mapping[str, PodWanted], DeviceState, DeviceVisibility | None], None
]


class GpuMoment(NamedTuple):
    """The GPUs in one pass."""

    devices: tuple[Device, ...] = ()
    """With devices of other types."""
    readings: tuple[GpuReading, ...] = ()
    """The same object until the driver is read again."""
    users: tuple[GpuUse, ...] = ()


NO_GPUS: Final = GpuMoment()


class ReportInput(msgspec.Struct, frozen=True):
    """The input of the cluster's objects."""

    topology: Topology
    decision: Decision
    pods: tuple[Pod, ...]
    kubelet: KubeletCpus
    """The policy of the CPU manager and the CPUs that it assigned."""
    configuration: NodeConfiguration
    cluster: ClusterState = ClusterState()
    devices: DeviceReport = DeviceReport()
    resources: PodResourcesState = PodResourcesState()
    """Everything else that the kubelet gave to pods."""
    node_faults: tuple[str, ...] = ()
    """Why annotations and labels of the Node have no effect."""
    kubelet_configuration: KubeletConfiguration | None = None
    """The kubelet's configuration, None if it is unknown."""


class ClusterReporter:
    """Builds the objects again only when their input has changed.

    `offered`: returns the batch and mid resources.
    `waits`: no report before the state of the cluster is complete."""

    def __init__(
        self,
        node_name: str,
        deliver: Callable[[Report], object],
        offered: Callable[[], ReportedOffer] = ReportedOffer,
        *,
        waits: bool = False,
    ) -> None:
        self.node_name = node_name
        self._deliver = deliver
        self._offered = offered
        self._waits = waits
        self._reported: ReportValues | None = None
        self._moment: ReportInput | None = None

    def report(self, moment: ReportInput) -> bool:
        """Whether there was a new report to deliver. Raises what `deliver` raises."""
        cluster = moment.cluster
        if self._waits and not cluster.complete:
            return False
        offered = self._offered()
        if moment == self._moment and self._reported and offered == self._reported.offered:
            return False
        now = msgspec.structs.replace(report_values(self.node_name, moment), offered=offered)
        if new := now != self._reported:
            self._deliver(report.build(now))
        self._reported, self._moment = now, moment
        return new


class Reporter:
    """Reports a pass in log, metrics, Events, PodResources and the cluster's objects.

    `pod_events`: None if no Event is recorded.
    `correct`: gets the input of corrected PodResources.
    `group_of`: the cgroup of a process.
    `append`: adds records to the audit trail.
    `sources`: their problems are Events of the Node.
    `kai`: None if KAI gets no placements.
    `follow_usage`: gets the runtime's pods, the cluster, the machine and the decision; None if
        no use of CPU and memory is sampled.
    `disturbed`: returns by uid what disturbs a pod, in sentences.
    `unread`: returns annotations that can't be read, of those that decisions do not read."""

    def __init__(
        self,
        cluster: ClusterReporter,
        metrics: AgentMetrics,
        pod_events: PodEvents | None = None,
        correct: UpdatePodResources | None = None,
        group_of: Callable[[int], str | None] = lambda pid: None,
        append: Append = lambda records: None,
        sources: Sources | None = None,
        kai: KaiPlacements | None = None,
        follow_usage: FollowUsage | None = None,
        disturbed: Callable[[], Mapping[str, Sequence[str]]] = dict,
        unread: Callable[[], Iterable[ClaimRefusal]] = tuple,
    ) -> None:
        self.metrics = metrics
        self._kai = kai
        self._follow_usage = follow_usage
        self._disturbed = disturbed
        self._unread = unread
        self._others = OtherWriters(metrics)
        self.audit = PassAudit(append, self._others.changed)
        self.changes = ChangeRecorder(metrics)
        self._cluster = cluster
        self._pod_events = pod_events or PodEvents(None)
        self._correct = correct
        self._group_of = group_of
        self._sources = sources or Sources()
        self._readings: tuple[GpuReading, ...] = ()
        self._users: tuple[GpuUse, ...] = ()

    def report(
        self,
        moment: ReportInput,
        shortfalls: tuple[Shortfall, ...],
        devices: DeviceState,
        visibility: DeviceVisibility | None,
        listed: tuple[Pod, ...],
        refused: tuple[RefusedLimit, ...] = (),
    ) -> None:
        """Reports a pass. Nothing is reported to the cluster while the visibility is UNDECIDED.

        `listed`: the pods of the runtime, also excluded ones.

        Raises StoreError."""
        decision, pods = moment.decision, moment.pods
        unallocated = find_unallocated(pods, decision, moment.kubelet)
        self.changes.shortfalls(shortfalls)
        self.changes.unallocated(unallocated)
        self.changes.refused_limits(refused)
        self.changes.far_from_devices(decision.places, {pod.uid: pod.title for pod in pods})
        self._pod_events.record(
            shortfalls,
            (*_of_annotations(decision), *self._unread()),
            unallocated,
            {pod.uid for pod in pods if pod.containers},
            moment.cluster.pods,
            [
                (pod.uid, fault)
                for pod in pods
                for fault in label_faults(pod.labels, pod.kube_class)
            ],
            self._node_notes(moment, devices) if self._pod_events.recorded else None,
            refused,
            decision.places,
            self._disturbed(),
        )
        self._pod_events.owners(decision.owners, moment.cluster.pods)
        if self._correct is not None:
            self._correct(moment.pods, moment.decision.pods, devices, visibility)
        self.changes.export(moment.decision)
        if devices.readings is not self._readings:
            self._readings = devices.readings
            self._users = gpu_users(devices.readings, listed, self._group_of)
        self.metrics.devices.update(
            moment.devices.devices, devices.readings, self._users, devices.missing, devices.fault
        )
        if visibility is not UNDECIDED:
            self._cluster.report(moment)
        if self._follow_usage is not None:
            gpus = GpuMoment(moment.devices.devices, devices.readings, self._users)
            self._follow_usage(listed, moment.cluster, moment.topology, decision, gpus)
        if self._kai is not None:
            api_pods = moment.cluster.pods.values()
            self._kai.update(pods, api_pods, held_by_pod(moment), moment.topology)

    def failed(self, node: ApiNode | None, problem: str) -> None:
        """A pass failed for this reason.

        `node`: None if unknown."""
        if node is not None:
            faults = {change_log.AGENT_NOT_READY: problem}
            self._pod_events.failed(NodeNotes(self._cluster.node_name, node.uid, faults))

    def _node_notes(self, moment: ReportInput, devices: DeviceState) -> NodeNotes:
        node = moment.cluster.node
        of_devices = DeviceFaults(moment.devices.devices, devices.missing, devices.fault)
        faults = change_log.node_faults(
            moment.node_faults,
            self._sources.problems,
            self.changes.overlaps,
            of_devices,
            self._others.lasting(),
        )
        state = change_log.node_state(moment.topology, moment.kubelet_configuration)
        return NodeNotes(self._cluster.node_name, node.uid if node else "", faults, state)


def _of_annotations(decision: Decision) -> tuple[ClaimRefusal, ...]:
    """The refusals that are due to annotations: unmet CPU claims, and annotations that can't be
    read."""
    others = (refusal for refusal in decision.refusals if refusal.key not in ("", RESOURCE_STATUS))
    return (*unmet(decision), *others)


def _refused(pods: tuple[Pod, ...], decision: Decision) -> tuple[RefusedClaim, ...]:
    by_uid = {pod.uid: pod for pod in pods}
    return tuple(
        RefusedClaim(
            by_uid[each.uid].namespace,
            by_uid[each.uid].name,
            each.uid,
            each.claimed if len(each.claimed) <= bounds.REASON_CHARACTERS else "",
            each.reason,
        )
        for each in unmet(decision)
    )


def report_values(name: str, moment: ReportInput) -> ReportValues:
    decision, pods, kubelet = moment.decision, moment.pods, moment.kubelet
    cluster, resources = moment.cluster, moment.resources
    policy = "static" if kubelet.static else "none"
    uid = cluster.node.uid if cluster.node else ""
    return ReportValues(
        name,
        moment.topology,
        decision.pools,
        _allocs(decision, pods, kubelet),
        tuple(held_by_pod(moment).values()),
        _reserved(moment.configuration, resources),
        msgspec.structs.replace(moment.configuration, kubelet_policy=policy),
        moment.devices,
        resources.portions,
        OwnerReference(name, uid) if uid else None,
        _fingerprint(cluster.pods.values()) if uid else None,
        _refused(pods, decision),
        near_requests(decision.places.values()),
    )


def near_requests(places: Iterable[NearNodes]) -> tuple[NearRequests, ...]:
    """The CPU requests on the NUMA nodes of these places."""
    requests: dict[CpuSet, int] = {}
    for place in places:
        requests[place.nodes] = requests.get(place.nodes, 0) + place.cpu_milli
    return tuple(
        NearRequests(str(nodes), cpu_milli)
        for nodes, cpu_milli in sorted(requests.items(), key=lambda item: item[0].mask)
    )


def held_by_pod(moment: ReportInput) -> dict[str, Allocated]:
    """By pod uid, the resources that it holds: the CPUs that it owns, and its amounts by NUMA node,
    as assigned by the kubelet or else by the scheduler."""
    cpus: dict[str, CpuSet] = {owner.uid: owner.cpus for owner in moment.decision.owners}
    for uid, given in cpus_outside_scheduling(moment.pods, moment.kubelet).items():
        cpus[uid] = cpus.get(uid, EMPTY) | given
    amounts = {}
    for pod in moment.pods:
        of_kubelet = moment.resources.held.get(pod.uid, Allocated())
        if of_kubelet.cpus:
            cpus[pod.uid] = cpus.get(pod.uid, EMPTY) | of_kubelet.cpus
        if devices := of_kubelet.amounts or _amounts(pod):
            amounts[pod.uid] = devices
    return {
        uid: Allocated(cpus.get(uid, EMPTY), amounts.get(uid, {}))
        for uid in sorted(cpus.keys() | amounts.keys())
    }


def _amounts(pod: Pod) -> dict[int, dict[str, int]]:
    try:
        by_node = resource_status(pod.annotations).amounts()
    except AnnotationError:
        return {}  # reported as a refusal
    left = {
        node: {name: amount for name, amount in of_node.items() if name != "cpu"}
        for node, of_node in by_node.items()
    }
    return {node: of_node for node, of_node in left.items() if of_node}


def _reserved(configuration: NodeConfiguration, resources: PodResourcesState) -> Reserved:
    cpu_rules = rules(configuration)
    shared = EMPTY if cpu_rules.owners_on_reserved else cpu_rules.kubelet_reserved
    memory_bytes = configuration.reserved_memory_bytes or resources.reserved_memory_bytes
    return Reserved(cpu_rules.kept | shared, memory_bytes)


def _fingerprint(pods: Iterable[ApiPod]) -> str:
    """The fingerprint of the pods that a scheduler counts: all pods that are not pending
    (scheduler-plugins, pkg/noderesourcetopology/podprovider, IsPodRelevantDedicated)."""
    return resource_topology.fingerprint_of(
        (pod.namespace, pod.name) for pod in pods if pod.phase is not Phase.PENDING
    )


def _allocs(
    decision: Decision, pods: tuple[Pod, ...], kubelet: KubeletCpus
) -> tuple[PodCpuAlloc, ...]:
    """The CPUs that pods own (fine-grained CPU orchestration proposal, NodeResourceTopology CRD).
    CPUs that the kubelet or a DRA driver assigned are managed by the kubelet: schedulers find all
    others by the pods' annotations."""
    names = {pod.uid: (pod.namespace, pod.name) for pod in pods}
    kubelets = cpus_outside_scheduling(pods, kubelet)
    others = {
        owner.uid: owner.claimed - kubelets.get(owner.uid, EMPTY) for owner in decision.owners
    }
    return tuple(
        PodCpuAlloc(*names.get(uid, ("", "")), uid, str(cpus), managed)
        for uid in sorted(kubelets.keys() | others.keys())
        for cpus, managed in ((kubelets.get(uid), True), (others.get(uid), False))
        if cpus
    )
