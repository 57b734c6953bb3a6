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
from collections.abc import Callable, Collection, Container, Mapping

import msgspec

from agent.allocate.kubelet.static_policy import RefusalReason
from agent.allocate.node_allocation import PodAllocation, TopologyOptions
from agent.allocate.node_allocator.assigned_pods import AssignedPod
from agent.allocate.node_allocator.part import Priced
from agent.allocate.node_allocator.properties import NodeProperties
from agent.allocate.nrt.filter import filter as by_zones
from agent.allocate.nrt.filter import preferred_misfit, restricts
from agent.allocate.nrt.node import Assumed, ZonedNode, ZoneReport, with_freed, without
from agent.allocate.nrt.score import score
from agent.allocate.refusal import Reason, Refusal
from agent.allocate.steps import Steps
from agent.model.pod.numa_request import NumaRequest
from agent.model.pod_request import PodRequest, Reads


class ZoneAllocator:
    """The zones of one node. Without a report every pod passes. Not thread-safe."""

    def __init__(self, properties: NodeProperties) -> None:
        self.properties = properties
        self._report = report = properties.zones
        self._reported = report.reported if report else None
        self._since: dict[str, Assumed] = {}
        self._left: ZonedNode | None = None
        self._whole_cores = properties.whole_cores
        self.checks_all = report is not None or self._whole_cores is not None
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
        self._reported, self._left = left, None
        self.checks_all = self._report is not None or self._whole_cores is not None
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
            return answer if isinstance(answer, Refusal) else Priced(None, answer)
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
        other._left, other._kubelet_cpus = None, self._kubelet_cpus.copy()
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
        report, left = self._report, self._left_for("")
        zones = None if report is None else (report.reported, report.empty, left)
        return zones, self._taken if self._whole_cores is not None else None

    def place(self, uid: str, allocation: PodAllocation | None, taken: Mapping[str, int]) -> None:
        """Subtracts a pod until the node's report counts it; `taken`: see `assumed_of`."""
        if self._report is None:
            return
        if assumed := assumed_of(allocation, taken, self.properties.cpus):
            self._since[uid] = assumed
        self._left = None

    def leave(self, uid: str) -> None:
        """No longer subtracts a pod, unless the node's report counts it."""
        if self._since.pop(uid, None) is not None:
            self._left = None

    def _alone(self, pod_request: PodRequest) -> bool:
        """Whether an offer to the pod has no CPUs or devices: neither the pod nor the labels of the
        node ask for them."""
        return pod_request.reads(self.properties) is Reads.ZONES

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
    allocation: PodAllocation | None, taken: Mapping[str, int], cpus: TopologyOptions | None
) -> Assumed | None:
    """The pod's own CPUs and amounts by its allocation; a pod on a shared pool takes no CPU.
    `taken`: the amounts that the kubelet takes for the pod, from any NUMA node if the allocation
    names none. A static kubelet follows no allocation."""
    zones = _zones_of(allocation, cpus) if allocation is not None else {}
    if cpus and cpus.kubelet_static:
        owned: Counter[str] = Counter()
        for amounts in zones.values():
            owned.update(amounts)
        zones, taken = {}, {**owned, **taken}
    named = {name for amounts in zones.values() for name in amounts}
    anywhere = {name: amount for name, amount in taken.items() if name not in named}
    return Assumed(zones, anywhere) if zones or anywhere else None


def _zones_of(allocation: PodAllocation, cpus: TopologyOptions | None) -> dict[int, dict[str, int]]:
    zones: dict[int, dict[str, int]] = {}
    for area in cpus.layout.nodes if cpus and cpus.layout else ():
        if own := (area.cpus & allocation.cpus.mask).bit_count():
            zones[area.id] = {"cpu": 1000 * own}
    for node, amounts in allocation.amounts.items():
        there = {name: amount for name, amount in amounts.items() if name != "cpu"}
        zones[node] = {**zones.get(node, {}), **there}
    return zones
