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
    """The content of the kernel's file `type`, in lower case."""

    DATA = "data"
    INSTRUCTION = "instruction"
    UNIFIED = "unified"


class CacheGroup(msgspec.Struct, frozen=True):
    """The caches of one level, kind and size."""

    level: int
    kind: CacheKind
    size_bytes: int | None
    """None if unknown."""
    shared_by: tuple[CpuSet, ...]
    """The online CPUs of each cache."""


class MemoryKind(StrEnum):
    """The kind of a NUMA node's memory."""

    DRAM = "dram"
    """The memory of a node with CPUs, or memory as fast."""
    HBM = "hbm"
    CXL = "cxl"
    PERSISTENT = "persistent"
    GPU = "gpu"
    SPECIAL = "special"
    """Set aside by firmware for special purposes (often HBM or CXL); its speed is unknown."""
    SLOW = "slow"
    """Slower than that of nodes with CPUs; its bus is unknown."""


class MemoryTraits(msgspec.Struct, frozen=True):
    """The memory of a NUMA node. Bandwidth and latency are those of reads by the nearest CPUs.
    None: unknown."""

    node: int
    kind: MemoryKind | None = None
    tier: int | None = None
    """The kernel's memory tier; a lower one is faster."""
    read_mib_per_second: int | None = None
    read_latency_ns: int | None = None
    side_cache_bytes: int | None = None
    """A cache of memory in front of this memory."""


class Hardware(msgspec.Struct, frozen=True):
    """What is known of a machine's hardware."""

    models: tuple[CpuModel, ...] = ()
    caches: tuple[CacheGroup, ...] = ()
    """By level."""
    memory: tuple[MemoryTraits, ...] = ()
    """One entry for each online NUMA node."""
