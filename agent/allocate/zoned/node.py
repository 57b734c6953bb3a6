"""What the NUMA nodes of a node have left for pods, as its NodeResourceTopology tells."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from agent.allocate.numa.scope import Scope
from agent.allocate.zoned.freshness import Method, method_of
from agent.model.nodetopology import NodeTopology
from agent.model.policies import NumaPolicy, kubelet_numa_policy

MAX_NUMA_NODES: Final = 8
"""For how many the kubelet's topology manager works where nothing else is told."""
FAR: Final = 255
"""The distance of NUMA nodes for which none is told."""

DECLINING: Final = (NumaPolicy.SINGLE_NUMA_NODE, NumaPolicy.RESTRICTED)
"""The policies that keep any pod away."""

_ON_EVERY_NODE: Final = frozenset(("cpu", "memory", "ephemeral-storage", "pods"))


class ZonedNode(msgspec.Struct, frozen=True):
    """`zones`: ids of its NUMA nodes, ascending, with any gaps; `available`: what is left, by
    resource and NUMA node, only those that tell of the resource (`cpu` in milli-CPU, the rest in
    units), and `together`; `distances` between all pairs, in the order of `zones`; `resources`:
    those of the whole node, by name."""

    policy: NumaPolicy
    scope: Scope
    max_numa_nodes: int
    zones: tuple[int, ...]
    available: dict[str, dict[int, int]]
    together: dict[str, int]
    distances: tuple[tuple[int, ...], ...]
    resources: frozenset[str]


class ZoneFacts(msgspec.Struct, frozen=True):
    """A node's own word on its NUMA nodes. `told`: as it is; `empty`: as if no pod were there;
    `fingerprint`: of the pods that it counts, None where it does not say, and of which pods that is
    (`method`)."""

    told: ZonedNode
    empty: ZonedNode
    fingerprint: str | None = None
    method: Method = Method.ALL

    @property
    def declines(self) -> bool:
        """Whether any pod is kept away for it."""
        return self.told.policy in DECLINING


def zone_facts(topology: NodeTopology, allocatable: Iterable[str]) -> ZoneFacts:
    """`allocatable`: the Node's, of which only the names count."""
    names = tuple(allocatable)
    return ZoneFacts(
        zoned_node(topology, names),
        zoned_node(topology, names, empty=True),
        topology.fingerprint,
        method_of(topology),
    )


def zoned_node(
    topology: NodeTopology, allocatable: Iterable[str], *, empty: bool = False
) -> ZonedNode:
    """`allocatable`: the Node's, of which only the names count. `empty`: as if no pod were there;
    what does not fit then, no eviction helps."""
    zones = sorted(topology.zones, key=lambda zone: zone.node)
    ids = tuple(zone.node for zone in zones)
    available: dict[str, dict[int, int]] = {}
    for zone in zones:
        for resource, amounts in zone.resources.items():
            left = amounts.allocatable if empty else amounts.available
            available.setdefault(resource, {})[zone.node] = left
    return ZonedNode(
        kubelet_numa_policy(topology.policy) or NumaPolicy.NONE,
        Scope(topology.scope),
        topology.max_numa_nodes or MAX_NUMA_NODES,
        ids,
        available,
        {resource: sum(there.values()) for resource, there in available.items()},
        tuple(tuple(zone.costs.get(other, FAR) for other in ids) for zone in zones),
        _ON_EVERY_NODE.union(allocatable),
    )
