"""How far the NUMA nodes of a mask lie from each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from agent.allocate.bits import members

Distances: TypeAlias = Mapping[int, Mapping[int, int]]
"""From node to node, by NUMA id, as in the firmware's table (10: local)."""


def span(mask: int, distances: Distances) -> int:
    """The sum over all ordered pairs, a node with itself included: among masks of equally many
    nodes it orders as the mean does. Raises ValueError for a pair without a distance."""
    nodes = list(members(mask))
    total = 0
    for node in nodes:
        row = distances.get(node)
        if row is None:
            raise ValueError(f"NUMA node {node} has no distances")
        for other in nodes:
            distance = row.get(other)
            if distance is None:
                raise ValueError(f"NUMA node {node} has no distance to node {other}")
            total += distance
    return total
