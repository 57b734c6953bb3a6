"""What a cluster loses to fragmentation: free CPUs and GPUs that the pods of the cluster can't use,
what rebinds would gain, and how many more pods of one kind fit; and a table of the nodes for the
scheduler's page, with the free amounts of each and what it loses.

- Free CPUs on broken cores: another CPU of the core has an owner, so no pod can get the whole core.
- Free CPUs on small rests of NUMA nodes: the expected number of free CPUs of a NUMA node that a pod
  can't use because it owns more CPUs than are free there. The expectation is over the pods of the
  cluster that own CPUs and fit into the empty NUMA node (the measure of Weng et al., USENIX ATC
  2023, for GPUs, applied to NUMA nodes).
- GPUs lost to shares, and GPUs without CPU or memory: see `allocate.placement.residual`.

To fill the table for 15,000 nodes takes seconds of CPU time. So each request of a viewer reads only
some nodes. Once the table is full, only the nodes that changed are read again. The cluster's lock
is held for about a millisecond at a time and is free for three in between, so that filters are not
delayed."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from agent.allocate.node_allocator.allocator import NodeAllocator
from agent.allocate.placement.demand import NodeCapacity
from agent.allocate.placement.residual import CELL, Residual, residual
from agent.allocate.rebind.planner import NoPlan, placed_node, plan
from agent.allocate.refusal import Refusal
from agent.model.pod.apiobjects import ApiPod
from agent.model.pod_request import (
    GPU_MILLI,
    Needs,
    PodKind,
    PodRequest,
    PodRequestError,
    kind_of_requests,
)
from agent.model.rebind_resource import StatusMeasures
from agent.scheduler.rebind.progress import fixed_pods, requests_of, status_measures
from agent.scheduler.state.cluster import SchedulerCache
from agent.scheduler.state.node_info import NodeInfo
from agent.view.fragmentation import ClusterFragmentation, NodeFragmentation, RebindGain

DECIMALS: Final = 3
"""Decimals of CPUs and GPUs in sums."""
SLICE_SECONDS: Final = 0.001
"""The time for which the cluster's lock is held without a pause."""
PAUSE_SECONDS: Final = 0.003
"""The time between two slices, in which the lock is free."""
STEP_SECONDS: Final = 0.5
"""The longest time of one `step`."""
DEMAND_SECONDS: Final = 300.0
"""The time after which the pods of the cluster are counted again."""


class PodDemand(msgspec.Struct, frozen=True):
    """What the pods of the cluster request."""

    owned: Mapping[int, int]
    """The number of pods by the number of CPUs that they own."""
    placement: Residual
    """The value of remainders of GPUs, and the stranded GPUs, for these pods."""


class NodeRow(msgspec.Struct, frozen=True, gc=False):
    """`state`: why the node takes no pods that need CPUs, "" if it does. CPUs, cores and NUMA nodes
    are free if they have no owner; a core only if all its threads are free. Lost CPUs are free CPUs
    on broken cores, and on NUMA nodes with too few free CPUs; lost GPUs are free GPUs that are
    expected to stay idle (see `view.fragmentation`)."""

    name: str
    state: str = ""
    model: str = ""
    pods: int = 0
    cpus: int = 0
    free_cpus: int = 0
    cores: int = 0
    free_cores: int = 0
    numa_nodes: int = 0
    free_numa_nodes: int = 0
    gpus: int = 0
    free_gpus: float = 0.0
    cpus_on_broken_cores: int = 0
    cpus_on_small_rests: float = 0.0
    lost_cpus: float = 0.0
    lost_gpus: float = 0.0


