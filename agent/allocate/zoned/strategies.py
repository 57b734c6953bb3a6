"""How well one NUMA node suits what is asked of it, 0 to 100 (peers.md §2.2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Final, TypeAlias

from agent.model.schedulerargs import ZoneStrategy

Amounts: TypeAlias = Mapping[str, int]

BEST: Final = 100


def least_allocated(asked: Amounts, left: Amounts, weights: Amounts) -> int:
    """The mean of what stays free. Amounts in milli-CPU and units; a weight is 1 unless given."""
    return _mean(asked, left, weights, lambda amount, there: there - amount)


def most_allocated(asked: Amounts, left: Amounts, weights: Amounts) -> int:
    """The mean of what is used."""
    return _mean(asked, left, weights, lambda amount, there: amount)


def balanced_allocation(asked: Amounts, left: Amounts, weights: Amounts) -> int:
    """The closer the used parts of all resources are, the better; weights do not count."""
    parts = []
    for name, amount in asked.items():
        there = left.get(name, 0)
        part = Fraction(_whole(name, amount), _whole(name, there)) if there else Fraction(1)
        if part > 1:
            return 0
        parts.append(part)
    if len(parts) < 2:
        return BEST
    mean = sum(parts) / len(parts)
    variance = sum((part - mean) ** 2 for part in parts) / (len(parts) - 1)
    return int((1 - variance) * BEST)


def _mean(asked: Amounts, left: Amounts, weights: Amounts, part: Callable[[int, int], int]) -> int:
    total = weight_sum = 0
    for name, amount in asked.items():
        weight = weights.get(name) or 1
        there = left.get(name, 0)
        if there and amount <= there:
            whole = _whole(name, there)
            total += part(_whole(name, amount), whole) * BEST // whole * weight
        weight_sum += weight
    return total // weight_sum if weight_sum else 0


def _whole(name: str, amount: int) -> int:
    """A part of a CPU counts as one, as it does for the plugin."""
    return -(-amount // 1000) if name == "cpu" else amount


BY_ZONE: Final[Mapping[ZoneStrategy, Callable[[Amounts, Amounts, Amounts], int]]] = {
    ZoneStrategy.LEAST_ALLOCATED: least_allocated,
    ZoneStrategy.MOST_ALLOCATED: most_allocated,
    ZoneStrategy.BALANCED_ALLOCATION: balanced_allocation,
}
