"""Sockets, NUMA nodes, dies and L3 caches as a tree of named CPU sets.

Usually sockets contain NUMA nodes. A NUMA node that contains several whole sockets contains them in
the tree. A NUMA node with some CPUs of several sockets appears in each of them, as a part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from agent.model.cpu.cpuset import CpuSet, union
from agent.model.cpu.topology import NumaNode, Topology
from agent.view.format import count, size


class Part(msgspec.Struct, frozen=True):
    """A named CPU set."""

    noun: str
    title: str
    cpus: CpuSet
    parts: tuple[Part, ...] = ()
    """Its division, empty if it is not divided."""
    notes: tuple[str, ...] = ()


def parts(topology: Topology) -> list[Part]:
    """The outermost parts, which together contain all online CPUs."""
    return list(_Nesting(topology).outermost())


def has_private_l3(topology: Topology) -> bool:
    caches = {cpu.l3 for cpu in topology.cpus if cpu.l3 is not None}
    cores = {cpu.core for cpu in topology.cpus}
    return len(caches) == len(cores) > 1


def memory(node: NumaNode) -> str:
    """The size of a node's memory."""
    return size(node.memory_bytes) if node.memory_bytes else "no memory"


def pages(node: NumaNode) -> str:
    """The hugepage pools with pages, "" for none."""
    return ", ".join(
        f"{count(pool.total, 'page')} of {size(pool.size_bytes)} ({pool.free} free)"
        for pool in node.hugepages
        if pool.total
    )


class _Nesting:
    """The tree of one machine."""

    def __init__(self, topology: Topology) -> None:
        self.nodes = [node for node in topology.numa_nodes if node.cpus]
        self.home = {cpu.id: cpu.node for cpu in topology.cpus}
        """The NUMA node of each CPU."""
        sockets: dict[int, list[int]] = {}
        dies: dict[tuple[int, int | None], list[int]] = {}
        caches: dict[int, list[int]] = {}
        for cpu in topology.cpus:
            sockets.setdefault(cpu.socket, []).append(cpu.id)
            dies.setdefault((cpu.socket, cpu.die), []).append(cpu.id)
            if cpu.l3 is not None:
                caches.setdefault(cpu.l3, []).append(cpu.id)
        self.sockets = {socket: CpuSet(cpus) for socket, cpus in sorted(sockets.items())}
        several = len(dies) > len(sockets)
        self.dies = (
            {CpuSet(cpus): f"die {die}" for (_, die), cpus in dies.items()} if several else {}
        )
        """Their names, empty if no socket has several."""
        private = has_private_l3(topology)
        self.caches = [] if private else [CpuSet(cpus) for cpus in caches.values()]
        """The CPUs of each L3 cache, empty if every core has its own."""

    def outermost(self) -> Iterator[Part]:
        drawn: set[int] = set()
        for socket, cpus in self.sockets.items():
            if socket in drawn:
                continue
            across = [node for node in self.nodes if node.cpus & cpus and not node.cpus <= cpus]
            if len(across) == 1 and cpus <= across[0].cpus:
                node = across[0]
                inside = {name: each for name, each in self.sockets.items() if each <= node.cpus}
                if union(inside.values()) == node.cpus:
                    drawn.update(inside)
                    yield self._node(node, inside)
                    continue
            yield self._socket(socket, cpus)

    def _node(self, node: NumaNode, sockets: Mapping[int, CpuSet]) -> Part:
        inner = [
            self._divided("socket", f"Socket {socket}", cpus, ())
            for socket, cpus in sockets.items()
        ]
        return _joined("NUMA node", _title(node), node.cpus, inner, _notes(node))

    def _socket(self, socket: int, cpus: CpuSet) -> Part:
        inner = []
        for node in self.nodes:
            members = node.cpus & cpus
            if members:
                cut = "" if members == node.cpus else " (part)"
                inner.append(self._divided("NUMA node", _title(node) + cut, members, _notes(node)))
        without_node = cpus - union(node.cpus for node in self.nodes)
        for home in sorted({self.home[cpu] for cpu in without_node}):
            members = CpuSet(cpu for cpu in without_node if self.home[cpu] == home)
            inner.append(self._divided("NUMA node", f"NUMA node {home}, offline", members, ()))
        return _joined("socket", f"Socket {socket}", cpus, inner, ())

    def _divided(self, noun: str, title: str, cpus: CpuSet, notes: tuple[str, ...]) -> Part:
        inner = []
        rest = cpus
        while rest:
            first = CpuSet.from_int(rest.mask & -rest.mask)
            members = rest
            names = []
            for die, name in self.dies.items():
                if first <= die and not cpus <= die:
                    members &= die
                    names.append(name)
            cache = next((cache_cpus for cache_cpus in self.caches if first <= cache_cpus), None)
            if cache is not None:
                members &= cache
                names.append("L3" if cache <= cpus else "shared L3")
            elif self.caches:
                members -= union(self.caches)
                names.append("no L3")
            rest -= members
            inner.append(Part("cache group", " · ".join(names), members))
        return _joined(noun, title, cpus, inner, notes)


def _joined(
    noun: str, title: str, cpus: CpuSet, inner: Sequence[Part], notes: tuple[str, ...]
) -> Part:
    """A part that contains others; a single one is merged into it."""
    if len(inner) != 1:
        return Part(noun, title, cpus, tuple(inner), notes)
    only = inner[0]
    whole = f"{title} · {only.title}" if only.title else title
    return Part(noun, whole, cpus, only.parts, notes + only.notes)


def _title(node: NumaNode) -> str:
    return f"NUMA node {node.id} · {memory(node)}"


def _notes(node: NumaNode) -> tuple[str, ...]:
    return tuple(line for line in (pages(node),) if line)
