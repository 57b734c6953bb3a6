"""The value of a pair of GPUs for each objective, by its links and by its nearest common
ancestor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from agent.allocate.devices.gpu_sets import MOST, GpuTable, Matrix, table
from agent.model.gpus import Ancestor, GpuPair
from agent.model.interconnect import Interconnect, Interlink
from agent.model.policies import GpuObjective

_PCIE_MB_PER_SECOND: Final = {
    Ancestor.BOARD: 6_000,
    Ancestor.SWITCH: 5_000,
    Ancestor.SWITCHES: 4_000,
    Ancestor.HOST_BRIDGE: 3_000,
    Ancestor.NODE: 2_000,
    Ancestor.SYSTEM: 1_000,
}
"""An order rather than a measure: nearer is better, and any NVLink is better than PCIe."""

_BESTEFFORT_POINTS: Final = {
    Ancestor.BOARD: 60,
    Ancestor.SWITCH: 50,
    Ancestor.SWITCHES: 40,
    Ancestor.HOST_BRIDGE: 30,
    Ancestor.NODE: 20,
    Ancestor.SYSTEM: 10,
}

_BESTEFFORT_LINK: Final = 100
"""go-gpuallocator's points of a pair (gpuallocator/besteffort_policy.go, calculateGPUPairScore)."""


class LinkTable(msgspec.Struct, frozen=True):
    """GPUs by their places in the matrix of `table`. `plain`: place and minor are the same."""

    minors: tuple[int, ...]
    table: GpuTable
    plain: bool


def links_of(
    reported: Interconnect, objective: GpuObjective = GpuObjective.BANDWIDTH
) -> LinkTable | None:
    """For an inventory of these GPUs; None without reported pairs, and with too many GPUs for a
    table. A pair that is not reported has the value 0."""
    minors = sorted({minor for pair in reported for minor in pair})
    if not 0 < len(minors) <= MOST:
        return None
    values = {pair: pair_value(facts, objective) for pair, facts in reported.items()}
    near = {pair: _nearness(facts) for pair, facts in reported.items()}
    return linked(minors, _matrix(minors, values), objective, _matrix(minors, near))


def linked(
    minors: Iterable[int],
    matrix: Matrix,
    objective: GpuObjective = GpuObjective.BANDWIDTH,
    near: Matrix | None = None,
) -> LinkTable | None:
    """`near`: how near the GPUs of each pair are, more is nearer. None where there are too many
    GPUs for a table. Raises ValueError for a lopsided matrix."""
    places = tuple(minors)
    if len(places) > MOST:
        return None
    return LinkTable(places, table(matrix, objective, near), places == tuple(range(len(places))))


def _matrix(minors: list[int], values: Mapping[tuple[int, int], int]) -> Matrix:
    """Of pairs with the lower minor first; 0 without a value."""
    return tuple(
        tuple(values.get((min(one, two), max(one, two)), 0) for two in minors) for one in minors
    )


def _nearness(facts: GpuPair | Interlink) -> int:
    return 0 if facts.ancestor is None else _BESTEFFORT_POINTS[facts.ancestor]


def pair_value(pair: GpuPair | Interlink, objective: GpuObjective) -> int:
    """MB/s one way for `bandwidth`, points for `besteffort`."""
    if objective is GpuObjective.BESTEFFORT:
        return _nearness(pair) + _BESTEFFORT_LINK * pair.links
    if pair.mb_per_second:
        return pair.mb_per_second
    return 0 if pair.ancestor is None else _PCIE_MB_PER_SECOND[pair.ancestor]
