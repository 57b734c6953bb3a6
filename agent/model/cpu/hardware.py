"""Properties of a machine that are shown and that no decision needs: models of CPUs, caches, kinds
of memory."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from agent.model.cpu.cpuset import CpuSet


class CpuModel(msgspec.Struct, frozen=True):
    """The CPUs of one model, named as the kernel names it."""

    name: str
    cpus: CpuSet


class CacheKind(StrEnum):
    """As the kernel's file `type`, in lower case."""

    DATA = "data"
    INSTRUCTION = "instruction"
    UNIFIED = "unified"


class CacheGroup(msgspec.Struct, frozen=True):
    """The caches of one level, kind and size. `shared_by`: the online CPUs of each of them."""

    level: int
    kind: CacheKind
    size_bytes: int | None
    shared_by: tuple[CpuSet, ...]


class MemoryKind(StrEnum):
    """`dram`: the memory of a node with CPUs, or memory as fast. `special`: set aside by firmware
    for special purposes (often HBM or CXL), speed unknown. `slow`: slower than that of nodes with
    CPUs, and its bus unknown."""

    DRAM = "dram"
    HBM = "hbm"
    CXL = "cxl"
    PERSISTENT = "persistent"
    GPU = "gpu"
    SPECIAL = "special"
    SLOW = "slow"


class MemoryTraits(msgspec.Struct, frozen=True):
    """The memory of a NUMA node. `kind` None: unknown. `tier`: the kernel's memory tier, a
    lower one is faster. Bandwidth and latency: of reads by the nearest CPUs, None if unknown.
    `side_cache_bytes`: a cache of memory in front of it."""

    node: int
    kind: MemoryKind | None = None
    tier: int | None = None
    read_mib_per_second: int | None = None
    read_latency_ns: int | None = None
    side_cache_bytes: int | None = None


class Hardware(msgspec.Struct, frozen=True):
    """`caches` by level; `memory` for each online NUMA node."""

    models: tuple[CpuModel, ...] = ()
    caches: tuple[CacheGroup, ...] = ()
    memory: tuple[MemoryTraits, ...] = ()
