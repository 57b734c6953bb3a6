"""How good sets of NUMA nodes are for a pod: 0 to 100, worked out once a node and resource."""

from __future__ import annotations

from collections.abc import Mapping

from agent.allocate.numa.resource_hints import Amounts
from agent.allocate.worth import counted, points
from agent.model.policies import NumaStrategy


class MaskScores:
    """How empty or full the nodes of a mask are with the request on them: the weighted mean over
    resources that they have. Fuller is better for MostAllocated alone."""

    def __init__(
        self,
        request: Mapping[str, int],
        available: Amounts,
        total: Amounts,
        strategy: NumaStrategy,
        weights: Mapping[str, int],
    ) -> None:
        self._most = strategy is NumaStrategy.MOST_ALLOCATED
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
            for name, weight in counted(weights, request).items()
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
