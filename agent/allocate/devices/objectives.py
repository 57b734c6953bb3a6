"""The two objectives that order sets of linked GPUs, by name; one table for each matrix."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, Protocol

from agent.allocate.devices.bandwidth import BandwidthTable, Matrix
from agent.allocate.devices.besteffort import BestEffortTable
from agent.model.policies import GpuObjective


class GpuTable(Protocol):
    """Masks are over the places of GPUs in the matrix."""

    def __hash__(self) -> int:
        """A table is itself and no other."""

    def best(self, free: int, count: int) -> int | None:
        """The best `count` of `free`, None where there are fewer."""

    def prepare(self, count: int) -> None:
        """Makes now what the first query for so many would have to."""

    def worth(self, chosen: int, free: int) -> tuple[int, int, int]:
        """By which a set of `free` is compared with others of its size: more is better."""


MODELS: Final = 64
"""Different matrices that are remembered at a time; a cluster has one for each kind of node."""


@lru_cache(maxsize=MODELS)
def table(
    matrix: Matrix,
    objective: GpuObjective = GpuObjective.BANDWIDTH,
    near: Matrix | None = None,
) -> GpuTable:
    """The table that all nodes with this matrix share; `near` as in BandwidthTable, none for
    `besteffort`, whose points include it. Raises ValueError for a matrix of too many GPUs, or one
    that is not symmetric."""
    if objective is GpuObjective.BESTEFFORT:
        return BestEffortTable(matrix)
    return BandwidthTable(matrix, near)
