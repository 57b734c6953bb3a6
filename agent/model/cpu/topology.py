"""The machine as values: CPUs, cores, caches, dies, sockets, NUMA nodes."""

from __future__ import annotations

import msgspec

from agent.model.cpu.cpuset import CpuSet


class Cpu(msgspec.Struct, frozen=True):
    """One online logical CPU.

    `core` and `l3` are the lowest online CPU id that shares it, so they are unique on the machine;
    `die` (unique per socket), `socket` and `node` are the kernel's ids; a socket whose id is
    unknown or not unique has the lowest free number. `node` is in no list if the kernel has taken
    the CPU's node offline. `kind` names the core kind of a hybrid machine: Intel's `core`, `atom`
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
    """One online NUMA node; `cpus` holds online CPUs only and may be empty.

    `distances` follow the order of `Topology.numa_nodes` (SLIT: 10 is local), empty where the
    machine reports none.
    """

    id: int
    cpus: CpuSet
    memory_bytes: int
    distances: tuple[int, ...] = ()
    hugepages: tuple[HugePages, ...] = ()


class Topology(msgspec.Struct, frozen=True):
    """Everything sorted by id; equal machines compare equal.

    `offline`: CPUs that are plugged in and do not run. `smt`: some core runs two threads or more.
    `smt_control`: the kernel's value of the file of that name (`on`, `off`, `forceoff`, ...)."""

    cpus: tuple[Cpu, ...]
    numa_nodes: tuple[NumaNode, ...]
    offline: CpuSet
    isolated: CpuSet
    smt: bool
    smt_control: str | None = None

    @property
    def online(self) -> CpuSet:
        return CpuSet(cpu.id for cpu in self.cpus)
