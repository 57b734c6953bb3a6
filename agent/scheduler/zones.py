"""What the NUMA nodes of a node have left for plain pods: what its NodeResourceTopology tells,
without the pods that this does not count yet."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import Final

import msgspec

from agent.allocate.node import NodeFacts
from agent.allocate.place.holding import Holding
from agent.allocate.place.zones import of_claim
from agent.allocate.zoned.assumed import Assumed, without
from agent.allocate.zoned.freshness import Freshness, KnownPod, State, freshness
from agent.allocate.zoned.node import ZonedNode, zoned_node
from agent.allocate.zoned.pod import ZonedPod, exclusive
from agent.allocate.zoned.strategies import ZoneStrategy
from agent.model.nodetopology import NodeTopology
from agent.model.policies import NumaPolicy, kubelet_numa_policy
from agent.scheduler.readings import PodReading

_SPEAKING: Final = (NumaPolicy.SINGLE_NUMA_NODE, NumaPolicy.RESTRICTED)


class Zones(msgspec.Struct, frozen=True):
    """`foreign`: pods are refused for what is left of them, and they are of other pods than those
    that are known."""

    node: ZonedNode
    foreign: bool = False


def speaks(topology: NodeTopology, strategy: ZoneStrategy) -> bool:
    """Whether it matters to anybody what the NUMA nodes have left."""
    policy = kubelet_numa_policy(topology.policy)
    return policy in _SPEAKING or strategy is ZoneStrategy.LEAST_NUMA_NODES


def zones(
    topology: NodeTopology,
    allocatable: Iterable[str],
    pods: Sequence[PodReading],
    cpus: NodeFacts | None = None,
) -> Zones:
    """`pods`: those that are bound to the node; `cpus`: which NUMA nodes they are of."""
    node = zoned_node(topology, allocatable)
    begun = sorted((each for each in pods if each.begun), key=_began)
    found = _freshness(topology, begun, node.available)
    missing = {f"{each.namespace}/{each.name}" for each in found.missing}
    taken = [
        _assumed(each.holding, each.zoned, cpus)
        for each in pods
        if each.holding is not None
        and each.zoned is not None
        and (not each.begun or each.holding.title in missing)
    ]
    foreign = found.state is State.OTHER and node.policy in _SPEAKING
    return Zones(without(node, taken), foreign)


def _freshness(
    topology: NodeTopology, begun: Sequence[PodReading], told: Container[str]
) -> Freshness:
    known = []
    for pod in begun:
        if pod.holding is not None and pod.zoned is not None:
            namespace, _, name = pod.holding.title.partition("/")
            known.append(KnownPod(namespace, name, exclusive(pod.zoned, told)))
    return freshness(topology, known)


def _assumed(holding: Holding, pod: ZonedPod, cpus: NodeFacts | None) -> Assumed:
    """What was given of certain NUMA nodes is known; what the kubelet chooses is not."""
    if holding.claim.cpus or holding.claim.amounts:
        return of_claim(holding.claim, cpus)
    return Assumed(anywhere=pod.whole.taken)


def _began(pod: PodReading) -> tuple[int, str]:
    return pod.started_at, pod.holding.title if pod.holding is not None else ""
