"""Whether the NUMA nodes of a node hold a pod, and why not, as data (scheduler-plugins:
pkg/noderesourcetopology/filter.go, Filter)."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from agent.allocate.nrt.node import ZonedNode
from agent.allocate.nrt.pod import PartKind, PodPart, ZonedPod
from agent.model import quantities
from agent.model.cpu.policies import NumaPolicy, TopologyManagerScope

_Available: TypeAlias = Mapping[str, Mapping[int, int]]


class ZoneFit(msgspec.Struct, frozen=True):
    """`zones`: the NUMA node of each part of the pod (`parts_of`), in order; empty if NUMA nodes do
    not matter. None: the part requests nothing of a NUMA node."""

    zones: tuple[int | None, ...] = ()


PASSED = ZoneFit()


class MisfitCause(enum.StrEnum):
    """Stable names."""

    NOT_ON_NODE = "not-on-node"
    """The whole node has no such resource."""
    NOT_IN_ZONES = "not-in-zones"
    """No NUMA node reports the resource."""
    NO_ZONE_HOLDS = "no-zone-holds"
    """None of the NUMA nodes that have enough of the resources before has enough of this one."""
    ZONES_TOGETHER = "zones-together"
    """All NUMA nodes together do not have enough."""


class Misfit(msgspec.Struct, frozen=True):
    """`available`: the most that one of `nodes` has left, or the sum of all; None if no node
    reports it. `name`: the container, empty for the pod. Amounts are in milli-CPU or units."""

    cause: MisfitCause
    kind: PartKind
    name: str
    resource: str
    asked: int
    available: int | None = None
    nodes: tuple[int, ...] = ()

    @property
    def unaligned(self) -> str:
        """The message of the plugin."""
        return f"cannot align {self.kind}"

    @property
    def unresolvable(self) -> bool:
        """Whether the pod would not fit even without other pods."""
        return self.cause in (MisfitCause.NOT_ON_NODE, MisfitCause.NOT_IN_ZONES)

    def words(self) -> str:
        """A message for people without amounts and NUMA nodes, which differ between similar
        nodes."""
        match self.cause:
            case MisfitCause.NO_ZONE_HOLDS:
                return f"{self._asked()}no NUMA node has that much left"
            case MisfitCause.ZONES_TOGETHER:
                return f"{self._asked()}all NUMA nodes together do not have that much left"
        return self.text()

    def text(self) -> str:
        """A message for people."""
        asked = self._asked()
        match self.cause:
            case MisfitCause.NOT_ON_NODE:
                return f"{asked}the node has none"
            case MisfitCause.NOT_IN_ZONES:
                return f"{asked}the NodeResourceTopology reports none in any zone"
            case MisfitCause.ZONES_TOGETHER:
                there = "all NUMA nodes together have"
                return f"{asked}{there} {_amount(self.resource, self.available or 0)} left"
        several = len(self.nodes) > 1
        there = f"NUMA node{'s' if several else ''} {', '.join(map(str, self.nodes))}"
        there = f"{asked}{there} {'have' if several else 'has'}"
        if self.available is None:
            return f"{there} none"
        left = _amount(self.resource, self.available)
        return f"{there} at most {left} left each" if several else f"{there} {left} left"

    def _asked(self) -> str:
        who = f"{self.kind} {self.name}".rstrip()
        return f"{who} requests {_amount(self.resource, self.asked)} {self.resource}: "


def _amount(resource: str, amount: int) -> str:
    return quantities.cpu(amount) if resource == "cpu" else str(amount)


def parts_of(node: ZonedNode, pod: ZonedPod) -> tuple[PodPart, ...]:
    """The parts of the pod that each need one NUMA node."""
    return (pod.whole,) if node.scope is TopologyManagerScope.POD else pod.parts


def filter(node: ZonedNode | None, pod: ZonedPod) -> ZoneFit | Misfit:
    """`node` None: there is no NodeResourceTopology, and every pod passes."""
    if node is None or pod.indifferent:
        return PASSED
    if node.policy is NumaPolicy.SINGLE_NUMA_NODE:
        return _aligned(node, pod)
    if node.policy is NumaPolicy.RESTRICTED:
        return _together(node, pod.whole) or PASSED
    return PASSED


def _aligned(node: ZonedNode, pod: ZonedPod) -> ZoneFit | Misfit:
    """Puts each part on the lowest NUMA node that holds it. A plain init container releases its
    resources; a sidecar keeps them while all later containers run."""
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


def _zone(node: ZonedNode, available: _Available, part: PodPart) -> int | Misfit | None:
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
    """Under `restricted` a pod may use several NUMA nodes, but not more than all nodes have."""
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
