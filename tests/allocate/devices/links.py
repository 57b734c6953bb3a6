"""Link matrices of real machines (what `nvidia-smi topo -m` shows of them), and random ones."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st

from agent.allocate.devices.bandwidth import Matrix
from agent.allocate.devices.pairs import Way, besteffort_scores


def symmetric(count: int, value: Callable[[int, int], int]) -> Matrix:
    """`value` is asked for pairs of a lower and a higher number."""
    return tuple(
        tuple(0 if i == j else value(min(i, j), max(i, j)) for j in range(count))
        for i in range(count)
    )


def volta_ways(i: int, j: int) -> Way:
    if i // 4 != j // 4:
        return Way.SYSTEM
    return Way.ONE_SWITCH if i // 2 == j // 2 else Way.HOST_BRIDGE


def bridged_ways(i: int, j: int) -> Way:
    return Way.NUMA_NODE if i // 2 == j // 2 else Way.SYSTEM


def counted(count: int, links: dict[tuple[int, int], int]) -> Matrix:
    return symmetric(count, lambda i, j: links.get((i, j), 0))


def ways(count: int, way: Callable[[int, int], Way]) -> tuple[tuple[Way, ...], ...]:
    return tuple(
        tuple(Way.SAME_BOARD if i == j else way(min(i, j), max(i, j)) for j in range(count))
        for i in range(count)
    )


VOLTA_LINKS = counted(
    8,
    {
        (0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2,
        (1, 2): 2, (1, 3): 1, (1, 5): 2,
        (2, 3): 2, (2, 6): 1,
        (3, 7): 1,
        (4, 5): 1, (4, 6): 1, (4, 7): 2,
        (5, 6): 2, (5, 7): 1,
        (6, 7): 2,
    },
)  # fmt: skip
VOLTA = besteffort_scores(ways(8, volta_ways), VOLTA_LINKS)
"""DGX-1 with V100."""

BRIDGED = besteffort_scores(ways(4, bridged_ways), counted(4, {(0, 3): 2, (1, 2): 2}))
"""Four cards in two bridged pairs, not neighbours."""

CROSSED = symmetric(8, lambda i, j: 12 if (i, j) in ((0, 2), (1, 3), (4, 6), (5, 7)) else 1)
"""Eight cards with NV12 between those that are two apart."""

MATRICES = st.integers(1, 7).flatmap(
    lambda count: st.lists(st.integers(0, 3), min_size=count * count, max_size=count * count).map(
        lambda values: symmetric(count, lambda i, j: values[i * count + j])
    )
)
"""Few values, so that there are ties."""
