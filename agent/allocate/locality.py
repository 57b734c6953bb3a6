"""Which NUMA nodes a container with devices runs on, if it owns no CPUs: those of its devices.

**Near.** The near NUMA nodes of a container are the smallest set that has one NUMA node of each of
its devices; of several such sets all count. A NUMA node without CPUs (HBM, CXL, the memory of a
GPU) is replaced by the nearest ones with CPUs; of equally near ones by those of one socket, as
KEP-6072 defines the NUMA node of a DRA device. Pods that share a card have the same near nodes.

**Enough CPUs.** The containers take their places one after the other: first those whose policy is
`require`, for which the scheduler has found room, then the others, the older ones first. A
container gets its near nodes if its pool has CPUs there, and if these suffice for the CPU requests
of all containers that have no other place. Otherwise it gets the next nodes by distance too. So the
newest containers widen first.

**Stability.** A container that has widened returns to nearer nodes only when the requests there
fill no more than four fifths of the CPUs. A container that moved a short time ago (the caller says
how short) keeps its place, whatever the requests are, while its pool has a CPU there.

**Memory.** A container touches its memory first on the CPUs of its place, so that the memory is
there too. Under `bind` it gets memory of no other NUMA node, if what all such containers may use
there fits.

No container is refused for its place.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Set
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
    """The time at which its pod was created, in nanoseconds since 1970."""
    bound: bool = False
    """Its policy is `bind`."""
    memory_bytes: int = 0
    """Its memory limit, 0 without one."""
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
    """The container runs on no others than `near` if this is None."""
    memory: CpuSet | None = None
    """The NUMA nodes that its memory comes from; None for any."""
    unbound: str = ""
    """Why its memory is not bound; "" if it is, or if its policy does not bind it."""
    cpu_milli: int = 0
    """Its CPU request, which counts on `nodes`."""

    def problem(self, container_name: str) -> str:
        """What is not as its policy says, for the log and Events; "" for nothing."""
        problems = []
        if self.far is not None:
            problems.append(
                f"runs on NUMA nodes {self.nodes}, and its devices are near {self.near}: {self.far}"
            )
        if self.unbound:
            problems.append(f"has memory of any NUMA node: {self.unbound}")
        return f"container {container_name} {' and '.join(problems)}" if problems else ""


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
        self._near: dict[frozenset[CpuSet], CpuSet] = {}

    def nearest(self, node: int) -> CpuSet:
        """The node itself if it has CPUs, else the nearest ones of one socket that have. Empty if
        the machine has no such node, or reports no distances from it."""
        if node in self.with_cpus:
            return CpuSet((node,))
        distances = {
            other: distance
            for other in self.with_cpus
            if (distance := self._distance(node, other)) is not None
        }
        if not distances:
            return CpuSet()
        least = min(distances.values())
        nearest = [other for other, distance in distances.items() if distance == least]
        socket = self._socket_of[nearest[0]]
        return CpuSet(other for other in nearest if self._socket_of[other] == socket)

    def near(self, devices: tuple[CpuSet, ...]) -> CpuSet:
        """The near NUMA nodes of devices with these NUMA nodes each; a device without one does not
        count. Empty if no device has a NUMA node with CPUs near to it."""
        distinct = frozenset(devices)
        if distinct not in self._near:
            self._near[distinct] = self._smallest(distinct)
        return self._near[distinct]

    def _smallest(self, devices: frozenset[CpuSet]) -> CpuSet:
        choices = {
            choice
            for nodes in devices
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
    distances: Distances,
    pool: Mapping[int, CpuSet],
    wanted: LocalityInput,
    memory_bytes: Mapping[int, int],
) -> dict[Key, NearNodes]:
    """The places of containers that share one pool.

    `pool`: the CPUs of the pool by NUMA node; without any, no container has a place.
    `memory_bytes`: by NUMA node."""
    load = Load({node: 1000 * len(cpus) for node, cpus in pool.items()})
    usable: dict[CpuSet, list[CpuSet]] = {}
    memory_load = Load(memory_bytes)
    if not load.nodes:
        return {}
    decided = {}
    for container in sorted(wanted.containers, key=_order):
        near = container.near
        if near not in usable:
            usable[near] = [level for level in distances.levels(near) if level & load.nodes]
        nodes = _place(container, usable[near], wanted, load)
        load.add(nodes, container.cpu_milli)
        reason = FarReason.REQUESTS if near & load.nodes else FarReason.NO_CPUS
        far = None if nodes <= near else reason
        place = NearNodes(nodes, near, far, cpu_milli=container.cpu_milli)
        if container.bound:
            place = _with_memory(container, place, memory_load)
        decided[container.key] = place
    return decided


def _with_memory(container: NearContainer, place: NearNodes, load: Load) -> NearNodes:
    """The place with bound memory, or with the reason why it is not bound."""
    nodes = place.nodes & load.nodes
    if not container.memory_bytes:
        unbound = "it has no memory limit"
    elif not nodes:
        unbound = f"NUMA nodes {place.nodes} have no memory"
    elif not load.fits(nodes, container.memory_bytes, 10):
        unbound = f"containers that are bound to NUMA nodes {nodes} may use more than these have"
    else:
        load.add(nodes, container.memory_bytes)
        return msgspec.structs.replace(place, memory=nodes)
    return msgspec.structs.replace(place, unbound=unbound)


def _order(container: NearContainer) -> tuple[bool, int, str, str]:
    return not container.required, container.created_at, container.uid, container.name


def _place(
    container: NearContainer, usable: list[CpuSet], wanted: LocalityInput, load: Load
) -> CpuSet:
    before = wanted.before.get(container.key)
    if before in usable and container.key in wanted.resting:
        return before
    for level in usable:
        tenths = 10 if before is None or before <= level else _RETURN_TENTHS
        if load.fits(level, container.cpu_milli, tenths):
            return level
    return usable[-1]


class Load:
    """The amounts of one resource, milli-CPU or bytes, that containers have on NUMA nodes. Its
    tables have NUMA nodes as masks: a node with hundreds of containers asks thousands of times."""

    def __init__(self, room: Mapping[int, int]) -> None:
        """`room`: what there is of it on each NUMA node."""
        self._room = room
        self._taken: dict[int, int] = {}
        self._room_on: dict[int, int] = {}
        self.nodes = CpuSet(node for node, amount in room.items() if amount)

    def add(self, nodes: CpuSet, amount: int) -> None:
        self._taken[nodes.mask] = self._taken.get(nodes.mask, 0) + amount

    def fits(self, nodes: CpuSet, amount: int, tenths: int) -> bool:
        """Whether one more container fits on these NUMA nodes, and on all sets that contain them,
        into this many tenths of the room."""
        left = self.left(nodes, tenths)
        return left is None or amount <= left

    def left(self, nodes: CpuSet, tenths: int = 10) -> int | None:
        """How large one more container may be to fit so, below 0 if there is too much already; None
        for any size. All nodes together do not count: more than there is can be requested, and no
        other place would help."""
        whole, taken = self.nodes.mask, self._taken
        least = None
        for wider in {nodes.mask, *taken}:
            if nodes.mask & ~wider or not whole & ~wider:
                continue
            on_wider = sum(each for part, each in taken.items() if not part & ~wider)
            left = self._room_of(wider) * tenths // 10 - on_wider
            least = left if least is None else min(least, left)
        return least

    def _room_of(self, mask: int) -> int:
        if mask not in self._room_on:
            nodes = CpuSet.from_int(mask)
            self._room_on[mask] = sum(
                amount for node, amount in self._room.items() if node in nodes
            )
        return self._room_on[mask]
