"""Hints of CPU, memory and all other resources that the NUMA nodes of a machine count.

A set of nodes is a hint of all requested resources if a trial allocation fits on it, without the
resources that one of its nodes has none left of: a pod's memory may span a node without CPUs, its
CPUs can't."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from agent.allocate.bits import members, subsets
from agent.allocate.numa.hint import TopologyHint
from agent.allocate.score import points, weights_that_count
from agent.model.policies import NumaPolicy, Strategy

Amounts: TypeAlias = Mapping[int, Mapping[str, int]]
"""By NUMA id, then by resource, in that resource's own unit (cpu in milli, memory in bytes)."""


def resource_hints(
    request: Mapping[str, int],
    available: Amounts,
    total: Amounts,
    policy: NumaPolicy,
    score: Callable[[int], int],
    fits: Callable[[int], bool],
    *,
    narrowest: bool = False,
    widest: int | None = None,
) -> dict[str, tuple[TopologyHint, ...]]:
    """By requested resource that any node of `total` counts: its hints, none where nothing fits.

    `request` counts as `available` does (amplified or not). `fits`: the trial allocation of the
    whole request on a mask, asked only where the mask has enough of everything by the sums;
    `score`: of a mask that fits. Preferred are the masks of the fewest nodes, all under
    Restricted. Exact for resources that up to ten nodes have something left of; beyond, the masks
    of `subsets`.

    `narrowest`: no masks of more nodes than the fewest that all resources prefer together. A merge
    of these hints with no others, and without exclusivity, chooses the same then. `widest`: no
    masks of more nodes than so many."""
    wanted = {
        resource: amount
        for resource, amount in request.items()
        if amount > 0 and any(resource in held for held in total.values())
    }
    free = {resource: _free(available, resource) for resource in wanted}
    holders = {resource: sum(node for node, _ in held) for resource, held in free.items()}
    found: dict[str, list[TopologyHint]] = {resource: [] for resource in wanted}
    fewest = dict.fromkeys(wanted, 0)
    asked = [(needed, free[resource]) for resource, needed in wanted.items()]
    agreed = 0
    for mask in _candidates(holders.values(), max(map(_fewest, asked), default=1)):
        size = mask.bit_count()
        if (narrowest and agreed and size > agreed) or (widest and size > widest):
            break
        if not _enough(mask, asked) or not fits(mask):
            continue
        worth = score(mask)
        preferring = 0
        hints: dict[bool, TopologyHint] = {}
        for resource, holder in holders.items():
            if mask & ~holder:
                continue
            smallest = fewest[resource] = fewest[resource] or size
            preferred = policy is NumaPolicy.RESTRICTED or size == smallest
            preferring += preferred
            hint = hints.get(preferred)
            if hint is None:
                hint = hints[preferred] = TopologyHint(mask, preferred, worth)
            found[resource].append(hint)
        if preferring == len(wanted):
            agreed = agreed or size
    return {resource: tuple(held) for resource, held in found.items()}


def _enough(mask: int, asked: Sequence[tuple[int, Sequence[tuple[int, int]]]]) -> bool:
    for needed, free in asked:
        for node, amount in free:
            if mask & node:
                needed -= amount
        if needed > 0:
            return False
    return True


def _fewest(asked: tuple[int, Sequence[tuple[int, int]]]) -> int:
    """No fewer nodes have enough."""
    missing, free = asked
    count = 1
    for amount in sorted((amount for _, amount in free), reverse=True):
        missing -= amount
        if missing <= 0:
            break
        count += 1
    return count


def _candidates(holders: Iterable[int], least: int) -> Iterable[int]:
    """The subsets of each set of nodes, in the order of `subsets`."""
    distinct = set(holders)
    if len(distinct) == 1:
        return subsets(members(distinct.pop()), least)
    masks = {mask for holder in distinct for mask in subsets(members(holder), least)}
    return sorted(masks, key=lambda mask: (mask.bit_count(), tuple(members(mask))))


def _free(available: Amounts, resource: str) -> list[tuple[int, int]]:
    """The nodes that have something left, as bits, and how much."""
    amounts = ((1 << node, held.get(resource, 0)) for node, held in available.items())
    return [(node, amount) for node, amount in amounts if amount > 0]


class MaskScores:
    """How empty or full the nodes of a mask are with the request on them: the weighted mean over
    resources that they have. Fuller is better for MostAllocated alone."""

    def __init__(
        self,
        request: Mapping[str, int],
        available: Amounts,
        total: Amounts,
        strategy: Strategy,
        weights: Mapping[str, int],
    ) -> None:
        self._most = strategy is Strategy.MOST_ALLOCATED
        self._parts = [
            (
                weight,
                request.get(name, 0),
                {
                    1 << node: (amounts[name], amounts[name] - available.get(node, {}).get(name, 0))
                    for node, amounts in total.items()
                    if name in amounts
                },
            )
            for name, weight in weights_that_count(weights, request).items()
        ]

    def of(self, mask: int) -> int:
        found = total = 0
        for weight, used, by_node in self._parts:
            capacity = 0
            left = mask
            while left:
                low = left & -left
                left ^= low
                if (part := by_node.get(low)) is not None:
                    capacity += part[0]
                    used += part[1]
            if capacity > 0:
                total += weight
                found += weight * points(self._most, capacity, used)
        return found // total if total else 0
