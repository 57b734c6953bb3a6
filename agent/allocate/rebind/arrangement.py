"""The bound pods of a node with their places: as the input of a plan, and while a plan is searched,
with the CPUs in use, the places that a moved pod may take, and the measures of the node.

A place is an int: the mask of the CPUs of a pod that owns CPUs, or the mask of the ids of the NUMA
nodes of a pod that shares CPUs. It is allowed if it has no more NUMA nodes and no more broken cores
than the pod had before; if on each of its NUMA nodes the pods together have at most the room there,
or what they had before; and if it has no core (PCPULevel) or NUMA node (NUMANodeLevel) of another
pod with the same exclusive policy. A pod that shares CPUs moves to a single NUMA node.
`lower_bound` tells whether better places can exist.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final, TypeAlias

import msgspec

from agent.model.cpu.cpuset import members
from agent.model.cpu.layout import Layout
from agent.model.cpu.policies import ExclusivePolicy


class PlacedPod(msgspec.Struct, frozen=True):
    """A bound pod and its place."""

    uid: str
    title: str
    place: int
    """See the module."""
    cpu_milli: Mapping[int, int] | None = None
    """The amount that a pod that shares CPUs has on each of its NUMA nodes, by id; None for a pod
    that owns CPUs."""
    spread: bool = False
    """Its policy is SpreadByPCPUs."""
    exclusive: ExclusivePolicy = ExclusivePolicy.NONE
    memory: Mapping[int, Mapping[str, int]] = {}
    """The amounts of a pod whose memory follows its place, by NUMA node and resource."""
    near: frozenset[int] | None = None
    """The ids of the NUMA nodes that it may not leave, None for any."""
    fixed: str = ""
    """Why it is never moved, empty if it may be."""

    @property
    def owner(self) -> bool:
        return self.cpu_milli is None

    @property
    def memory_total(self) -> dict[str, int]:
        """The memory of the whole pod, by resource."""
        total: dict[str, int] = {}
        for amounts in self.memory.values():
            for name, amount in amounts.items():
                total[name] = total.get(name, 0) + amount
        return total


class PlacedNode(msgspec.Struct, frozen=True):
    """A node with its bound pods."""

    layout: Layout
    assignable: int
    """A mask of the CPUs that a pod may own."""
    pods: tuple[PlacedPod, ...]
    rooms: Mapping[int, Mapping[str, int]] = {}
    """By NUMA node and resource, the most that all bound pods together may have; an absent resource
    has no limit."""
    cpu_cost_milli: int = 1000
    """The milli-CPU of a room that an owned CPU uses, more than 1000 on an amplified node."""
    most_owned: Mapping[int, int] = {}
    """By NUMA node whose pool must not shrink, the most CPUs that pods may own."""


class Measures(msgspec.Struct, frozen=True, order=True):
    """How well pods are placed; smaller is better, the first field counts first."""

    numa_crossings: int
    """The NUMA nodes of pods in excess of the fewest that could hold each pod."""
    broken_cores: int
    """The cores of pods in excess of the fewest; under SpreadByPCPUs, the CPUs on a core with
    another CPU of the same pod."""
    used_cores: int
    """The cores that no new pod can have as a whole."""
    used_numa_nodes: int
    """The NUMA nodes with a bound pod."""

    def no_worse_than(self, other: Measures) -> bool:
        """Whether no measure is worse."""
        pairs = zip(msgspec.structs.astuple(self), msgspec.structs.astuple(other), strict=True)
        return all(value <= of_other for value, of_other in pairs)


_CPU: Final = "cpu"
_OWNED: Final = "owned"

Demand: TypeAlias = dict[tuple[int, str], int]
"""By NUMA node and resource."""


class Arrangement:
    """Pods are named by their index in the pods of the node. `places[i]` is 0 while pod i is
    removed."""

    def __init__(self, node: PlacedNode) -> None:
        self.node = node
        self.layout = node.layout
        self.pods = node.pods
        self.places = [pod.place for pod in node.pods]
        self.areas = {area.id: area.cpus for area in node.layout.nodes}
        self.held = 0
        self._sizes = sorted(
            ((cpus & node.assignable).bit_count() for cpus in self.areas.values()), reverse=True
        )
        rooms = [room[_CPU] for room in node.rooms.values() if _CPU in room]
        self._shared_sizes = sorted(rooms, reverse=True)
        self._memory = [pod.memory_total for pod in self.pods]
        self._milli = [sum((pod.cpu_milli or {}).values()) for pod in self.pods]
        self._counts = [pod.place.bit_count() if pod.owner else 0 for pod in self.pods]
        self._sharers: Counter[int] = Counter()
        self._shared = 0
        self._demands: dict[tuple[int, int], Demand] = {}
        self._used: Counter[tuple[int, str]] = Counter()
        self._misfits: dict[tuple[int, int], tuple[int, int]] = {}
        self._exclusive: dict[ExclusivePolicy, int] = {}
        self._crossings = 0
        self._broken = 0
        for index, pod in enumerate(self.pods):
            self.places[index] = 0
            self.put(index, pod.place)
        self.before = self.measures()
        self._limits = self._room_limits()

    def _room_limits(self) -> Demand:
        limits = dict(self._used)
        for id_ in self.areas:
            room = self.node.rooms.get(id_, {})
            for name, amount in room.items():
                limits[id_, name] = max(amount, limits.get((id_, name), 0))
            if id_ in self.node.most_owned:
                most = self.node.most_owned[id_]
                limits[id_, _OWNED] = max(most, limits.get((id_, _OWNED), 0))
            else:
                limits.pop((id_, _OWNED), None)
            for name in {name for at, name in limits if at == id_} - room.keys() - {_OWNED}:
                del limits[id_, name]
        return limits

    def movable(self, index: int) -> bool:
        return not self.pods[index].fixed

    def moved(self) -> list[int]:
        """The pods that are not where they were."""
        return [i for i, pod in enumerate(self.pods) if self.places[i] != pod.place]

    def misfit(self, index: int, place: int) -> tuple[int, int]:
        """The crossings and broken cores of the pod in this place."""
        if not place:
            return 0, 0
        known = self._misfits.get((index, place))
        if known is None:
            known = self._misfits[index, place] = self._misfit(index, place)
        return known

    def _misfit(self, index: int, place: int) -> tuple[int, int]:
        pod = self.pods[index]
        if not pod.owner:
            fewest = _fewest(self._shared_sizes, self._milli[index])
            return max(0, place.bit_count() - fewest), 0
        count = place.bit_count()
        nodes = sum(1 for cpus in self.areas.values() if cpus & place)
        cores = self.layout.touched(place).bit_count()
        broken = count - cores if pod.spread else cores + -count // self.layout.threads
        return max(0, nodes - _fewest(self._sizes, count)), broken

    def wanted(self, index: int) -> int:
        """The CPUs that the pod requests, 0 if it shares CPUs."""
        return self._counts[index]

    def reach(self, index: int) -> int:
        """Mask of the CPUs that the pod may have: those of its NUMA nodes if it can't leave
        them."""
        near = self.pods[index].near
        cpus = self.node.assignable
        return cpus if near is None else cpus & self.layout.of_nodes(near)

    def remove(self, index: int) -> None:
        self._change(index, self.places[index], -1)
        self.places[index] = 0

    def put(self, index: int, place: int) -> None:
        self.places[index] = place
        self._change(index, place, 1)

    def _change(self, index: int, place: int, sign: int) -> None:
        pod = self.pods[index]
        crossings, broken = self.misfit(index, place)
        self._crossings += sign * crossings
        self._broken += sign * broken
        for at, amount in self._demand(index, place).items():
            self._used[at] += sign * amount
        if pod.owner:
            # Pods that hold the same CPU are never moved, so this clears no other pod's CPU.
            self.held = self.held | place if sign > 0 else self.held & ~place
        else:
            for id_ in members(place):
                self._sharers[id_] += sign
                if self._sharers[id_]:
                    self._shared |= 1 << id_
                else:
                    self._shared &= ~(1 << id_)

    def _demand(self, index: int, place: int) -> Demand:
        known = self._demands.get((index, place))
        if known is None:
            known = self._demands[index, place] = self._new_demand(index, place)
        return known

    def _new_demand(self, index: int, place: int) -> Demand:
        pod = self.pods[index]
        same = place == pod.place
        found: Demand = {}
        if not pod.owner:
            if same:
                found = {(id_, _CPU): milli for id_, milli in (pod.cpu_milli or {}).items()}
            else:
                found = {(id_, _CPU): self._milli[index] for id_ in members(place)}
        else:
            for id_, cpus in self.areas.items():
                if count := (cpus & place).bit_count():
                    found[id_, _OWNED] = count
                    found[id_, _CPU] = count * self.node.cpu_cost_milli
        if pod.memory:
            for id_, amounts in self.memory_at(index, place).items():
                for name, amount in amounts.items():
                    found[id_, name] = amount
        return found

    def memory_at(self, index: int, place: int) -> dict[int, dict[str, int]]:
        """The memory of the pod by NUMA node, in proportion to its CPUs there."""
        pod = self.pods[index]
        if place == pod.place:
            return {id_: dict(amounts) for id_, amounts in pod.memory.items()}
        if pod.owner:
            parts = {i: n for i, cpus in self.areas.items() if (n := (cpus & place).bit_count())}
        else:
            parts = dict.fromkeys(members(place), 1)
        found: dict[int, dict[str, int]] = {id_: {} for id_ in parts}
        for name, amount in self._memory[index].items():
            left = sum(parts.values())
            for id_, part in parts.items():
                share = amount * part // left
                amount, left = amount - share, left - part
                found[id_][name] = share
        return found

    def measures(self) -> Measures:
        return self._measures(self._crossings, self._broken, self.held, self._shared)

    def measures_with(self, index: int, place: int) -> Measures:
        """The measures if the pod, which is removed, had this place."""
        crossings, broken = self.misfit(index, place)
        crossings, broken = self._crossings + crossings, self._broken + broken
        if self.pods[index].owner:
            return self._measures(crossings, broken, self.held | place, self._shared)
        return self._measures(crossings, broken, self.held, self._shared | place)

    def _measures(self, crossings: int, broken: int, held: int, shared: int) -> Measures:
        whole = self.layout.whole(self.node.assignable & ~held)
        for id_, cpus in self.areas.items():
            if held & cpus:
                shared |= 1 << id_
        used = self.layout.leads.bit_count() - whole.bit_count()
        return Measures(crossings, broken, used, shared.bit_count())

    def allowed(self, index: int, place: int) -> bool:
        """Whether the pod, which is removed, may have this place; see the module."""
        pod = self.pods[index]
        stays = place == pod.place
        if not stays and not self._may_move(index, place):
            return False
        if pod.owner and place & (self.held | self.barred(index, by_moved=stays)):
            return False
        return all(
            at not in self._limits or self._used[at] + amount <= self._limits[at]
            for at, amount in self._demand(index, place).items()
        )

    def _may_move(self, index: int, place: int) -> bool:
        pod = self.pods[index]
        before, now = self.misfit(index, pod.place), self.misfit(index, place)
        if now[0] > before[0] or now[1] > before[1]:
            return False
        if pod.owner:
            return not place & ~self.reach(index)
        return pod.near is None or all(id_ in pod.near for id_ in members(place))

    def barred(self, index: int, *, by_moved: bool = False) -> int:
        """A mask of the cores or NUMA nodes that have another pod with the same exclusive policy.

        `by_moved`: only pods that are moved count."""
        policy = self.pods[index].exclusive
        if policy is ExclusivePolicy.NONE:
            return 0
        others = 0
        for other, pod in enumerate(self.pods):
            if pod.exclusive is policy and pod.owner and other != index:
                place = self.places[other]
                others |= 0 if by_moved and place == pod.place else place
        if policy is ExclusivePolicy.PCPU_LEVEL:
            return self.layout.expand(self.layout.touched(others))
        return sum(cpus for cpus in self.areas.values() if cpus & others)


def lower_bound(arrangement: Arrangement) -> Measures:
    """Measures that no places can improve. Each is a bound of its own; they may be impossible
    together."""
    layout = arrangement.layout
    fixed = [index for index in range(len(arrangement.pods)) if not arrangement.movable(index)]
    misfits = [arrangement.misfit(index, arrangement.pods[index].place) for index in fixed]
    assignable, held = arrangement.node.assignable, 0
    for index in fixed:
        held |= arrangement.pods[index].place if arrangement.pods[index].owner else 0
    owned = sum(arrangement.wanted(index) for index in range(len(arrangement.pods)))
    free = assignable.bit_count() - owned
    spots = layout.whole(assignable & ~held)
    whole = 0
    for threads, leads in reversed(layout.sizes):
        here = min((leads & spots).bit_count(), max(0, free) // threads)
        whole, free = whole + here, free - here * threads
    return Measures(
        sum(crossings for crossings, _ in misfits),
        sum(broken for _, broken in misfits),
        layout.leads.bit_count() - whole,
        _fewest_numa_nodes(arrangement, fixed, owned),
    )


def _fewest_numa_nodes(arrangement: Arrangement, fixed: list[int], owned: int) -> int:
    """The number of NUMA nodes that fixed pods have, and of the others that the CPUs of all pods
    need."""
    busy = 0
    for index in fixed:
        place = arrangement.pods[index].place
        if arrangement.pods[index].owner:
            busy |= sum(1 << id_ for id_ in arrangement.layout.node_ids(place))
        else:
            busy |= place
    sizes = {
        id_: (cpus & arrangement.node.assignable).bit_count()
        for id_, cpus in arrangement.areas.items()
    }
    left = owned - sum(sizes[id_] for id_ in members(busy) if id_ in sizes)
    count = busy.bit_count()
    for size in sorted((sizes[id_] for id_ in sizes if not busy >> id_ & 1), reverse=True):
        if left <= 0:
            break
        left -= size
        count += 1
    if not count and arrangement.pods:
        count = 1
    return count


def _fewest(sizes: list[int], need: int) -> int:
    """How many of the sizes, from the first one on, add up to the need; at least 1."""
    count = 0
    for size in sizes:
        count += 1
        need -= size
        if need <= 0:
            break
    return max(1, count)
