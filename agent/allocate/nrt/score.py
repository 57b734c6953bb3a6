"""How well a node's NUMA nodes suit a pod, 0 to 100 (scheduler-plugins:
pkg/noderesourcetopology/score.go, Score)."""

from __future__ import annotations

from collections.abc import Mapping

from agent.allocate.nrt import least_numa
from agent.allocate.nrt.filter import parts_of
from agent.allocate.nrt.least_numa import BEST, BY_ZONE
from agent.allocate.nrt.node import ZonedNode
from agent.allocate.nrt.pod import PartKind, ZonedPod
from agent.model.policies import NumaPolicy, Strategy


def score(
    node: ZonedNode | None,
    pod: ZonedPod,
    strategy: Strategy,
    weights: Mapping[str, int] | None = None,
) -> int:
    """`weights` by resource, 1 where none is given. None: no NodeResourceTopology, or one that is
    not of the pods that are known."""
    if not pod.guaranteed:
        return BEST
    if node is None:
        return 0
    if strategy is Strategy.LEAST_NUMA_NODES:
        return _by_count(node, pod)
    if node.policy is not NumaPolicy.SINGLE_NUMA_NODE:
        return 0
    return _by_zone(node, pod, strategy, weights or {})


def _by_zone(node: ZonedNode, pod: ZonedPod, strategy: Strategy, weights: Mapping[str, int]) -> int:
    """The mean over the parts; each counts as on the NUMA node that suits it least of those that it
    could be on."""
    judged = BY_ZONE[strategy]
    scores = []
    for part in parts_of(node, pod):
        if not part.requests:
            continue
        zones = (_left(node, zone) for zone in node.zones)
        found = [each for zone in zones if (each := judged(part.requests, zone, weights))]
        scores.append(min(found, default=0))
    return sum(scores) // len(scores) if scores else 0


def _by_count(node: ZonedNode, pod: ZonedPod) -> int:
    available: dict[str, dict[int, int]] = node.available
    count, closest = 0, True
    for part in parts_of(node, pod):
        asked = {name: n for name, n in part.requests.items() if name in node.available}
        if not any(asked.values()):
            continue
        found = least_numa.spread(node, available, asked)
        if found is None:
            return 0
        count = max(count, len(found.zones))
        closest = closest and found.closest
        if part.kind is not PartKind.INIT:
            available = _without(available, found.zones, asked)
    return least_numa.score_of(count, closest, node.max_numa_nodes) if count else BEST


def _without(
    available: dict[str, dict[int, int]], zones: tuple[int, ...], asked: Mapping[str, int]
) -> dict[str, dict[int, int]]:
    """The first NUMA node gives what it has, and the next one the rest."""
    rest = dict(available)
    for resource, amount in asked.items():
        there = dict(available[resource])
        for zone in zones:
            part = min(amount, there.get(zone, 0))
            if part:
                there[zone] -= part
                amount -= part
        rest[resource] = there
    return rest


def _left(node: ZonedNode, zone: int) -> dict[str, int]:
    return {name: there[zone] for name, there in node.available.items() if zone in there}
