"""What a pair of GPUs is worth to each objective, by its links and by what the two share."""

from __future__ import annotations

from typing import Final

from agent.allocate.devices.bandwidth import MOST
from agent.allocate.devices.inventory import Links, linked
from agent.model.gpus import Ancestor, GpuPair
from agent.model.interconnect import Interconnect, Interlink
from agent.model.policies import GpuObjective

PCIE_MB_PER_SECOND: Final = {
    Ancestor.BOARD: 6_000,
    Ancestor.SWITCH: 5_000,
    Ancestor.SWITCHES: 4_000,
    Ancestor.HOST_BRIDGE: 3_000,
    Ancestor.NODE: 2_000,
    Ancestor.SYSTEM: 1_000,
}
"""An order rather than a measure: nearer is better, and any NVLink is better than PCIe."""

BESTEFFORT_POINTS: Final = {
    Ancestor.BOARD: 60,
    Ancestor.SWITCH: 50,
    Ancestor.SWITCHES: 40,
    Ancestor.HOST_BRIDGE: 30,
    Ancestor.NODE: 20,
    Ancestor.SYSTEM: 10,
}
BESTEFFORT_LINK: Final = 100
"""go-gpuallocator's points of a pair (devices.md §4.1)."""


def links_of(told: Interconnect, objective: GpuObjective = GpuObjective.BANDWIDTH) -> Links | None:
    """For an inventory of these GPUs; None where nobody told of any, and where there are too many
    for a table. A pair that is not told of is worth nothing."""
    minors = sorted({minor for pair in told for minor in pair})
    if not 0 < len(minors) <= MOST:
        return None
    place = {minor: at for at, minor in enumerate(minors)}
    rows = [[0] * len(minors) for _ in minors]
    for (one, two), facts in told.items():
        at, to = place[one], place[two]
        rows[at][to] = rows[to][at] = worth(facts, objective)
    return linked(minors, tuple(map(tuple, rows)), objective)


def worth(pair: GpuPair | Interlink, objective: GpuObjective) -> int:
    """MB/s one way for `bandwidth`, points for `besteffort`."""
    if objective is GpuObjective.BESTEFFORT:
        shared = 0 if pair.ancestor is None else BESTEFFORT_POINTS[pair.ancestor]
        return shared + BESTEFFORT_LINK * pair.links
    if pair.mb_per_second:
        return pair.mb_per_second
    return 0 if pair.ancestor is None else PCIE_MB_PER_SECOND[pair.ancestor]
