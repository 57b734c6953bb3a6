"""The utilization of devices, 0 to 100 in whole numbers, for the strategies: LeastAllocated prefers
emptier devices, MostAllocated fuller ones; the mean over the resources with a weight that the
devices have. The core of GPUs has no weight."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from agent.allocate.score import points
from agent.model.nodestatus import FPGA, GPU_MEMORY, GPU_MEMORY_RATIO, RDMA
from agent.model.policies import Strategy

WEIGHED: Final = (GPU_MEMORY_RATIO, GPU_MEMORY, RDMA, FPGA)
Amounts = Mapping[str, int]


def score(asked: Amounts, total: Amounts, free: Amounts, strategy: Strategy) -> int:
    """Of devices with these amounts together, once `asked` is given away too."""
    found = weighed = 0
    most = strategy is Strategy.MOST_ALLOCATED
    for name in WEIGHED:
        capacity = total.get(name, 0)
        if capacity <= 0:
            continue
        weighed += 1
        used = capacity - free.get(name, 0) + asked.get(name, 0)
        found += points(most, capacity, used)
    return found // weighed if weighed else 0


def summed(amounts: Iterable[Amounts]) -> dict[str, int]:
    """Of what is weighed."""
    sums = dict.fromkeys(WEIGHED, 0)
    for each in amounts:
        for name in WEIGHED:
            if name in each:
                sums[name] += each[name]
    return sums
