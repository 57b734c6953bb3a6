"""What the NUMA nodes of a node have left for plain pods: what its NodeResourceTopology tells,
without the pods that this does not count yet."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from agent.allocate.node import NodeFacts
from agent.allocate.place.zones import assumed_of
from agent.allocate.zoned.assumed import Assumed, without
from agent.allocate.zoned.node import DECLINING, ZonedNode, ZoneFacts, zone_facts
from agent.model.nodetopology import NodeTopology
from agent.model.policies import kubelet_numa_policy
from agent.model.schedulerargs import ZoneStrategy
from agent.scheduler.census import Census
from agent.scheduler.readings import PodReading
from agent.scheduler.sharing import Shared


def speaks(topology: NodeTopology, strategy: ZoneStrategy) -> bool:
    """Whether it matters to anybody what the NUMA nodes have left."""
    policy = kubelet_numa_policy(topology.policy)
    return policy in DECLINING or strategy is ZoneStrategy.LEAST_NUMA_NODES


def word(topology: NodeTopology, allocatable: Iterable[str]) -> ZoneFacts:
    """Nodes of one model share what they have without pods."""
    found = zone_facts(topology, allocatable)
    return msgspec.structs.replace(found, empty=_empty.of(found.empty))


def left(
    zones: ZoneFacts, census: Census, pods: Iterable[PodReading], cpus: NodeFacts | None = None
) -> ZonedNode | None:
    """Beside all `pods`, those that are bound to the node. Of pods that are gone the word may count
    some still: nobody gets what was theirs before the next one. None where it counts pods that
    nobody knows. `cpus`: which NUMA nodes they are of."""
    counted = census.counted(zones)
    if counted is None:
        return None
    taken = [
        assumed
        for each in pods
        if each.uid not in counted and (assumed := _assumed(each, cpus)) is not None
    ]
    return without(zones.told, taken) if taken else zones.told


_empty: Final = Shared[ZonedNode]()


def _assumed(pod: PodReading, cpus: NodeFacts | None) -> Assumed | None:
    """What was given of certain NUMA nodes is known; what the kubelet chooses is not."""
    if pod.holding is None:
        return None
    taken = pod.zoned.whole.taken if pod.zoned is not None else {}
    return assumed_of(pod.holding.claim, taken, cpus)
