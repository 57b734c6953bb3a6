"""The CPUs of the pools that pods without CPUs of their own share, by the pool's name and NUMA
node. The table of pools is in `model.pod.qos`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from agent.model.cpu.cpuset import CpuSet, union


class Pool(msgspec.Struct, frozen=True):
    """The shared CPUs of one NUMA node, in the shape of Koordinator's pool annotations (which leave
    out an empty cpuset)."""

    socket: int
    node: int
    cpuset: str = ""

    @property
    def cpus(self) -> CpuSet:
        return CpuSet.parse(self.cpuset)


Pools: TypeAlias = Mapping[str, tuple[Pool, ...]]
"""By the name of a pool: its CPUs on each NUMA node. A pool without CPUs has no entries, or is
missing."""


def pool_cpus(pools: tuple[Pool, ...], nodes: tuple[int, ...] = ()) -> CpuSet:
    """All CPUs of the pools, or of the pools on the given NUMA nodes."""
    return union(pool.cpus for pool in pools if not nodes or pool.node in nodes)
