"""NUMA nodes by the node's report, and the pods assigned since. Kubernetes' rules place pods
without CPUs or devices from Topolet (see `allocate.nrt`), and the kubelet's policies restricted,
single-numa-node and full-pcpus-only admit or reject all pods. The node's agent reports the free
amounts some time after a pod was assigned: until then its amounts are subtracted. A plain pod may
take them from any NUMA node, so they are subtracted from each one; which one the kubelet chooses
depends on ended pods and on the order of arrival. The allocation of any other pod names its NUMA
nodes, except under the CPU manager policy static, where the kubelet chooses them too."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterator, Mapping

import msgspec

from agent.allocate.devices.allocation import Allocation
from agent.allocate.kubelet.static_policy import RefusalReason
from agent.allocate.node_allocation import PodAllocation, TopologyOptions
from agent.allocate.node_allocator.assigned_pods import AssignedPod
from agent.allocate.node_allocator.node_states import digest
from agent.allocate.node_allocator.part import Priced
from agent.allocate.node_allocator.properties import NodeProperties
from agent.allocate.nrt.device_locality import (
    far_from_devices,
    has_plugin_devices,
    near_milli_of,
    rate,
)
from agent.allocate.nrt.filter import filter as by_zones
from agent.allocate.nrt.filter import preferred_misfit, restricts
from agent.allocate.nrt.node import Assumed, ZonedNode, ZoneReport, with_freed, without
from agent.allocate.nrt.score import score
from agent.allocate.numa.hint import fewest_nodes, of_nodes, subsets
from agent.allocate.refusal import Reason, Refusal
from agent.allocate.steps import Steps, TooComplexError
from agent.model.cpu.policies import DeviceLocality
from agent.model.devices.device_allocation import DeviceAmounts
from agent.model.pod.numa_request import NumaRequest, foreign
from agent.model.pod_request import PodRequest, Reads


class ZoneAllocator:
    """The zones of one node. Without a report every pod passes. Not thread-safe."""

    def __init__(self, properties: NodeProperties) -> None:
        self.properties = properties
        self._report = report = properties.zones
        self._reported = report.reported if report else None
        self._since: dict[str, Assumed] = {}
        self._left: ZonedNode | None = None
        self._zones_state: bytes | None = None
        self._whole_cores = properties.whole_cores
        self.checks_all = self._kubelet_rejects()
        """Whether the kubelet may reject pods that have CPUs or devices from Topolet."""
        self._kubelet_cpus: Counter[str] = Counter()
        self._taken = 0

    def with_properties(
        self, properties: NodeProperties, uncounted: Container[str]
    ) -> ZoneAllocator:
        """Returns a copy with a new report, which counts the same pods except those of
        `uncounted` (uids)."""
        other = ZoneAllocator(properties)
        other._kubelet_cpus, other._taken = self._kubelet_cpus.copy(), self._taken
        if properties.zones is not None:
            other._since = {uid: each for uid, each in self._since.items() if uid in uncounted}
        return other

    def update_report(
        self, properties: NodeProperties, left: ZonedNode | None, uncounted: Container[str] = ()
    ) -> None:
        """`left`: the amounts that all pods but those of `uncounted` leave free; None: unknown."""
        self.properties, self._report = properties, properties.zones
        self._reported, self._left, self._zones_state = left, None, None
        self.checks_all = self._kubelet_rejects()
        self._since = {uid: each for uid, each in self._since.items() if uid in uncounted}

    def admits(self, pod_request: PodRequest, steps: Steps) -> Refusal | None:
        if (refusal := self._split_cores(pod_request)) is not None:
            return refusal
        if pod_request.needs or self.properties.aligns_all or self._alone(pod_request):
            return None
        # Only the node's labels give this pod CPUs and NUMA nodes.
        answer = self._by_zones(pod_request, steps)
        return answer if isinstance(answer, Refusal) else None

    def offer(self, pod_request: PodRequest, steps: Steps) -> Priced[None] | Refusal:
        """It does not matter who chooses the pod's CPUs and devices: the kubelet rejects the pod
        under its policy restricted, or because of an init container under single-numa-node."""
        if self._alone(pod_request):
            answer = self._by_zones(pod_request, steps)
            if isinstance(answer, Refusal):
                return answer
            return self.by_locality(pod_request, steps) or Priced(None, answer)
        return self._restricted(pod_request, steps) or Priced(None)

    def missing(self, pod_request: PodRequest, choice: None, steps: Steps) -> str:
        refusal = self._split_cores(pod_request) or self._restricted(pod_request, steps)
        return refusal.text if refusal else ""

    def record(self, pod: AssignedPod) -> None:
        if pod.kubelet_cpus:
            self._kubelet_cpus[pod.uid] = pod.kubelet_cpus
            self._taken += pod.kubelet_cpus

    def forget(self, pod: AssignedPod) -> None:
        self._taken -= self._kubelet_cpus.pop(pod.uid, 0)

    def without(self, pods: Collection[AssignedPod]) -> ZoneAllocator:
        """Their allocations become free; anything else that the node counts stays in its report."""
        other = copy.copy(self)
        other._left, other._zones_state = None, None
        other._kubelet_cpus = self._kubelet_cpus.copy()
        uids = {pod.uid for pod in pods}
        other._since = {uid: each for uid, each in self._since.items() if uid not in uids}
        cpus = self.properties.cpus
        counted = [_zones_of(pod.allocation, cpus) for pod in pods if pod.uid not in self._since]
        if self._report and self._reported and any(counted):
            other._reported = with_freed(self._reported, self._report.empty, counted)
        for pod in pods:
            other.forget(pod)
        return other

    def state(self, reads: Reads) -> tuple[object, ...]:
        report, taken = self._report, self._taken if self._whole_cores is not None else None
        whole = reads not in (Reads.ZONES, Reads.CPUS) or self.properties.zones_align
        if report is None or not whole:
            return None, taken
        if self._zones_state is None:  # several values of `reads` ask for it
            zones = report.reported, report.empty, self._left_for("")
            self._zones_state = digest(zones)
        return self._zones_state, taken

    def place(
        self, allocation: PodAllocation | None, devices: DeviceAmounts, pod_request: PodRequest
    ) -> None:
        """Subtracts a pod until the node's report counts it."""
        if self._report is None:
            return
        taken, pod = pod_request.taken, pod_request.numa_request
        if assumed := assumed_of(allocation, devices, taken, pod, self.properties):
            self._since[pod_request.uid] = assumed
        self._left = self._zones_state = None

    def leave(self, uid: str) -> None:
        """No longer subtracts a pod, unless the node's report counts it."""
        if self._since.pop(uid, None) is not None:
            self._left = self._zones_state = None

    def _alone(self, pod_request: PodRequest) -> bool:
        """Whether an offer to the pod has no CPUs or devices: neither the pod nor the labels of the
        node ask for them."""
        return pod_request.reads_zones(self.properties)

    def _by_zones(self, pod_request: PodRequest, steps: Steps) -> int | Refusal:
        """The score. A request for NUMA nodes may have no amount: then only the reported resources
        matter, not the free amounts."""
        left, report, pod = None, self._report, pod_request.numa_request
        if report is not None:
            left = self._left_for(pod_request.uid) if pod.whole.taken else report.reported
            if refusal := _lack(by_zones, report, left, pod, steps):
                return refusal
        scoring = self.properties.rules.zones
        return score(left, pod, scoring.type, scoring.weights, steps)

    def by_locality(self, pod_request: PodRequest, steps: Steps) -> Priced[None] | Refusal | None:
        """The price of a node for a pod with devices of plugins: a score of NEAR or more if the pod
        would be near to them, and 0 if this is not known. None for other pods, and for those whose
        own policy is `off`."""
        report, pod = self._report, pod_request.numa_request
        if not pod.devices or pod_request.device_locality is DeviceLocality.OFF:
            return None
        policy, left = self._locality_of(pod_request), self._left_for(pod_request.uid)
        unknown = Priced[None](None, 0)
        if policy is not DeviceLocality.REQUIRE:
            if report is None or left is None or policy is DeviceLocality.OFF:
                return unknown
            if not has_plugin_devices(left, pod):
                return unknown
            try:
                rating = rate(left, report.empty, pod, steps)
            except TooComplexError:
                return unknown
            return Priced(None, rating.score, rating.order)
        if report is None or not self.of_agent:
            return _unreported(_device_of(pod))
        if not has_plugin_devices(report.empty, pod):
            return Refusal(Reason.NOT_IN_ZONES, _device_of(pod))
        if left is None:
            return Refusal(Reason.STALE_REPORT)
        rating = rate(left, report.empty, pod, steps)
        if rating.refusal is not None:
            lasting = rate(report.empty, report.empty, pod, steps).refusal is not None
            return msgspec.structs.replace(rating.refusal, lasting=lasting)
        return Priced(None, rating.score, rating.order)

    def _kubelet_rejects(self) -> bool:
        report = self._report
        return (report is not None and report.declines) or self._whole_cores is not None

    @property
    def of_agent(self) -> bool:
        """Whether Topolet's agent has reported the zones."""
        return self._report is not None and self._report.reported.device_locality is not None

    def have(self, resource: str) -> bool:
        """Whether zones have the resource of a device plugin."""
        return self._report is not None and resource in self._report.reported.hinted

    def requires(self, pod_request: PodRequest) -> bool:
        """Whether the pod has to be near to its devices."""
        return self._locality_of(pod_request) is DeviceLocality.REQUIRE

    def _locality_of(self, pod_request: PodRequest) -> DeviceLocality | None:
        of_node = self._report.reported.device_locality if self._report is not None else None
        return pod_request.device_locality or of_node

    def far(self, pod_request: PodRequest, allocation: Allocation, steps: Steps) -> Refusal | None:
        """Why the pod, which shares CPUs, would run far from these devices; None if it would not,
        if its own policy is `off`, and, unless it requires to be near, if this is not known."""
        policy, report = self._locality_of(pod_request), self._report
        devices = self._numa_nodes_of(allocation)
        if pod_request.device_locality is DeviceLocality.OFF or not devices:
            return None
        if policy is DeviceLocality.OFF:
            return Refusal(Reason.NOT_NEAR, next(iter(devices)), detail="its agent's policy is off")
        required = policy is DeviceLocality.REQUIRE
        if report is None or not self.of_agent:
            return _unreported(next(iter(devices))) if required else None
        left = self._left_for(pod_request.uid)
        if left is None:
            return Refusal(Reason.STALE_REPORT) if required else None
        return far_from_devices(left, report.empty, pod_request.numa_request, devices, steps)

    def near_masks(self, allocation: Allocation) -> Iterator[int]:
        """The sets of NUMA nodes, by their masks, that could have these devices on an empty
        machine, none of more NUMA nodes than needed."""
        devices = self._numa_nodes_of(allocation)
        fewest = max((needed for _, needed in devices.values()), default=0)
        zones = self._report.empty.zones if self._report is not None else ()
        for mask in subsets(zones, fewest):
            if mask.bit_count() > fewest:
                return
            yield mask

    def _numa_nodes_of(self, allocation: Allocation) -> dict[str, tuple[int, int]]:
        """By type, the mask of the NUMA nodes of these devices, and how many NUMA nodes so many
        devices need on an empty machine; without devices whose NUMA node is not known."""
        inventory = self.properties.inventory
        devices: dict[str, tuple[int, int]] = {}
        for kind, chosen in allocation.devices.items():
            numa = inventory.fleets[kind].numa if inventory else {}
            minors = of_nodes(each.minor for each in chosen)
            mask = of_nodes(node for node, there in numa.items() if node >= 0 and there & minors)
            if mask:
                capacity = [(node, there.bit_count()) for node, there in numa.items() if node >= 0]
                devices[kind] = mask, fewest_nodes((len(chosen), capacity))
        return devices

    def _restricted(self, pod_request: PodRequest, steps: Steps) -> Refusal | None:
        report, pod = self._report, pod_request.numa_request
        if report is None or not restricts(report.reported, pod):
            return None
        return _lack(preferred_misfit, report, self._left_for(pod_request.uid), pod, steps)

    def _split_cores(self, pod_request: PodRequest) -> Refusal | None:
        """Why a kubelet with full-pcpus-only would reject the pod; None if it would not."""
        cores, parts = self._whole_cores, pod_request.numa_request.parts
        if cores is None:
            return None
        refused = cores.refused(parts, self._taken - self._kubelet_cpus[pod_request.uid])
        if refused is None:
            return None
        part, why = refused
        lacking = why.reason is RefusalReason.NOT_ENOUGH_CORES
        threads = f"full-pcpus-only with {why.threads} threads a core"
        return Refusal(
            Reason.BIND_POLICY_UNMET if lacking else Reason.SMT_ALIGNMENT,
            "cpu",
            part.exclusive_milli,
            1000 * why.available if lacking else None,
            detail=f"{part.kind} {part.name}, kubelet: {threads}",
            lasting=cores.refused(parts) is not None,
        )

    def _left_for(self, uid: str) -> ZonedNode | None:
        """The amounts that all pods but this one leave free; None: unknown."""
        reported = self._reported
        if reported is None or not self._since:
            return reported
        if uid in self._since:
            return without(reported, [each for key, each in self._since.items() if key != uid])
        if self._left is None:
            self._left = without(reported, self._since.values())
        return self._left


