"""Whether a pod fits on the NUMA nodes of a node, and if not, the reason as data
(scheduler-plugins: pkg/noderesourcetopology/filter.go, Filter).

Memory and huge pages are not compared where the report says that the kubelet takes them from any
NUMA node: its memory manager policy is None.

Under `single-numa-node` the kubelet rejects a container that does not fit on the NUMA node of an
init container, whose CPUs and devices it has to reuse. The plugin passes it.

Under `restricted` the plugin passes every pod. But the kubelet admits a container, or a pod, only
on a set of NUMA nodes that each of its resources prefers: a set of as few NUMA nodes as the
resource would need on an empty machine (kubelet: pkg/kubelet/cm, topologymanager/policy.go,
mergePermutation, cpumanager/policy_static.go, generateCPUTopologyHints,
memorymanager/policy_static.go, calculateHints, and devicemanager/topology_hints.go,
generateDeviceTopologyHints). This is checked for the resources for which the kubelet gives
hints."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from math import comb
from typing import Final, TypeAlias

import msgspec

from agent.allocate.nrt.node import ZonedNode
from agent.allocate.numa.hint import fewest_nodes, ids, of_nodes, subsets
from agent.allocate.refusal import Reason, Refusal
from agent.allocate.steps import UNCOUNTED, Steps
from agent.model.cpu.policies import NumaPolicy, TopologyManagerScope
from agent.model.pod.numa_request import NumaRequest, PartKind, PodPart, of_memory

_Available: TypeAlias = Mapping[str, Mapping[int, int]]


class ZoneFit(msgspec.Struct, frozen=True):
    """The NUMA nodes of a pod that fits."""

    zones: tuple[int | None, ...] = ()
    """The NUMA node of each part of the pod (`parts_of`), in order, None for a part that requests
    nothing of a NUMA node; empty if NUMA nodes do not matter."""


PASSED = ZoneFit()


def parts_of(node: ZonedNode, pod: NumaRequest) -> tuple[PodPart, ...]:
    """The parts of the pod that each need one NUMA node."""
    return (pod.whole,) if node.scope is TopologyManagerScope.POD else pod.parts


def filter(node: ZonedNode | None, pod: NumaRequest, steps: Steps = UNCOUNTED) -> ZoneFit | Refusal:
    """Whether the pod fits the node.

    `node`: None without a NodeResourceTopology; then every pod passes.

    Raises TooComplexError."""
    if node is None or pod.indifferent:
        return PASSED
    steps.take(len(pod.parts) * (1 + len(node.zones)))
    if node.policy is NumaPolicy.SINGLE_NUMA_NODE:
        fit = _aligned(node, pod)
        if isinstance(fit, Refusal) or not restricts(node, pod):
            return fit
        return preferred_misfit(node, pod, steps) or fit
    if node.policy is NumaPolicy.RESTRICTED:
        return _together(node, pod.whole) or preferred_misfit(node, pod, steps) or PASSED
    return PASSED


def _aligned(node: ZonedNode, pod: NumaRequest) -> ZoneFit | Refusal:
    """Puts each part on the lowest NUMA node that holds it. A plain init container releases its
    resources; a sidecar keeps them while all later containers run."""
    available: dict[str, dict[int, int]] = node.available
    zones = []
    last = len(parts := parts_of(node, pod)) - 1
    for place, part in enumerate(parts):
        zone = _zone(node, available, part)
        if isinstance(zone, Refusal):
            return zone
        zones.append(zone)
        if zone is not None and part.kind is not PartKind.INIT and place < last:
            if available is node.available:
                available = {name: dict(there) for name, there in available.items()}
            for each in part.requested:
                there = available.get(each.resource)
                if each.held and there is not None:
                    there[zone] -= each.amount
    return ZoneFit(tuple(zones))


def _zone(node: ZonedNode, available: _Available, part: PodPart) -> int | Refusal | None:
    zones = node.zones
    for each in part.requested:
        resource = each.resource
        there = available.get(resource)
        if resource not in node.resources:
            return _misfit(Reason.NOT_ON_NODE, part, resource, each.amount)
        if not node.aligns(resource):
            continue
        if there is None:
            if each.of_machine:
                continue
            return _misfit(Reason.NOT_IN_ZONES, part, resource, each.amount)
        least = each.amount if each.held else 0
        fitting = tuple([zone for zone in zones if there.get(zone, -1) >= least])
        if not fitting:
            most = max((there[zone] for zone in zones if zone in there), default=None)
            return _misfit(Reason.NO_ZONE_HOLDS, part, resource, each.amount, most, zones)
        zones = fitting
    return zones[0] if zones else None


def _together(node: ZonedNode, whole: PodPart) -> Refusal | None:
    """Under `restricted` a pod may use several NUMA nodes, but not more than all nodes have."""
    for each in whole.requested:
        total = node.together.get(each.resource)
        aligned = each.held and node.aligns(each.resource)
        if aligned and total is not None and total < each.amount:
            return _misfit(
                Reason.ZONES_TOGETHER, whole, each.resource, each.amount, total, node.zones
            )
    return None


def _misfit(
    reason: Reason,
    part: PodPart,
    resource: str,
    requested: int,
    available: int | None = None,
    nodes: tuple[int, ...] = (),
    count: int | None = None,
) -> Refusal:
    """Why this part of the pod does not fit.

    `available`: by the reason, the most that one of `nodes` has left, the sum of all, or the most
        that `count` of them have together; None if no node reports the resource.
    `count`: the number of NUMA nodes that the kubelet prefers for the part."""
    detail = "" if count is None else f"{count} NUMA node{'s' if count > 1 else ''}"
    return Refusal(
        reason, resource, requested, available, nodes, detail, kind=part.kind, name=part.name
    )


def restricts(node: ZonedNode, pod: NumaRequest) -> bool:
    """Whether the kubelet may reject the pod although NUMA nodes have enough: under `restricted`,
    and under `single-numa-node` because of an init container."""
    if not any(part.hinted(node.hinted) for part in pod.parts):
        return False
    if node.policy is NumaPolicy.SINGLE_NUMA_NODE:
        return any(part.kind is PartKind.INIT and part.hinted(node.hinted) for part in pod.parts)
    return node.policy is NumaPolicy.RESTRICTED


def preferred_misfit(node: ZonedNode, pod: NumaRequest, steps: Steps = UNCOUNTED) -> Refusal | None:
    """Why no set of NUMA nodes that the kubelet prefers has enough; None if one has. Each part
    takes the set that the kubelet would choose, the one with the lowest ids. The kubelet reuses the
    CPUs and devices of an init container for the next containers: these have to use the same NUMA
    nodes until they have as many. Raises TooComplexError."""
    available = {name: dict(node.available.get(name, {})) for name in node.hinted}
    reusable: dict[str, tuple[int, int]] = {}
    for part in parts_of(node, pod):
        requested = part.hinted(node.hinted)
        mask = _preferred_mask(node, available, part, requested, reusable, steps)
        if isinstance(mask, Refusal):
            return mask
        for name, amount in requested.items():
            before, left = reusable.get(name, _NONE)
            if part.kind is not PartKind.INIT:
                _take(available[name], node.hinted[name], mask, amount)
                reusable[name] = (before, left - amount) if left > amount else _NONE
            elif not of_memory(name):
                reusable[name] = before | mask, max(left, amount)
    return None


_NONE: Final = (0, 0)
_MAX_STEPS: Final = 40_000
_USUAL_NODES: Final = 8


def _preferred_mask(
    node: ZonedNode,
    available: _Available,
    part: PodPart,
    requested: Mapping[str, int],
    reusable: Mapping[str, tuple[int, int]],
    steps: Steps,
) -> int | Refusal:
    """The NUMA nodes that the kubelet prefers for the part; 0 for a part without hints, and if a
    machine with very many NUMA nodes has too many sets of that size to look at."""
    sizes = _sizes(node, requested)
    count = max(sizes.values(), default=0)
    if not count or comb(len(node.zones), count) * len(node.zones) > _MAX_STEPS:
        return 0
    for name, size in sizes.items():
        if size != count:
            cause = Reason.SIZES_DIFFER
            return _misfit(cause, part, name, requested[name], count=size)
    steps.take(comb(len(node.zones), count) * (1 + len(requested)) * (1 + count // 4))
    masks = [of_nodes(some) for some in combinations(node.zones, count)]
    for name, amount in requested.items():
        there = available[name]
        left = {mask: sum(there.get(zone, 0) for zone in ids(mask)) for mask in masks}
        needed, _ = reusable.get(name, _NONE)
        allowed = {mask: amounts for mask, amounts in left.items() if not needed & ~mask}
        masks = [mask for mask, amounts in allowed.items() if amounts >= amount]
        if not masks:
            cause, most = Reason.NO_PREFERRED_HOLDS, max(allowed.values(), default=0)
            return _misfit(cause, part, name, amount, most, node.zones, count)
    return min(masks)


def _sizes(node: ZonedNode, requested: Mapping[str, int]) -> dict[str, int]:
    """By resource, the fewest NUMA nodes that have the amount while the machine is empty; memory
    and huge pages are counted together, on machines of usual size."""
    sizes = {
        name: min(fewest_nodes((amount, tuple(node.hinted[name].items()))), len(node.zones))
        for name, amount in requested.items()
    }
    memory = {name: amount for name, amount in requested.items() if of_memory(name)}
    if len(memory) > 1 and len(node.zones) <= _USUAL_NODES:
        least = max(sizes[name] for name in memory)
        enough = (
            mask.bit_count()
            for mask in subsets(node.zones, least)
            if all(
                sum(node.hinted[name].get(zone, 0) for zone in ids(mask)) >= amount
                for name, amount in memory.items()
            )
        )
        sizes |= dict.fromkeys(memory, next(enough, len(node.zones)))
    return sizes


def _take(left: dict[int, int], totals: Mapping[int, int], mask: int, amount: int) -> None:
    """Takes an amount from a set of NUMA nodes as the kubelet takes CPUs: whole NUMA nodes first,
    then from those with the least."""
    for zone in ids(mask):
        if 0 < (there := left.get(zone, 0)) == totals.get(zone) and there <= amount:
            amount -= there
            left[zone] = 0
    for zone in sorted(set(ids(mask)) & left.keys(), key=lambda zone: (left[zone], zone)):
        part = min(left[zone], amount)
        left[zone] -= part
        amount -= part
