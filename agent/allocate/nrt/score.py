"""How well a node's NUMA nodes suit a pod, 0 to 100 (scheduler-plugins: pkg/noderesourcetopology,
score.go).

LeastNUMANodes counts the NUMA nodes that the pod needs together, and prefers close ones
(least_numa.go). The other strategies score the amounts that stay free on one NUMA node
(least_allocated.go, most_allocated.go, balanced_allocation.go).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Final, TypeAlias

import msgspec

from agent.allocate.nrt.filter import parts_of
from agent.allocate.nrt.node import ZonedNode
from agent.allocate.steps import UNCOUNTED, Steps
from agent.model.cpu.policies import NumaPolicy, Strategy
from agent.model.pod.numa_request import NumaRequest, PartKind

_Available: TypeAlias = Mapping[str, Mapping[int, int]]

_Distances: TypeAlias = tuple[tuple[int, ...], ...]

_Amounts: TypeAlias = Mapping[str, int]

_BEST: Final = 100

_MAX_STEPS: Final = 30_000
"""Enough for every set of 16 NUMA nodes."""


def score(
    node: ZonedNode | None,
    pod: NumaRequest,
    strategy: Strategy,
    weights: Mapping[str, int] | None = None,
    steps: Steps = UNCOUNTED,
) -> int:
    """How well the pod fits the node.

    `node`: None if there is no NodeResourceTopology, or it does not count the known pods.
    `weights`: by resource, 1 by default.

    Raises TooComplexError."""
    if not pod.aligned:
        return _BEST
    if node is None:
        return 0
    if strategy is Strategy.LEAST_NUMA_NODES:
        return least_numa_nodes(node, pod, steps)
    if node.policy is not NumaPolicy.SINGLE_NUMA_NODE:
        return 0
    steps.take(len(pod.parts) * len(node.zones) * (2 + len(node.available)))
    return _by_zone(node, pod, strategy, weights or {})


def _by_zone(
    node: ZonedNode, pod: NumaRequest, strategy: Strategy, weights: Mapping[str, int]
) -> int:
    """The mean over the parts. Each part counts with the least suitable of the NUMA nodes that it
    fits."""
    zone_score = _BY_ZONE[strategy]
    scores = []
    for part in parts_of(node, pod):
        if not part.requests:
            continue
        zones = (_left(node, zone) for zone in node.zones)
        positive = [
            points for zone in zones if (points := zone_score(part.requests, zone, weights))
        ]
        scores.append(min(positive, default=0))
    return sum(scores) // len(scores) if scores else 0


def _left(node: ZonedNode, zone: int) -> dict[str, int]:
    return {name: there[zone] for name, there in node.available.items() if zone in there}


def least_numa_nodes(node: ZonedNode, pod: NumaRequest, steps: Steps) -> int:
    """The score by the number of NUMA nodes that the pod needs."""
    available: dict[str, dict[int, int]] = node.available
    count, closest = 0, True
    for part in parts_of(node, pod):
        requested = {name: n for name, n in part.requests.items() if name in node.available}
        if not any(requested.values()):
            continue
        found = spread(node, available, requested, steps)
        if found is None:
            return 0
        count = max(count, len(found.zones))
        closest = closest and found.closest
        if part.kind is not PartKind.INIT:
            available = without(available, found.zones, requested)
    return count_score(count, closest, node.max_numa_nodes) if count else _BEST


def without(
    available: dict[str, dict[int, int]], zones: tuple[int, ...], requested: Mapping[str, int]
) -> dict[str, dict[int, int]]:
    """The available amounts without the request, which is taken from the zones in their order."""
    rest = dict(available)
    for resource, amount in requested.items():
        there = dict(available[resource])
        for zone in zones:
            part = min(amount, there.get(zone, 0))
            if part:
                there[zone] -= part
                amount -= part
        rest[resource] = there
    return rest


def count_score(count: int, closest: bool, max_numa_nodes: int) -> int:
    """0 for more NUMA nodes than the topology manager supports."""
    unit = _BEST // max_numa_nodes
    return max(0, _BEST - count * unit + (unit // 2 if closest else 0))


class Spread(msgspec.Struct, frozen=True):
    """A set of NUMA nodes."""

    zones: tuple[int, ...]
    closest: bool
    """No other set of this size is closer together."""


def spread(
    node: ZonedNode,
    available: _Available,
    requested: Mapping[str, int],
    steps: Steps = UNCOUNTED,
) -> Spread | None:
    """The fewest NUMA nodes that hold the request together; among these the closest set, then the
    first. Only zones that report all requested resources count, also for a request of 0."""
    needed = {name: amount for name, amount in requested.items() if amount}
    rows = [[available[name].get(zone, 0) for zone in node.zones] for name in needed]
    needs = list(needed.values())
    useful = [
        place
        for place, zone in enumerate(node.zones)
        if any(row[place] > 0 for row in rows)
        and all(zone in available[name] for name in requested)
    ]
    search = _Search(rows, needs, node.distances, useful)
    for count in range(1, len(useful) + 1):
        found = search.best(count)
        steps.take(_STEPS_OF_SEARCH * search.taken)
        if found is not None:
            span, places = found
            nearest, taken = _closest(node.distances, count)
            steps.take(_STEPS_OF_SEARCH * taken)
            closest = span <= nearest
            return Spread(tuple(node.zones[place] for place in places), closest)
    return None


class _Search:
    """Searches the sets of a given size in lexicographic order for the first one with the least
    span that has all that is needed. A branch is cut if the rest can't be enough or can't be
    closer. After MAX_STEPS steps the best set so far counts."""

    def __init__(
        self,
        rows: list[list[int]],
        needs: list[int],
        distances: _Distances,
        places: list[int],
    ) -> None:
        self._rows = rows
        self._needs = needs
        self._distances = distances
        self._places = places
        self._nearest = min((distances[i][i] for i in places), default=0)
        pairs = (distances[i][j] + distances[j][i] for i in places for j in places if i < j)
        self._nearest_pair = min(pairs, default=0)
        self._count = self._steps = 0
        self._best: tuple[int, tuple[int, ...]] | None = None

    @property
    def taken(self) -> int:
        """The steps of the last search."""
        return _MAX_STEPS - self._steps

    def best(self, count: int) -> tuple[int, tuple[int, ...]] | None:
        """The sum of distances over all ordered pairs (also of a place with itself), and the
        set."""
        self._count, self._steps, self._best = count, _MAX_STEPS, None
        self._extend((), 0, 0, self._needs)
        return self._best

    def _extend(self, chosen: tuple[int, ...], start: int, span: int, missing: list[int]) -> None:
        self._steps -= 1
        more = self._count - len(chosen)
        if not more:
            nearer = self._best is None or span < self._best[0]
            if nearer and all(each <= 0 for each in missing):
                self._best = span, chosen
            return
        pairs = more * len(chosen) + more * (more - 1) // 2
        least = span + more * self._nearest + pairs * self._nearest_pair
        if self._steps < 0 or (self._best is not None and least >= self._best[0]):
            return
        rest = self._places[start:]
        for row, need in zip(self._rows, missing, strict=True):
            if need > 0 and sum(sorted((row[i] for i in rest), reverse=True)[:more]) < need:
                return
        for index in range(start, len(self._places) - more + 1):
            place = self._places[index]
            own = self._distances[place]
            added = own[place] + sum(own[i] + self._distances[i][place] for i in chosen)
            left = [need - row[place] for row, need in zip(self._rows, missing, strict=True)]
            self._extend((*chosen, place), index + 1, span + added, left)


_STEPS_OF_SEARCH: Final = 2


@functools.lru_cache(maxsize=256)
def _closest(distances: _Distances, count: int) -> tuple[int, int]:
    """The least span of `count` NUMA nodes, and the steps that found it; cached, because nodes of
    one model share it."""
    search = _Search([], [], distances, list(range(len(distances))))
    found = search.best(count)
    return found[0] if found is not None else 0, search.taken


def _least_allocated(requested: _Amounts, left: _Amounts, weights: _Amounts) -> int:
    """The mean of the free parts. Amounts in milli-CPU and units; weights are 1 by default."""
    return _mean(requested, left, weights, lambda amount, there: there - amount)


def _most_allocated(requested: _Amounts, left: _Amounts, weights: _Amounts) -> int:
    return _mean(requested, left, weights, lambda amount, there: amount)


def _balanced_allocation(requested: _Amounts, left: _Amounts, weights: _Amounts) -> int:
    """The closer the used parts of all resources are to each other, the better; weights do not
    count."""
    parts = []
    for name, amount in requested.items():
        there = left.get(name, 0)
        part = Fraction(_whole(name, amount), _whole(name, there)) if there else Fraction(1)
        if part > 1:
            return 0
        parts.append(part)
    if len(parts) < 2:
        return _BEST
    mean = sum(parts) / len(parts)
    variance = sum((part - mean) ** 2 for part in parts) / (len(parts) - 1)
    return int((1 - variance) * _BEST)


def _mean(
    requested: _Amounts, left: _Amounts, weights: _Amounts, part: Callable[[int, int], int]
) -> int:
    total = weight_sum = 0
    for name, amount in requested.items():
        weight = weights.get(name) or 1
        there = left.get(name, 0)
        if there and amount <= there:
            whole = _whole(name, there)
            total += part(_whole(name, amount), whole) * _BEST // whole * weight
        weight_sum += weight
    return total // weight_sum if weight_sum else 0


def _whole(name: str, amount: int) -> int:
    """A fraction of a CPU counts as one CPU, as in the plugin."""
    return -(-amount // 1000) if name == "cpu" else amount


_BY_ZONE: Final[Mapping[Strategy, Callable[[_Amounts, _Amounts, _Amounts], int]]] = {
    Strategy.LEAST_ALLOCATED: _least_allocated,
    Strategy.MOST_ALLOCATED: _most_allocated,
    Strategy.BALANCED_ALLOCATION: _balanced_allocation,
}
