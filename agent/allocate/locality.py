"""Which NUMA nodes a container with devices runs on, if it owns no CPUs: those of its devices.

**Near.** The near NUMA nodes of a container are the smallest set that has one NUMA node of each of
its devices; of several such sets all count. A NUMA node without CPUs (HBM, CXL, the memory of a
GPU) is replaced by the nearest ones with CPUs; of equally near ones by those of one socket, as
KEP-6072 defines the NUMA node of a DRA device. Pods that share a card have the same near nodes.

**Enough CPUs.** The containers take their places one after the other: first those that require
their near nodes, then the older ones. A container gets its near nodes if its pool has CPUs there,
and if these suffice for the CPU requests of all containers that have no other place. Otherwise it
gets the next nodes by distance too. So the newest containers widen first.

**Stability.** A container that has widened returns to nearer nodes only when the requests there
fill no more than four fifths of the CPUs. A container that moved a short time ago (the caller says
how short) keeps its place, whatever the requests are, while its pool has a CPU there.

No container is refused for its place. One that requires its near nodes waits in the scheduler; if
another scheduler placed it where it does not fit, it widens as all others do.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping, Set
from itertools import combinations
from typing import Final

import msgspec

from agent.model.cpu.cpuset import CpuSet, union
from agent.model.cpu.topology import NumaNode, Topology

_RETURN_TENTHS: Final = 8
_MOST_CHOSEN: Final = 2
"""Devices that are near to several NUMA nodes each may have so many common ones at most; otherwise
all of their nodes are near."""

Key = tuple[str, str]
"""Pod uid and container name."""


class NearContainer(msgspec.Struct, frozen=True):
    """A container with devices."""

    uid: str
    name: str
    near: CpuSet
    """NUMA nodes with CPUs; not empty."""
    cpu_milli: int = 0
    """Its CPU request."""
    created_at: int = 0
    """Its pod's."""
    required: bool = False
    """Its policy is `require`."""

    @property
    def key(self) -> Key:
        return self.uid, self.name


class FarReason(enum.StrEnum):
    """Why a container runs on more NUMA nodes than its near ones."""

    NO_CPUS = "its pool has no CPU there"
    REQUESTS = "containers with devices there request more CPUs than its pool has there"


class NearNodes(msgspec.Struct, frozen=True):
    """The place of a container with devices."""

    nodes: CpuSet
    """The NUMA nodes that it runs on."""
    near: CpuSet
    far: FarReason | None = None
    """None if it runs on no others than `near`."""

    def text(self, container_name: str) -> str:
        """For the log and Events."""
        return (
            f"container {container_name} runs on NUMA nodes {self.nodes}, and its devices are near"
            f" {self.near}: {self.far}"
        )


class LocalityInput(msgspec.Struct, frozen=True):
    """The input of a decision about places."""

    containers: tuple[NearContainer, ...] = ()
    before: Mapping[Key, CpuSet] = {}
    """The NUMA nodes of the last decision."""
    resting: Set[Key] = frozenset()
    """The containers that moved a short time ago."""


