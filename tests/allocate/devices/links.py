"""Link matrices of real machines, as in `nvidia-smi topo -m`, and random ones."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

from hypothesis import strategies as st

from agent.allocate.devices.gpu_sets import Matrix
from agent.allocate.devices.inventory import pair_value
from agent.model.cpu.cpuset import members
from agent.model.cpu.policies import GpuObjective
from agent.model.devices.gpus import Ancestor, GpuPair


def symmetric(count: int, value: Callable[[int, int], int]) -> Matrix:
    """`value` is called for pairs of a lower and a higher index."""
    return tuple(
        tuple(0 if i == j else value(min(i, j), max(i, j)) for j in range(count))
        for i in range(count)
    )


def gpu_pairs(
    count: int, ancestor: Callable[[int, int], Ancestor], links: dict[tuple[int, int], int]
) -> list[GpuPair]:
    """Pairs of the cards `GPU-0` and so on; links of NVLink 2."""
    return [
        GpuPair(
            f"GPU-{i}",
            f"GPU-{j}",
            ancestor(i, j),
            links=links.get((i, j), 0),
            mb_per_second=25_000 * links.get((i, j), 0),
        )
        for i in range(count)
        for j in range(i + 1, count)
    ]


def matrix(count: int, pairs: list[GpuPair], objective: GpuObjective) -> Matrix:
    values = {(pair.one, pair.two): pair_value(pair, objective) for pair in pairs}
    return symmetric(count, lambda i, j: values[f"GPU-{i}", f"GPU-{j}"])


def _volta(i: int, j: int) -> Ancestor:
    if i // 4 != j // 4:
        return Ancestor.SYSTEM
    return Ancestor.SWITCH if i // 2 == j // 2 else Ancestor.HOST_BRIDGE


VOLTA_PAIRS = gpu_pairs(
    8,
    _volta,
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
"""DGX-1 with V100."""
VOLTA = matrix(8, VOLTA_PAIRS, GpuObjective.BESTEFFORT)

BRIDGED = matrix(
    4,
    gpu_pairs(
        4,
        lambda i, j: Ancestor.NODE if i // 2 == j // 2 else Ancestor.SYSTEM,
        {(0, 3): 2, (1, 2): 2},
    ),
    GpuObjective.BESTEFFORT,
)
"""Four cards in two bridged pairs that are not adjacent."""

CROSSED = symmetric(8, lambda i, j: 12 if (i, j) in ((0, 2), (1, 3), (4, 6), (5, 7)) else 1)
"""Eight cards with NV12 between those that are two indices apart."""

MATRICES = st.integers(1, 7).flatmap(
    lambda count: st.lists(st.integers(0, 3), min_size=count * count, max_size=count * count).map(
        lambda values: symmetric(count, lambda i, j: values[i * count + j])
    )
)
"""Few different values, so that ties are common."""


def best_by_enumeration(
    matrix: Matrix, free: int, count: int, distance: Matrix | None = None
) -> tuple[int, ...]:
    """The best of all sets by the objective `bandwidth`."""
    indices = tuple(members(free))

    def key(chosen: tuple[int, ...]) -> tuple[object, ...]:
        pairs = list(combinations(chosen, 2))
        rest = list(combinations([index for index in indices if index not in chosen], 2))
        return (
            min((matrix[i][j] for i, j in pairs), default=0),
            *(sum(of[i][j] for i, j in pairs) for of in (matrix, distance) if of),
            *(sum(of[i][j] for i, j in rest) for of in (matrix, distance) if of),
            [-index for index in chosen],
        )

    return max(combinations(indices, count), key=key)
