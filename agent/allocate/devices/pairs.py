"""What a pair of GPUs is worth to each objective, from the links and the way between the two."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Final

from agent.allocate.devices.bandwidth import Matrix


class Way(enum.IntEnum):
    """The common ancestor of two GPUs, in NVML's numbers."""

    SAME_BOARD = 0
    ONE_SWITCH = 10
    SWITCHES = 20
    HOST_BRIDGE = 30
    NUMA_NODE = 40
    SYSTEM = 50


Ways = Sequence[Sequence[Way]]
"""Square and symmetric, as is a count of NVLinks."""

PER_LINK_MB_S: Final = {1: 20_000, 2: 25_000, 3: 25_000, 4: 25_000, 5: 50_000}
"""By NVLink's version, one direction."""

PCIE_MB_S: Final = {
    Way.SAME_BOARD: 6_000,
    Way.ONE_SWITCH: 5_000,
    Way.SWITCHES: 4_000,
    Way.HOST_BRIDGE: 3_000,
    Way.NUMA_NODE: 2_000,
    Way.SYSTEM: 1_000,
}
"""An order rather than a measure: nearer is better, and any NVLink is better than PCIe."""

BESTEFFORT_WAY: Final = {
    Way.SAME_BOARD: 60,
    Way.ONE_SWITCH: 50,
    Way.SWITCHES: 40,
    Way.HOST_BRIDGE: 30,
    Way.NUMA_NODE: 20,
    Way.SYSTEM: 10,
}
BESTEFFORT_LINK: Final = 100


def bandwidths(ways: Ways, nvlinks: Sequence[Sequence[int]], version: int) -> Matrix:
    """In MB/s; a version that is not known counts as the newest below it. Links that one side sees
    otherwise than the other count as the fewer."""
    per_link = max(
        (speed for known, speed in PER_LINK_MB_S.items() if known <= version),
        default=PER_LINK_MB_S[1],
    )

    def worth(way: Way, links: int) -> int:
        return links * per_link if links else PCIE_MB_S[way]

    return _matrix(ways, nvlinks, worth)


def besteffort_scores(ways: Ways, nvlinks: Sequence[Sequence[int]]) -> Matrix:
    """go-gpuallocator's score of a pair (devices.md §4.1), where it panics as the fewer links."""

    def worth(way: Way, links: int) -> int:
        return BESTEFFORT_WAY[way] + BESTEFFORT_LINK * links

    return _matrix(ways, nvlinks, worth)


def _matrix(
    ways: Ways, nvlinks: Sequence[Sequence[int]], worth: Callable[[Way, int], int]
) -> Matrix:
    places = range(len(ways))
    return tuple(
        tuple(
            worth(max(ways[i][j], ways[j][i]), min(nvlinks[i][j], nvlinks[j][i])) if i != j else 0
            for j in places
        )
        for i in places
    )