def _device_of(pod: NumaRequest) -> str:
    return next(filter(foreign, pod.whole.taken))


def _unreported(resource: str) -> Refusal:
    detail = "no report of a current Topolet agent lists them"
    return Refusal(Reason.NOT_NEAR, resource, detail=detail)


def _lack(
    check: Callable[[ZonedNode, NumaRequest, Steps], object],
    report: ZoneReport,
    left: ZonedNode | None,
    pod: NumaRequest,
    steps: Steps,
) -> Refusal | None:
    """The refusal of `check`, or that the amounts are unknown: `left` None."""
    found = check(left or report.empty, pod, steps)
    if isinstance(found, Refusal):
        lasting = left is None or isinstance(check(report.empty, pod, steps), Refusal)
        return msgspec.structs.replace(found, lasting=lasting)
    if left is None and report.declines:
        return Refusal(Reason.STALE_REPORT)
    return None


def assumed_of(
    allocation: PodAllocation | None,
    devices: DeviceAmounts,
    taken: Mapping[str, int],
    pod: NumaRequest,
    properties: NodeProperties,
) -> Assumed | None:
    """The pod's own CPUs and amounts by its allocation; a pod on a shared pool takes no CPU.
    A static kubelet follows no allocation.

    `devices`: a scheduler has allocated these amounts to the pod.
    `taken`: the kubelet takes these amounts for the pod, from any NUMA node if the allocation names
        none."""
    cpus, inventory = properties.cpus, properties.inventory
    static = cpus is not None and cpus.kubelet_static
    zones = _zones_of(allocation, cpus) if allocation is not None else {}
    if static:
        owned: Counter[str] = Counter()
        for amounts in zones.values():
            owned.update(amounts)
        zones, taken = {}, {**owned, **taken}
    named = {name for amounts in zones.values() for name in amounts}
    anywhere = {name: amount for name, amount in taken.items() if name not in named}
    counted = "cpu" in anywhere or (allocation is not None and allocation.cpus)
    near_milli = 0 if counted else near_milli_of(pod, static=static)
    if not zones and not anywhere:
        return None
    fleets = inventory.fleets if inventory else {}
    near_nodes = of_nodes(
        node
        for kind, minor in devices
        if kind in fleets and minor in fleets[kind].devices
        for node, there in fleets[kind].numa.items()
        if node >= 0 and there >> minor & 1
    )
    return Assumed(zones, anywhere, near_milli, near_nodes)


def _zones_of(allocation: PodAllocation, cpus: TopologyOptions | None) -> dict[int, dict[str, int]]:
    zones: dict[int, dict[str, int]] = {}
    for area in cpus.layout.nodes if cpus and cpus.layout else ():
        if own := (area.cpus & allocation.cpus.mask).bit_count():
            zones[area.id] = {"cpu": 1000 * own}
    for node, amounts in allocation.amounts.items():
        there = {name: amount for name, amount in amounts.items() if name != "cpu"}
        zones[node] = {**zones.get(node, {}), **there}
    return zones