class Distances:
    """The NUMA nodes with CPUs of a machine, by their distance from others."""

    def __init__(self, topology: Topology) -> None:
        self._nodes = {node.id: node for node in topology.numa_nodes}
        self._order = [node.id for node in topology.numa_nodes]
        self._socket_of = {cpu.node: cpu.socket for cpu in reversed(topology.cpus)}
        self.with_cpus = CpuSet(cpu.node for cpu in topology.cpus)
        self._levels: dict[int, tuple[CpuSet, ...]] = {}

    def nearest(self, node: int) -> CpuSet:
        """The node itself if it has CPUs, else the nearest ones of one socket that have. Empty if
        the machine has no such node, or reports no distances from it."""
        if node in self.with_cpus:
            return CpuSet((node,))
        far = {other: self._distance(node, other) for other in self.with_cpus}
        known = [distance for distance in far.values() if distance is not None]
        if not known:
            return CpuSet()
        nearest = [other for other in self.with_cpus if far[other] == min(known)]
        socket = self._socket_of[nearest[0]]
        return CpuSet(other for other in nearest if self._socket_of[other] == socket)

    def near(self, devices: Iterable[CpuSet]) -> CpuSet:
        """The near NUMA nodes of devices with these NUMA nodes each; a device without one does not
        count. Empty if no device has a NUMA node with CPUs near to it."""
        choices = {
            choice
            for nodes in set(devices)
            if (choice := union(self.nearest(node) for node in nodes if node in self._nodes))
        }
        single = union(choice for choice in choices if len(choice) == 1)
        open_choices = [choice for choice in choices if not choice & single]
        if not open_choices:
            return single
        candidates = union(open_choices)
        for count in range(1, _MOST_CHOSEN + 1):
            common = [
                chosen
                for nodes in combinations(candidates, count)
                if all(choice & (chosen := CpuSet(nodes)) for choice in open_choices)
            ]
            if common:
                return single | union(common)
        return single | candidates

    def levels(self, near: CpuSet) -> tuple[CpuSet, ...]:
        """`near`, and with the NUMA nodes of each further distance from it, up to all."""
        if near.mask not in self._levels:
            self._levels[near.mask] = tuple(self._widening(near))
        return self._levels[near.mask]

    def _widening(self, near: CpuSet) -> Iterator[CpuSet]:
        yield near
        by_distance: dict[int, list[int]] = {}
        unknown = []
        for other in self.with_cpus - near:
            distances = [d for node in near if (d := self._distance(node, other)) is not None]
            if distances:
                by_distance.setdefault(min(distances), []).append(other)
            else:
                unknown.append(other)
        nodes = near
        for _, others in sorted(by_distance.items()):
            nodes |= CpuSet(others)
            yield nodes
        if unknown:
            yield nodes | CpuSet(unknown)

    def _distance(self, node: int, other: int) -> int | None:
        of_node: NumaNode | None = self._nodes.get(node)
        if of_node is None or other not in self._nodes:
            return None
        place = self._order.index(other)
        return of_node.distances[place] if place < len(of_node.distances) else None


def places(
    distances: Distances, pool: Mapping[int, CpuSet], wanted: LocalityInput
) -> dict[Key, NearNodes]:
    """The places of containers that share one pool.

    `pool`: the CPUs of the pool by NUMA node; without any, no container has a place."""
    load = _Load({node: len(cpus) for node, cpus in pool.items()})
    if not load.nodes:
        return {}
    decided = {}
    for container in sorted(wanted.containers, key=_order):
        near = container.near
        nodes = _place(container, distances.levels(near), wanted, load)
        load.add(nodes, container.cpu_milli)
        reason = FarReason.REQUESTS if near & load.nodes else FarReason.NO_CPUS
        decided[container.key] = NearNodes(nodes, near, None if nodes <= near else reason)
    return decided


def _order(container: NearContainer) -> tuple[bool, int, str, str]:
    return not container.required, container.created_at, container.uid, container.name


def _place(
    container: NearContainer, levels: tuple[CpuSet, ...], wanted: LocalityInput, load: _Load
) -> CpuSet:
    usable = [level for level in levels if level & load.nodes]
    before = wanted.before.get(container.key)
    if before in usable and container.key in wanted.resting:
        return before
    for level in usable:
        tenths = 10 if before is None or before <= level else _RETURN_TENTHS
        if load.fits(level, container.cpu_milli, tenths):
            return level
    return usable[-1]


class _Load:
    """The CPU requests of containers by the NUMA nodes that they run on."""

    def __init__(self, cpus: Mapping[int, int]) -> None:
        """`cpus`: the number of the pool's CPUs by NUMA node."""
        self._cpus = cpus
        self._milli: dict[CpuSet, int] = {}
        self.nodes = CpuSet(node for node, count in cpus.items() if count)

    def add(self, nodes: CpuSet, cpu_milli: int) -> None:
        self._milli[nodes] = self._milli.get(nodes, 0) + cpu_milli

    def fits(self, nodes: CpuSet, cpu_milli: int, tenths: int) -> bool:
        """Whether one more container fits on these NUMA nodes, and on all sets that contain them,
        into this many tenths of the CPUs. The whole pool does not count: more than it has can be
        requested, and no other place would help."""
        return all(
            (self._requested(wider) + cpu_milli) * 10 <= self._room_milli(wider) * tenths
            for wider in {nodes, *self._milli}
            if nodes <= wider and not self.nodes <= wider
        )

    def _requested(self, nodes: CpuSet) -> int:
        return sum(milli for part, milli in self._milli.items() if part <= nodes)

    def _room_milli(self, nodes: CpuSet) -> int:
        return sum(1000 * count for node, count in self._cpus.items() if node in nodes)
