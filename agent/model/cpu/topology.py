"""The machine as values: CPUs, cores, caches, dies, sockets, NUMA nodes; and what is only shown of
it: models of CPUs, caches, kinds of memory."""

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


class Cpu(msgspec.Struct, frozen=True):
    """One online logical CPU."""

    id: int
    core: int
    """The lowest online CPU of the core, so that it is unique on the machine."""
    l3: int | None
    """The lowest online CPU of the L3 cache, None without one."""
    die: int | None
    """The kernel's id, unique in a socket, None if unknown."""
    socket: int
    """The kernel's id, or the lowest free number if that is unknown or not unique."""
    node: int
    """The kernel's id, which is in no list of NUMA nodes if the kernel has taken the node
    offline."""
    kind: str | None = None
    """The core kind on a hybrid machine, None on others: Intel's `core`, `atom` and `lowpower`,
    else `capacity-N` relative to 1024."""


class HugePages(msgspec.Struct, frozen=True):
    """The pool of one page size on one NUMA node."""

    size_bytes: int
    total: int
    free: int


class NumaNode(msgspec.Struct, frozen=True):
    """An online NUMA node."""

    id: int
    cpus: CpuSet
    """Its online CPUs, which may be none."""
    memory_bytes: int
    distances: tuple[int, ...] = ()
    """In the order of `Topology.numa_nodes` (SLIT: 10 is local), empty if the machine reports
    none."""
    hugepages: tuple[HugePages, ...] = ()


class Topology(msgspec.Struct, frozen=True):
    """The machine, with all parts sorted by id."""

    cpus: tuple[Cpu, ...]
    numa_nodes: tuple[NumaNode, ...]
    offline: CpuSet
    """The CPUs that are present and offline."""
    isolated: CpuSet
    smt: bool
    """Some core runs two threads or more."""
    smt_control: str | None = None
    """The content of the kernel's file smt/control (`on`, `off`, `forceoff`, ...), None without
    that file."""

    @property
    def online(self) -> CpuSet:
        return CpuSet(cpu.id for cpu in self.cpus)
