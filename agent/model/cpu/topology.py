"""The machine as values: CPUs, cores, caches, dies, sockets, NUMA nodes."""

from __future__ import annotations

import msgspec

from agent.model.cpu.cpuset import CpuSet


class Cpu(msgspec.Struct, frozen=True):
    """One online logical CPU.

    `core` and `l3`: the lowest online CPU of the core and of the L3 cache, so they are unique on
    the machine. `die` (unique per socket), `socket` and `node` are the kernel's ids; a socket whose
    id is unknown or not unique has the lowest free number. If the kernel has taken the CPU's node
    offline, `node` is in no list. `kind`: the core kind of a hybrid machine, Intel's `core`, `atom`
    and `lowpower`, else `capacity-N` relative to 1024.
    """

    id: int
    core: int
    l3: int | None
    die: int | None
    socket: int
    node: int
    kind: str | None = None


class HugePages(msgspec.Struct, frozen=True):
    """The pool of one page size on one NUMA node."""

    size_bytes: int
    total: int
    free: int


class NumaNode(msgspec.Struct, frozen=True):
    """An online NUMA node. `cpus`: its online CPUs; may be empty.

    `distances`: in the order of `Topology.numa_nodes` (SLIT: 10 is local), empty if the machine
    reports none.
    """

    id: int
    cpus: CpuSet
    memory_bytes: int
    distances: tuple[int, ...] = ()
    hugepages: tuple[HugePages, ...] = ()


class Topology(msgspec.Struct, frozen=True):
    """The machine, with all parts sorted by id.

    `offline`: CPUs that are present and offline. `smt`: some core runs two threads or more.
    `smt_control`: the content of the kernel's file smt/control (`on`, `off`, `forceoff`, ...)."""

    cpus: tuple[Cpu, ...]
    numa_nodes: tuple[NumaNode, ...]
    offline: CpuSet
    isolated: CpuSet
    smt: bool
    smt_control: str | None = None

    @property
    def online(self) -> CpuSet:
        return CpuSet(cpu.id for cpu in self.cpus)
