"""What the NUMA nodes of a node have left for plain pods: what its NodeResourceTopology tells,
without the pods that this does not count yet."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

import msgspec

from agent.allocate.place.holding import Holding
from agent.allocate.zoned import filter as zone_filter
from agent.allocate.zoned.assumed import Assumed, without
from agent.allocate.zoned.freshness import Freshness, KnownPod, State, freshness
from agent.allocate.zoned.misfit import Misfit
from agent.allocate.zoned.node import ZonedNode, zoned_node
from agent.allocate.zoned.pod import ZonedPod, exclusive
from agent.model.nodetopology import NodeTopology
from agent.model.policies import NumaPolicy
from agent.scheduler.readings import PodReading

_SAYING = (NumaPolicy.SINGLE_NUMA_NODE, NumaPolicy.RESTRICTED)


class Zones(msgspec.Struct, frozen=True):
    """`current`: they are of the pods that are known; of others' nobody can say what is left."""

    node: ZonedNode
    current: bool = True

    def refuses(self, pod: ZonedPod) -> Misfit | str | None:
        """Why such a pod can't come; None where it may."""
        if pod.indifferent or self.node.policy not in _SAYING:
            return None
        if not self.current:
            return "its zones are of other pods than those that are known to be there"
        found = zone_filter.filter(self.node, pod)
        return found if isinstance(found, Misfit) else None


def zones(
    topology: NodeTopology,
    allocatable: Iterable[str],
    pods: Sequence[PodReading],
    promised: Iterable[tuple[Holding, ZonedPod]] = (),
) -> Zones:
    """`pods`: those that are bound to the node; `promised`: those that will be."""
    node = zoned_node(topology, allocatable)
    if node.policy not in _SAYING:
        return Zones(node)
    begun = sorted((each for each in pods if each.begun), key=_began)
    found = _freshness(topology, begun, node.available)
    missing = {f"{each.namespace}/{each.name}" for each in found.missing}
    taken = [
        _assumed(each.holding, each.zoned)
        for each in pods
        if each.holding is not None
        and each.zoned is not None
        and (not each.begun or each.holding.title in missing)
    ]
    taken += [_assumed(holding, zoned) for holding, zoned in promised]
    return Zones(without(node, taken), found.state is not State.OTHER)


def _freshness(
    topology: NodeTopology, begun: Sequence[PodReading], told: Container[str]
) -> Freshness:
    known = []
    for pod in begun:
        if pod.holding is not None and pod.zoned is not None:
            namespace, _, name = pod.holding.title.partition("/")
            known.append(KnownPod(namespace, name, exclusive(pod.zoned, told)))
    return freshness(topology, known)


def _assumed(holding: Holding, pod: ZonedPod) -> Assumed:
    """What was given of certain NUMA nodes is known; what the kubelet chooses is not."""
    if holding.claim.amounts:
        return Assumed(zones=holding.claim.amounts)
    return Assumed(anywhere=pod.whole.taken)


def _began(pod: PodReading) -> tuple[int, str]:
    return pod.started_at, pod.holding.title if pod.holding is not None else ""
