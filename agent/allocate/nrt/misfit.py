"""Why the NUMA nodes of a node do not hold a pod, as data."""

from __future__ import annotations

import enum

import msgspec

from agent.allocate.nrt.pod import PartKind
from agent.model import quantities


class MisfitCause(enum.StrEnum):
    """Stable words."""

    NOT_ON_NODE = "not-on-node"
    """The whole node has no such resource."""
    NOT_IN_ZONES = "not-in-zones"
    """No NUMA node reports the resource."""
    NO_ZONE_HOLDS = "no-zone-holds"
    """Of the NUMA nodes that have enough of all before, none has enough of this resource."""
    ZONES_TOGETHER = "zones-together"
    """All NUMA nodes together do not have enough."""


class Misfit(msgspec.Struct, frozen=True):
    """`available`: the most that one of `nodes` has left, or all have together; None when none
    reports it. `name`: the container, empty for the pod. Amounts in milli-CPU or units."""

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
        """Whether it stays so without any other pod."""
        return self.cause in (MisfitCause.NOT_ON_NODE, MisfitCause.NOT_IN_ZONES)

    def words(self) -> str:
        """For people, without what nodes alike may differ in."""
        match self.cause:
            case MisfitCause.NO_ZONE_HOLDS:
                return f"{self._asked()}no NUMA node has so much left"
            case MisfitCause.ZONES_TOGETHER:
                return f"{self._asked()}all NUMA nodes together have not so much left"
        return self.text()

    def text(self) -> str:
        """For people."""
        asked = self._asked()
        match self.cause:
            case MisfitCause.NOT_ON_NODE:
                return f"{asked}the node has none"
            case MisfitCause.NOT_IN_ZONES:
                return f"{asked}the NodeResourceTopology tells of none in any zone"
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
        return f"{who} asks for {_amount(self.resource, self.asked)} {self.resource}: "


def _amount(resource: str, amount: int) -> str:
    return quantities.cpu(amount) if resource == "cpu" else str(amount)
