"""The CPUs of a machine as bit masks, the form in which all decisions about CPUs are computed.

`Layout` is computed once for a machine; `CpuRefCounts` counts the pods that hold each CPU.

A core is identified by its lead, its lowest CPU, and a set of cores is a mask of leads. All cores
whose threads have the same offsets from their lead form one stride. Their free threads are counted
together, by a few shifts of the whole mask.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from agent.model.cpu.cpuset import members
from agent.model.cpu.policies import ExclusivePolicy
from agent.model.cpu.topology import Cpu, Topology


class Area(msgspec.Struct, frozen=True):
    """A NUMA node, a socket or an L3 cache: its id and the mask of its CPUs; `around`: the CPUs of
    the sockets that it is in."""

    id: int
    cpus: int
    around: int


class Cell(msgspec.Struct, frozen=True):
    """The CPUs that a socket and a NUMA node have in common; both are indexes of the layout's
    tuples."""

    socket: int
    node: int
    cpus: int


class Section(msgspec.Struct, frozen=True):
    """A socket with its NUMA nodes, or a NUMA node with its sockets: `parts`, sorted by id."""

    id: int
    cpus: int
    parts: tuple[Area, ...]


class Stride(msgspec.Struct, frozen=True):
    """Cores of the same form: their leads, and the offsets of their threads from the lead (the
    first is 0)."""

    leads: int
    offsets: tuple[int, ...]


class Layout(msgspec.Struct, frozen=True):
    """All areas sorted by id; those without CPUs are left out.

    `threads`: the most threads that a core has. The id of a cache is its lowest CPU; CPUs of
    unknown L3 share one cache per socket, as the kubelet assumes. A NUMA node may span sockets.
    `cells` are in the order of sockets, then nodes. `sizes`: leads by the threads of their cores,
    most first. `sections` are the larger areas: NUMA nodes if `nodes_first` (there are at least as
    many sockets as nodes), else sockets. The kubelet fills machines in that order.
    """

    cpus: int
    leads: int
    threads: int
    strides: tuple[Stride, ...]
    nodes: tuple[Area, ...]
    sockets: tuple[Area, ...]
    caches: tuple[Area, ...]
    cells: tuple[Cell, ...]
    sizes: tuple[tuple[int, int], ...]
    sections: tuple[Section, ...]
    nodes_first: bool

    @property
    def forms(self) -> int:
        """The number of threads of all forms of cores: few, unless cores are numbered at random."""
        return sum(len(each.offsets) for each in self.strides)

    def at_least(self, cpus: int) -> list[int]:
        """By n from 1 to `threads`: the leads of the cores that have at least n of these CPUs."""
        counts = [0] * self.threads
        for stride in self.strides:
            held = [0] * len(stride.offsets)
            for offset in stride.offsets:
                present = cpus >> offset & stride.leads
                for index in range(len(held) - 1, 0, -1):
                    held[index] |= held[index - 1] & present
                held[0] |= present
            for index, leads in enumerate(held):
                counts[index] |= leads
        return counts

    def whole(self, cpus: int) -> int:
        """Leads of the cores all of whose threads are among these CPUs."""
        leads = 0
        for stride in self.strides:
            complete = stride.leads
            for offset in stride.offsets:
                complete &= cpus >> offset
            leads |= complete
        return leads

    def touched(self, cpus: int) -> int:
        """Leads of the cores that have any of these CPUs."""
        leads = 0
        for stride in self.strides:
            for offset in stride.offsets:
                leads |= cpus >> offset & stride.leads
        return leads

    def firsts(self, cpus: int) -> int:
        """The lowest of these CPUs on each core."""
        found = 0
        for stride in self.strides:
            left = stride.leads
            for offset in stride.offsets:
                present = cpus >> offset & left
                found |= present << offset
                left ^= present
        return found

    def expand(self, leads: int) -> int:
        """All threads of these cores."""
        cpus = 0
        for stride in self.strides:
            mine = leads & stride.leads
            for offset in stride.offsets:
                cpus |= mine << offset
        return cpus

    def node_ids(self, cpus: int) -> tuple[int, ...]:
        """Ids of the NUMA nodes that have any of these CPUs, ascending."""
        return tuple(node.id for node in self.nodes if node.cpus & cpus)

    def socket_of(self, node_id: int) -> int:
        """The socket with the lowest CPU of this NUMA node; 0 for an unknown node."""
        first = self.of_nodes((node_id,)) & -self.of_nodes((node_id,))
        return next((each.id for each in self.sockets if each.cpus & first), 0)

    def of_nodes(self, ids: Iterable[int]) -> int:
        """The CPUs of these NUMA nodes; unknown ids have none."""
        wanted = set(ids)
        cpus = 0
        for node in self.nodes:
            if node.id in wanted:
                cpus |= node.cpus
        return cpus


def of(cpus: Iterable[Cpu]) -> Layout:
    """The layout of these CPUs alone: a core that has an offline thread has fewer threads."""
    cores: dict[int, int] = {}
    nodes: dict[int, int] = {}
    sockets: dict[int, int] = {}
    caches: dict[tuple[bool, int], int] = {}
    for cpu in cpus:
        bit = 1 << cpu.id
        cores[cpu.core] = cores.get(cpu.core, 0) | bit
        nodes[cpu.node] = nodes.get(cpu.node, 0) | bit
        sockets[cpu.socket] = sockets.get(cpu.socket, 0) | bit
        cache = (False, cpu.socket) if cpu.l3 is None else (True, cpu.l3)
        caches[cache] = caches.get(cache, 0) | bit
    strides: dict[tuple[int, ...], int] = {}
    for core in cores.values():
        first = _low(core)
        offsets = tuple(cpu - first for cpu in members(core))
        strides[offsets] = strides.get(offsets, 0) | 1 << first
    ordered = sorted(strides.items())
    leads = sum(mask for _, mask in ordered)
    sizes: dict[int, int] = {}
    for offsets, mask in ordered:
        sizes[len(offsets)] = sizes.get(len(offsets), 0) | mask
    by_socket = _areas(sockets.items(), sockets)
    by_node = _areas(nodes.items(), sockets)
    nodes_first = len(by_socket) >= len(by_node)
    outer, inner = (by_node, by_socket) if nodes_first else (by_socket, by_node)
    return Layout(
        cpus=sum(cores.values()),
        leads=leads,
        threads=max(sizes, default=_NO_THREADS),
        strides=tuple(Stride(mask, offsets) for offsets, mask in ordered),
        nodes=by_node,
        sockets=by_socket,
        caches=_areas(((_low(mask), mask) for mask in caches.values()), sockets),
        cells=tuple(
            Cell(i, k, socket.cpus & node.cpus)
            for i, socket in enumerate(by_socket)
            for k, node in enumerate(by_node)
            if socket.cpus & node.cpus
        ),
        sizes=tuple(sorted(sizes.items(), reverse=True)),
        sections=tuple(
            Section(area.id, area.cpus, tuple(part for part in inner if part.cpus & area.cpus))
            for area in outer
        ),
        nodes_first=nodes_first,
    )


def of_topology(topology: Topology) -> Layout:
    """The layout of the online CPUs."""
    return of(topology.cpus)


_NO_THREADS: Final = 1


def _areas(masks: Iterable[tuple[int, int]], sockets: dict[int, int]) -> tuple[Area, ...]:
    return tuple(
        Area(key, mask, sum(socket for socket in sockets.values() if socket & mask))
        for key, mask in sorted(masks)
    )


def _low(mask: int) -> int:
    return (mask & -mask).bit_length() - 1


class CpuRefCounts(msgspec.Struct, frozen=True):
    """How many pods hold each CPU, in all (`held`) and with each exclusive policy.

    Each field is a tuple of masks, none of them empty. Mask k has the CPUs that more than k pods
    hold, so a few bit operations add or remove a pod. A CPU of several pods is exclusive at a level
    while any of these pods has that policy, so the result does not depend on the order of the pods.
    """

    held: tuple[int, ...] = ()
    core_exclusive: tuple[int, ...] = ()
    node_exclusive: tuple[int, ...] = ()

    def adding(
        self, cpus: int, exclusive: ExclusivePolicy = ExclusivePolicy.NONE, times: int = 1
    ) -> CpuRefCounts:
        """The counts with one more pod, or with `times` equal pods, on these CPUs."""
        new = self
        for _ in range(times):
            new = CpuRefCounts(
                _more(new.held, cpus),
                _more(new.core_exclusive, cpus if exclusive is _CORE else 0),
                _more(new.node_exclusive, cpus if exclusive is _NODE else 0),
            )
        return new

    def removing(
        self, cpus: int, exclusive: ExclusivePolicy = ExclusivePolicy.NONE
    ) -> CpuRefCounts:
        """The reverse of `adding`. Raises ValueError if no such pod holds one of the CPUs."""
        return CpuRefCounts(
            _fewer(self.held, cpus),
            _fewer(self.core_exclusive, cpus if exclusive is _CORE else 0),
            _fewer(self.node_exclusive, cpus if exclusive is _NODE else 0),
        )

    def full(self, max_ref: int) -> int:
        """The CPUs that no further pod may take if `max_ref` pods may share one. Raises ValueError
        if `max_ref` is less than 1."""
        if max_ref < 1:
            raise ValueError(f"max_ref: {max_ref} pods cannot share a CPU")
        return self.held[max_ref - 1] if len(self.held) >= max_ref else 0


NOTHING_HELD: Final = CpuRefCounts()
_CORE: Final = ExclusivePolicy.PCPU_LEVEL
_NODE: Final = ExclusivePolicy.NUMA_NODE_LEVEL


def _more(levels: tuple[int, ...], cpus: int) -> tuple[int, ...]:
    if not cpus:
        return levels
    raised = []
    for level in levels:
        raised.append(level | cpus)
        cpus &= level
    return (*raised, cpus) if cpus else tuple(raised)


def _fewer(levels: tuple[int, ...], cpus: int) -> tuple[int, ...]:
    lowered = []
    for level in reversed(levels):
        lowered.append(level & ~cpus)
        cpus &= ~level
    if cpus:
        raise ValueError(f"CPU mask {cpus:#x} is not held")
    return tuple(level for level in reversed(lowered) if level)
