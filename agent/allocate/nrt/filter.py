"""Whether the NUMA nodes of a node hold a pod (scheduler-plugins:
pkg/noderesourcetopology/filter.go, Filter)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from agent.allocate.nrt.misfit import Misfit, MisfitCause
from agent.allocate.nrt.node import ZonedNode
from agent.allocate.nrt.pod import PartKind, PodPart, ZonedPod
from agent.allocate.numa.scope import TopologyManagerScope
from agent.model.policies import NumaPolicy

Available: TypeAlias = Mapping[str, Mapping[int, int]]


class ZoneFit(msgspec.Struct, frozen=True):
    """`zones`: the NUMA node of each part of the pod (`parts_of`), in order; empty where NUMA nodes
    do not matter. None: the part requests nothing of a NUMA node."""

    zones: tuple[int | None, ...] = ()


PASSED = ZoneFit()


def parts_of(node: ZonedNode, pod: ZonedPod) -> tuple[PodPart, ...]:
    """What is put on one NUMA node each."""
    return (pod.whole,) if node.scope is TopologyManagerScope.POD else pod.parts


def filter(node: ZonedNode | None, pod: ZonedPod) -> ZoneFit | Misfit:
    """None: a node without a NodeResourceTopology, which every pod passes."""
    if node is None or pod.indifferent:
        return PASSED
    if node.policy is NumaPolicy.SINGLE_NUMA_NODE:
        return _aligned(node, pod)
    if node.policy is NumaPolicy.RESTRICTED:
        return _together(node, pod.whole) or PASSED
    return PASSED


def _aligned(node: ZonedNode, pod: ZonedPod) -> ZoneFit | Misfit:
    """Each part on the lowest NUMA node that holds it. A plain init container releases its
    resources, a sidecar keeps them in addition to all later ones."""
    available: dict[str, dict[int, int]] = node.available
    zones = []
    last = len(parts := parts_of(node, pod)) - 1
    for place, part in enumerate(parts):
        zone = _zone(node, available, part)
        if isinstance(zone, Misfit):
            return zone
        zones.append(zone)
        if zone is not None and part.kind is not PartKind.INIT and place < last:
            if available is node.available:
                available = {name: dict(there) for name, there in available.items()}
            for each in part.asked:
                there = available.get(each.resource)
                if each.held and there is not None:
                    there[zone] -= each.amount
    return ZoneFit(tuple(zones))


def _zone(node: ZonedNode, available: Available, part: PodPart) -> int | Misfit | None:
    zones = node.zones
    for each in part.asked:
        resource = each.resource
        there = available.get(resource)
        if resource not in node.resources:
            return Misfit(MisfitCause.NOT_ON_NODE, part.kind, part.name, resource, each.amount)
        if there is None:
            if each.of_machine:
                continue
            return Misfit(MisfitCause.NOT_IN_ZONES, part.kind, part.name, resource, each.amount)
        least = each.amount if each.held else 0
        fitting = tuple([zone for zone in zones if there.get(zone, -1) >= least])
        if not fitting:
            most = max((there[zone] for zone in zones if zone in there), default=None)
            return Misfit(
                MisfitCause.NO_ZONE_HOLDS, part.kind, part.name, resource, each.amount, most, zones
            )
        zones = fitting
    return zones[0] if zones else None


def _together(node: ZonedNode, whole: PodPart) -> Misfit | None:
    """Under `restricted` a pod may lie on several NUMA nodes, but not on more than there are."""
    for each in whole.asked:
        total = node.together.get(each.resource)
        if each.held and total is not None and total < each.amount:
            return Misfit(
                MisfitCause.ZONES_TOGETHER,
                whole.kind,
                whole.name,
                each.resource,
                each.amount,
                total,
                node.zones,
            )
    return None