class NodeTable:
    """The rows of all nodes, which are read little by little. Safe for many threads."""

    def __init__(
        self, cluster: SchedulerCache, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._stepping = threading.Lock()
        self._demand: PodDemand | None = None
        self._demand_at = 0.0
        self._count = _DemandCount()
        self._counting: deque[str] = deque()
        self._reading: deque[str] = deque()
        self._serial = 0
        self._rows: dict[str, NodeRow] = {}
        self.revision = 0
        """It grows with each change of the rows."""

    def rows(self) -> list[NodeRow]:
        return list(self._rows.values())

    @property
    def pending(self) -> int:
        """The number of nodes that are not read yet."""
        return len(self._counting) + len(self._reading)

    def step(self, seconds: float = STEP_SECONDS) -> None:
        """Reads nodes for about `seconds`. Returns at once if another thread is in `step`."""
        if not self._stepping.acquire(blocking=False):
            return
        try:
            self._begin()
            until = time.perf_counter() + seconds
            while self.pending and time.perf_counter() < until:
                self._read_some()
                if self._demand is None and not self._counting:
                    self._demand = self._count.demand()
                    self._count = _DemandCount()
                if self.pending:
                    time.sleep(PAUSE_SECONDS)
        finally:
            self._stepping.release()

    def _begin(self) -> None:
        """Queues the nodes that changed since the last step. If the demand is older than
        DEMAND_SECONDS, queues all nodes, to count the demand and then to read them again."""
        now = self._clock()
        stale = self._demand is not None and now - self._demand_at > DEMAND_SECONDS
        changes = self._cluster.placement_changed_since(self._serial)
        if not self._serial or stale or changes.names is None:
            names = [each.name for each in self._cluster.nodes()]
            for gone in self._rows.keys() - set(names):
                del self._rows[gone]
                self.revision += 1
            self._reading = deque(names)
            self._counting, self._count = deque(names), _DemandCount()
            self._demand, self._demand_at = None, now
        else:
            waiting = set(self._reading)
            self._reading.extend(sorted(changes.names - waiting))
        self._serial = changes.serial

    def _read_some(self) -> None:
        """Counts or reads nodes for SLICE_SECONDS. No node is read before all are counted."""
        with self._cluster.lock:
            until = time.perf_counter() + SLICE_SECONDS
            while time.perf_counter() < until:
                if self._counting:
                    name = self._counting.popleft()
                    if (node := self._cluster.node(name)) is not None:
                        self._count.add(node)
                elif self._demand is None or not self._reading:
                    return
                else:
                    self._read(self._reading.popleft(), self._demand)

    def _read(self, name: str, demand: PodDemand) -> None:
        node = self._cluster.node(name)
        row = None if node is None else _row(node, demand)
        if row == self._rows.get(name):
            return
        self.revision += 1
        if row is None:
            del self._rows[name]
        else:
            self._rows[name] = row


class _DemandCount:
    """Counts the pods of the nodes, one node after the other."""

    def __init__(self) -> None:
        self._owned: Counter[int] = Counter()
        self._kinds: Counter[PodKind] = Counter()
        self._capacities: list[NodeCapacity] = []

    def add(self, node: NodeInfo) -> None:
        self._capacities.append(node.capacity)
        for each in node.allocator.assigned_pods.values():
            if each.reservation:
                continue
            self._kinds[kind_of_requests(each.requests)] += 1
            if cpus := len(each.allocation.cpus):
                self._owned[cpus] += 1

    def demand(self) -> PodDemand:
        return PodDemand(self._owned, residual(self._kinds, self._capacities))


def _row(node: NodeInfo, demand: PodDemand) -> NodeRow:
    """The caller holds the cluster's lock."""
    ineligibility = node.ineligibility(Needs.CPUS)
    allocator = node.allocator
    lost = fragmentation_of(allocator, demand)
    assigned_pods = allocator.assigned_pods.values()
    found = NodeRow(
        node.name,
        ineligibility.text if ineligibility else "",
        allocator.properties.model,
        sum(not each.reservation for each in assigned_pods),
        gpus=node.capacity.gpus,
        free_gpus=lost.free_gpus,
        cpus_on_broken_cores=lost.cpus_on_broken_cores,
        cpus_on_small_rests=lost.cpus_on_small_numa_rests,
        lost_cpus=round(lost.lost[1], 1),
        lost_gpus=round(lost.lost[0], 2),
    )
    cpus = allocator.properties.cpus
    if cpus is None or (layout := cpus.layout) is None:
        return found
    owned = 0
    for each in assigned_pods:
        owned |= each.allocation.cpus.mask
    return msgspec.structs.replace(
        found,
        cpus=layout.cpus.bit_count(),
        free_cpus=lost.free_cpus,
        cores=layout.leads.bit_count(),
        free_cores=layout.whole(allocator.free_cpus()).bit_count(),
        numa_nodes=len(layout.nodes),
        free_numa_nodes=sum(not each.cpus & owned for each in layout.nodes),
    )


def fragmentation_of(allocator: NodeAllocator, demand: PodDemand) -> NodeFragmentation:
    """The fragmentation of a node, without the fields `rebind` and `fitting`. The caller holds the
    cluster's lock."""
    found = NodeFragmentation(allocator.properties.name)
    cpus = allocator.properties.cpus
    if cpus is not None and (layout := cpus.layout) is not None:
        free = allocator.free_cpus()
        whole = layout.expand(layout.whole(free)) & free
        found = msgspec.structs.replace(
            found,
            free_cpus=free.bit_count(),
            cpus_on_broken_cores=(free & ~whole).bit_count(),
            cpus_on_small_numa_rests=sum(
                _unusable(area.cpus.bit_count(), (area.cpus & free).bit_count(), demand.owned)
                for area in layout.nodes
            ),
        )
    if allocator.properties.inventory is None:
        return found
    amounts, value = allocator.free, demand.placement.value
    idle = sum(amounts.gpu_milli.values()) / GPU_MILLI
    shares = sum(
        max(0.0, left / GPU_MILLI - value[left // CELL])
        for left in amounts.gpu_milli.values()
        if 0 < left < GPU_MILLI
    )
    stranded = demand.placement.stranded(
        idle, max(0, amounts.cpu_milli), max(0, amounts.memory_bytes)
    )
    return msgspec.structs.replace(
        found,
        free_gpus=round(idle, DECIMALS),
        gpus_lost_to_shares=round(shares, DECIMALS),
        gpus_without_cpu_or_memory=round(stranded, DECIMALS),
    )


def _unusable(capacity: int, free: int, owned: Mapping[int, int]) -> float:
    """The expected number of free CPUs of a NUMA node that a pod can't use there, over the pods
    that own CPUs and fit into the empty NUMA node. `capacity`, `free`: of the NUMA node."""
    fitting = {size: pods for size, pods in owned.items() if size <= capacity}
    pods = sum(fitting.values())
    if not pods:
        return 0.0
    larger = sum(each for size, each in fitting.items() if size > free)
    return round(free * larger / pods, DECIMALS)


MAX_FITTING: Final = 10_000
"""The most pods that are counted on one node."""


def fragmentation(
    cluster: SchedulerCache,
    pods: Iterable[ApiPod],
    sample: ApiPod | None = None,
    progress: Callable[[str, float], None] = lambda node, part: None,
) -> ClusterFragmentation:
    """`pods`: all pods of the cluster. `sample`: how many such pods still fit is counted.
    `progress` is called with the name of a node and the part of the nodes that is done. Raises
    PodRequestError for a sample whose request can't be read."""
    with cluster.lock:
        nodes = sorted(cluster.nodes(), key=lambda each: each.name)
        request = None
        if sample is not None:
            request = cluster.pod_defaults.request(sample)
        live = [each for each in pods if not each.terminal]
        demand = _demand(live, nodes, cluster)
        by_node: dict[str, list[ApiPod]] = {}
        for pod in live:
            by_node.setdefault(pod.node, []).append(pod)
        found = []
        for number, node in enumerate(nodes):
            progress(node.name, number / len(nodes))
            fitting = None if request is None else _fitting(cluster, node, request)
            gain = _gain(node.allocator, by_node.get(node.name, ()))
            lost = fragmentation_of(node.allocator, demand)
            found.append(msgspec.structs.replace(lost, rebind=gain, fitting=fitting))
        return _total(nodes, found)


def _demand(
    pods: Iterable[ApiPod], nodes: Sequence[NodeInfo], cluster: SchedulerCache
) -> PodDemand:
    owned: Counter[int] = Counter()
    kinds: Counter[PodKind] = Counter()
    for pod in pods:
        try:
            request = cluster.pod_defaults.request(pod)
        except PodRequestError:
            continue
        kinds[request.kind] += 1
        if request.resources.owner:
            owned[-(-request.requests.get("cpu", 0) // 1000)] += 1
    return PodDemand(owned, residual(kinds, [each.capacity for each in nodes]))


def _gain(allocator: NodeAllocator, pods: Sequence[ApiPod]) -> RebindGain | None:
    node = placed_node(allocator, requests_of(pods), fixed_pods(pods, frozenset()))
    found = node if isinstance(node, NoPlan) else plan(node)
    if isinstance(found, NoPlan):
        return None
    before, after = status_measures(found.before), status_measures(found.after)
    return RebindGain(len(found.uids), before, after)


def _fitting(cluster: SchedulerCache, node: NodeInfo, request: PodRequest) -> int:
    """The number of pods with this request that the node has room for, one after the other."""
    if cluster.ineligibility(node.name, request) is not None:
        return 0
    allocator = node.allocator.without(())
    for number in range(MAX_FITTING):
        uid = f"{request.uid} {number}"
        resources = msgspec.structs.replace(request.resources, uid=uid)
        one = msgspec.structs.replace(request, resources=resources)
        if not _sums_suffice(allocator, one):
            return number
        offer = allocator.offer(one)
        if isinstance(offer, Refusal):
            return number
        allocator.commit(offer)
    return MAX_FITTING


def _sums_suffice(allocator: NodeAllocator, request: PodRequest) -> bool:
    """Compares the sums of the node as kube-scheduler does (NodeResourcesFit)."""
    allocatable = allocator.properties.allocatable
    if "pods" in allocatable and len(allocator.assigned_pods) >= allocatable["pods"]:
        return False
    return all(
        allocator.requested.get(name, 0) + amount <= allocatable[name]
        for name, amount in request.requests.items()
        if name in allocatable
    )


def _total(nodes: Sequence[NodeInfo], found: Sequence[NodeFragmentation]) -> ClusterFragmentation:
    gains = [each.rebind for each in found if each.rebind is not None]
    layouts = [each.cpus.layout for node in nodes if (each := node.allocator.properties).cpus]
    counts = [each.fitting for each in found if each.fitting is not None]

    def mended(measure: Callable[[StatusMeasures], int]) -> int:
        return sum(measure(each.before) - measure(each.after) for each in gains)

    def total(amount: Callable[[NodeFragmentation], float]) -> float:
        return round(sum(map(amount, found)), DECIMALS)

    return ClusterFragmentation(
        cpus=sum(layout.cpus.bit_count() for layout in layouts if layout is not None),
        gpus=sum(node.capacity.gpus for node in nodes),
        free_cpus=sum(each.free_cpus for each in found),
        cpus_on_broken_cores=sum(each.cpus_on_broken_cores for each in found),
        cpus_on_small_numa_rests=total(lambda each: each.cpus_on_small_numa_rests),
        free_gpus=total(lambda each: each.free_gpus),
        gpus_lost_to_shares=total(lambda each: each.gpus_lost_to_shares),
        gpus_without_cpu_or_memory=total(lambda each: each.gpus_without_cpu_or_memory),
        rebind_nodes=len(gains),
        rebind_pods=sum(each.pods for each in gains),
        cores_mended_by_rebind=mended(lambda each: each.broken_cores),
        numa_crossings_mended_by_rebind=mended(lambda each: each.numa_crossings),
        fitting=sum(counts) if counts else None,
        nodes=tuple(sorted(found, key=lambda each: (each.lost, each.node), reverse=True)),
    )
