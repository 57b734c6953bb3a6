"""What a cluster loses to fragmentation: free CPUs and GPUs that the pods of the cluster can't use,
what rebinds would gain, and how many more pods of one kind fit.

- Free CPUs on broken cores: another CPU of the core has an owner, so no pod can get the whole core.
- Free CPUs on small rests of NUMA nodes: the expected number of free CPUs of a NUMA node that a pod
  can't use because it owns more CPUs than are free there. The expectation is over the pods of the
  cluster that own CPUs and fit into the empty NUMA node (the measure of Weng et al., USENIX ATC
  2023, for GPUs, applied to NUMA nodes).
- GPUs lost to shares, and GPUs without CPU or memory: see `allocate.placement.residual`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from agent.allocate.node_allocator.allocator import NodeAllocator
from agent.allocate.placement.residual import residual
from agent.allocate.rebind.planner import NoPlan, placed_node, plan
from agent.allocate.refusal import Refusal
from agent.model.pod.apiobjects import ApiPod
from agent.model.pod_request import PodKind, PodRequest, PodRequestError, request_of
from agent.model.rebind_resource import StatusMeasures
from agent.scheduler.node_table import DECIMALS, PodDemand, fragmentation_of
from agent.scheduler.rebind.progress import (
    fixed_pods,
    requests_of,
    status_measures,
)
from agent.scheduler.state.cluster import SchedulerCache
from agent.scheduler.state.node_info import NodeInfo
from agent.view.fragmentation import ClusterFragmentation, NodeFragmentation, RebindGain

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
            request = request_of(sample, cluster.device_resources(), cluster.default_bind)
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
            request = request_of(pod, cluster.device_resources(), cluster.default_bind)
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
    if cluster.eligible(node.name, request) is not None:
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
    if "pods" in allocatable and len(allocator.holdings) >= allocatable["pods"]:
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
