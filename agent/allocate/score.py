"""The score of amounts, an integer from 0 to 100: the weighted mean over resources of how much is
used (MostAllocated) or free (LeastAllocated), or how equally resources are used
(BalancedAllocation)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, TypeAlias

from agent.model.cpu.policies import Strategy

HIGHEST: Final = 100
_ALWAYS: Final = ("cpu", "memory", "ephemeral-storage")

Amounts: TypeAlias = Mapping[str, int]
"""By resource."""


def utilization_score(
    strategy: Strategy, weights: Amounts, capacity: Amounts, used: Amounts
) -> int:
    """The score with `used` of the `capacity` in use; a resource without capacity does not count.
    LeastAllocated gives 0 to a resource that is used beyond its capacity."""
    if strategy is Strategy.BALANCED_ALLOCATION:
        return _balance(weights, capacity, used)
    total = found = 0
    most = strategy is Strategy.MOST_ALLOCATED
    for name, weight in weights.items():
        if (have := capacity.get(name, 0)) > 0:
            total += weight
            found += weight * points(most, have, used.get(name, 0))
    return found // total if total else 0


def weights_that_count(weights: Amounts, requests: Amounts) -> dict[str, int]:
    """The weights that count for a pod: those of CPU, memory and storage, and of resources that it
    requests."""
    return {
        name: weight
        for name, weight in weights.items()
        if name in _ALWAYS or requests.get(name, 0) > 0
    }


def points(most: bool, capacity: int, used: int) -> int:
    """The score of one resource with capacity above 0, for MostAllocated (`most`) or
    LeastAllocated."""
    if most:
        return min(used, capacity) * HIGHEST // capacity
    return (capacity - used) * HIGHEST // capacity if used <= capacity else 0


def spread(shares: Mapping[float, int]) -> int:
    """How close shares (0 to 1, with their weights) are: 100 if they are all equal, less by their
    standard deviation."""
    total = sum(shares.values())
    if not total:
        return 0
    mean = sum(share * weight for share, weight in shares.items()) / total
    variance = sum(weight * (share - mean) ** 2 for share, weight in shares.items()) / total
    return int((1 - math.sqrt(variance)) * HIGHEST)


def _balance(weights: Amounts, capacity: Amounts, used: Amounts) -> int:
    shares: dict[float, int] = {}
    for name, weight in weights.items():
        if (have := capacity.get(name, 0)) > 0:
            share = min(1.0, used.get(name, 0) / have)
            shares[share] = shares.get(share, 0) + weight
    return spread(shares)
