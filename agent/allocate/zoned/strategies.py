"""How well one NUMA node suits what is asked of it, 0 to 100 (peers.md §2.2)."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Final, TypeAlias

Amounts: TypeAlias = Mapping[str, int]

BEST: Final = 100


class ZoneStrategy(enum.StrEnum):
    """The plugin's `scoringStrategy.type`. LEAST_NUMA_NODES counts NUMA nodes, the others look at
    each one by itself."""

    LEAST_ALLOCATED = "LeastAllocated"
    MOST_ALLOCATED = "MostAllocated"
    BALANCED_ALLOCATION = "BalancedAllocation"
    LEAST_NUMA_NODES = "LeastNUMANodes"


def least_allocated(asked: Amounts, left: Amounts, weights: Amounts) -> int:
    """The mean of what stays free. Amounts are whole; a weight is 1 unless given."""
    return _mean(asked, weights, lambda name: left.get(name, 0) - asked[name], left)


def most_allocated(asked: Amounts, left: Amounts, weights: Amounts) -> int:
    """The mean of what is used."""
    return _mean(asked, weights, lambda name: asked[name], left)


def balanced_allocation(asked: Amounts, left: Amounts, weights: Amounts) -> int:
    """The closer the used parts of all resources are, the better; weights do not count."""
    parts = [Fraction(n, left[name]) if left.get(name) else Fraction(1) for name, n in asked.items()]
    if any(part > 1 for part in parts):
        return 0
    if len(parts) < 2:
        return BEST
    mean = sum(parts) / len(parts)
    variance = sum((part - mean) ** 2 for part in parts) / (len(parts) - 1)
    return int((1 - variance) * BEST)


def _mean(
    asked: Amounts, weights: Amounts, part: Callable[[str], int], left: Amounts
) -> int:
    total = weight_sum = 0
    for name, amount in asked.items():
        weight = weights.get(name) or 1
        there = left.get(name, 0)
        if there and amount <= there:
            total += part(name) * BEST // there * weight
        weight_sum += weight
    return total // weight_sum if weight_sum else 0


BY_ZONE: Final[Mapping[ZoneStrategy, Callable[[Amounts, Amounts, Amounts], int]]] = {
    ZoneStrategy.LEAST_ALLOCATED: least_allocated,
    ZoneStrategy.MOST_ALLOCATED: most_allocated,
    ZoneStrategy.BALANCED_ALLOCATION: balanced_allocation,
}
