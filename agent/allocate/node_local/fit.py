"""How close CPUs are to each other; the best CPUs to take, to add and to release; and moves of
containers to better CPUs.

Narrow areas come first, as in the kubelet's NUMA hints (pkg/kubelet/cm/cpumanager/policy_static.go,
generateCPUTopologyHints): an L3 cache if the options count it, a NUMA node, a socket, the machine;
inside the area the kubelet's options choose. Among equal areas, one that breaks no whole core comes
first, then the fullest.

A container moves only to CPUs that are free before any move of the decision is made. A move to
better CPUs lowers the cost of one container and raises no other's. A container that makes room for
another does not get worse CPUs, and moves only if the next decision then lowers a cost or gives
CPUs to a container that has too few. So the number of moves is finite. After a move that makes room
no further move is planned in the same decision.

A container with devices prefers the NUMA nodes that the most of them are near to, whatever the cost
of the CPUs there. A container that has huge pages does not leave its NUMA nodes: its pages stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias

import msgspec

from agent.allocate.kubelet.cpu_assignment import NotEnoughCpusError, of_whole_cores, take_aligned
from agent.allocate.kubelet.static_policy import StaticOptions
from agent.allocate.node_local.claim import LocalRequest, Move, MoveReason, OwnedCpus
from agent.model.cpu.cpuset import CpuSet, lowest
from agent.model.cpu.layout import Area, Layout

_Cost: TypeAlias = tuple[int, int, int, int]

_TRIALS: Final = 24
"""The most containers that are tried in one decision to make room."""

_PlacedCost: TypeAlias = tuple[int, int, int, int, int]
_NO_COST: Final[_PlacedCost] = (0, 0, 0, 0, 0)


def device_areas(layout: Layout, claim: LocalRequest) -> list[int]:
    """The CPUs of the NUMA nodes that the most of the claim's devices are near to, then of those
    that fewer are near to as well; the last area is the machine."""
    counts = sorted({0, *claim.devices.values()}, reverse=True)[:-1]
    areas = (
        layout.of_nodes(node for node, near in claim.devices.items() if near >= count)
        for count in counts
    )
    return [*dict.fromkeys(area for area in areas if area), layout.cpus]


class CpuFit(msgspec.Struct, frozen=True):
    """Chooses CPUs, as masks. Its methods take the `free` ones, which may be taken."""

    layout: Layout
    options: StaticOptions

    def cost(self, cpus: int) -> _Cost:
        """Lower is better: NUMA nodes and sockets (in reverse order with align-by-socket), then
        caches or imbalance by the options, then cores with CPUs outside the set (or, to spread over
        cores, CPUs with a sibling in the set)."""
        layout, options = self.layout, self.options
        per_node = [held for node in layout.nodes if (held := (node.cpus & cpus).bit_count())]
        sockets = sum(1 for socket in layout.sockets if socket.cpus & cpus)
        middle = 0
        if options.distribute_cpus_across_numa and per_node:
            middle = max(per_node) - min(per_node)
        elif options.prefer_align_cpus_by_uncorecache:
            middle = sum(1 for cache in layout.caches if cache.cpus & cpus)
        cores = layout.touched(cpus).bit_count()
        if options.distribute_cpus_across_cores:
            last = cpus.bit_count() - cores
        else:
            last = cores - layout.whole(cpus).bit_count()
        if options.align_by_socket:
            return sockets, len(per_node), middle, last
        return len(per_node), sockets, middle, last

    @property
    def loose(self) -> CpuFit:
        """A fit without full-pcpus-only, for owned CPUs that are not whole cores."""
        return CpuFit(self.layout, msgspec.structs.replace(self.options, full_pcpus_only=False))

    def usable(self, free: int) -> int:
        """The CPUs that may be assigned: with full-pcpus-only those of whole cores."""
        return of_whole_cores(self.layout, free) if self.options.full_pcpus_only else free

    def best(self, free: int, count: int) -> int:
        """Exactly `count` of the free CPUs. Raises NotEnoughCpusError."""
        if not count:
            return 0
        usable = self.usable(free)
        if count >= usable.bit_count():
            if count > usable.bit_count():
                raise NotEnoughCpusError(count, usable.bit_count())
            return usable
        if self.options.distribute_cpus_across_numa:
            return take_aligned(self.layout, free, count, self.options)
        whole = self.layout.whole(free)
        found = []
        for area in self._areas(usable, count):
            inside = area & free
            try:
                cpus = take_aligned(self.layout, inside, count, self.options)
            except NotEnoughCpusError:
                continue
            key = self.cost(cpus), self._broken(whole, cpus), inside.bit_count(), cpus & -cpus
            found.append((key, cpus))
        if not found:
            raise NotEnoughCpusError(count, usable.bit_count())
        return min(found)[1]

    def grown(self, base: int, free: int, count: int) -> int:
        """`count` CPUs, `base` among them, the others free. Raises NotEnoughCpusError."""
        if not base:
            return self.best(free, count)
        free &= ~base
        missing = count - base.bit_count()
        siblings = self.layout.expand(self.layout.touched(base)) & free
        near = base | lowest(siblings, missing)
        starts = [near] if self.options.full_pcpus_only else [near, base]
        whole = self.layout.whole(free)
        found = []
        for rank, start in enumerate(starts):
            cpus = self._spilled(start, free & ~start, count)
            if self.usable(cpus) == cpus:
                found.append(((self.cost(cpus), self._broken(whole, cpus), rank), cpus))
        if not found:
            raise NotEnoughCpusError(count, (base | self.usable(free | base)).bit_count())
        return min(found)[1]

    def shrunk(self, base: int, count: int, original: int = 0) -> int:
        """`count` of the CPUs in `base`, preferably the `original` ones."""
        first = original & base
        try:
            if first.bit_count() > count:
                return self.best(first, count)
            return self.grown(first, base, count)
        except NotEnoughCpusError:
            return self.loose.best(base, count)

    def _areas(self, usable: int, count: int) -> Iterator[int]:
        """The areas to take `count` CPUs from: the narrow ones that have them, otherwise several
        NUMA nodes, in one socket and anywhere."""
        layout = self.layout
        tiers = [
            {cell.cpus for cell in layout.cells},
            {node.cpus for node in layout.nodes},
        ]
        if self.options.prefer_align_cpus_by_uncorecache:
            tiers.insert(0, {cache.cpus for cache in layout.caches})
        for tier in tiers:
            enough = [area for area in tier if (area & usable).bit_count() >= count]
            if enough:
                yield from enough
                return
        for socket in layout.sockets:
            if (socket.cpus & usable).bit_count() >= count:
                yield self._nodes(socket.cpus & usable, count)
        yield self._nodes(usable, count)
        yield usable

    def _nodes(self, usable: int, count: int) -> int:
        """The CPUs of the fewest NUMA nodes that have `count` of these CPUs; the last node is the
        smallest that is enough."""
        sizes = sorted(
            ((node.cpus & usable).bit_count(), -node.id, node.cpus & usable)
            for node in self.layout.nodes
        )
        taken = 0
        while sizes:
            last = next((size for size in sizes if size[0] >= count), None)
            if last is not None:
                return taken | last[2]
            size, _, cpus = sizes.pop()
            taken |= cpus
            count -= size
        return taken

    def _spilled(self, base: int, free: int, count: int) -> int:
        """The CPUs of `base`, and free CPUs close to it, farther away step by step.

        Raises NotEnoughCpusError."""
        layout = self.layout
        steps: tuple[tuple[Area, ...], ...] = (layout.nodes, layout.sockets)
        if self.options.prefer_align_cpus_by_uncorecache:
            steps = (layout.caches, *steps)
        taken = base
        for areas in steps:
            near = free & ~taken & sum({area.cpus for area in areas if area.cpus & base})
            part = min(count - taken.bit_count(), self.usable(near).bit_count())
            if part > 0:
                try:
                    taken |= self.best(near, part)
                except NotEnoughCpusError:
                    continue
        return taken | self.best(free & ~taken, count - taken.bit_count())

    def _broken(self, whole: int, cpus: int) -> int:
        """The number of wholly free cores that are taken only in part."""
        layout = self.layout
        return (layout.touched(cpus) & whole & ~layout.whole(cpus)).bit_count()


class Mover:
    """Moves owners to better CPUs, or to make room for others.

    `settled`: owners whose CPUs the decision has not changed, in the order of their claims.
    `choose`: the CPUs that a claim would get from free CPUs.
    `users`: the pool must not become empty."""

    def __init__(
        self,
        fit: CpuFit,
        owners: OwnedCpus,
        settled: Sequence[LocalRequest],
        choose: Callable[[LocalRequest, int], int],
        users: bool,
    ) -> None:
        self._fit = fit
        self._owners = owners
        self._choose = choose
        self._users = users
        self._settled = settled
        self._ideals: dict[tuple[int, int, tuple[int, ...]], _PlacedCost] = {}
        self._trials = _TRIALS

    def plan(self, refused: Sequence[LocalRequest], limit: int) -> list[Move]:
        """Plans at most `limit` moves and applies them to the owners.

        `refused`: claims that got no CPUs."""
        moves: list[Move] = []
        moved: set[tuple[str, str]] = set()
        improvable = self._improvable()
        for claim in improvable:
            if len(moves) == limit:
                return moves
            if target := self._better(claim):
                moves.append(self._move(claim, target, MoveReason.DEFRAGMENT))
                moved.add(claim.key)
        if len(moves) == limit:
            return moves
        improvable = [claim for claim in improvable if claim.key not in moved]
        others = sorted(
            (claim for claim in self._settled if claim.key not in moved),
            key=lambda claim: claim.cpus,
        )
        for claim in (*refused, *improvable):
            for other in others:
                if other.key == claim.key:
                    continue
                if not self._trials:
                    return moves
                self._trials -= 1
                if target := self._target_to_make_room(claim, other):
                    return [*moves, self._move(other, target, MoveReason.MAKE_ROOM)]
        return moves

    def _improvable(self) -> list[LocalRequest]:
        """The owners whose CPUs would have a lower cost on an empty node; the worst first."""
        improvable = []
        for index, claim in enumerate(self._settled):
            cost = self._cost(claim, self._owners.own(claim))
            ideal = self._ideal(claim)
            if ideal < cost:
                excess = tuple(low - high for low, high in zip(ideal, cost, strict=True))
                improvable.append((excess, index, claim))
        return [claim for _, _, claim in sorted(improvable, key=lambda entry: entry[:2])]

    def _cost(self, claim: LocalRequest, cpus: int) -> _PlacedCost:
        """How far the CPUs are from the claim's devices, and the cost of the CPUs."""
        areas = device_areas(self._fit.layout, claim)
        distance = next(index for index, area in enumerate(areas) if not cpus & ~area)
        return distance, *self._fit.cost(cpus)

    def _stays_on(self, claim: LocalRequest) -> int:
        """The CPUs to which an owner may move."""
        layout = self._fit.layout
        own = self._owners.own(claim) if claim.hugepages else 0
        return layout.of_nodes(layout.node_ids(own)) if own else layout.cpus

    def _best(self, fit: CpuFit, claim: LocalRequest, free: int) -> int:
        """The free CPUs at the lowest cost.

        Raises NotEnoughCpusError."""
        *near, machine = device_areas(fit.layout, claim)
        free &= self._stays_on(claim)
        for area in near:
            try:
                return fit.best(free & area, claim.cpus)
            except NotEnoughCpusError:
                continue
        return fit.best(free & machine, claim.cpus)

    def _ideal(self, claim: LocalRequest) -> _PlacedCost:
        areas = tuple(device_areas(self._fit.layout, claim))
        key = claim.cpus, self._stays_on(claim), areas
        known = self._ideals.get(key)
        if known is None:
            try:
                known = self._cost(claim, self._best(self._fit, claim, self._owners.assignable))
            except NotEnoughCpusError:
                known = _NO_COST
            self._ideals[key] = known
        return known

    def _better(self, claim: LocalRequest) -> int:
        """CPUs at a lower cost, 0 if there are none."""
        own = self._owners.own(claim)
        free = self._owners.free(claim) & ~own
        target = self._lower(claim, own, free) if free else 0
        if target and self._users and self._owners.empties((claim, target)):
            return 0
        return target

    def _lower(self, claim: LocalRequest, own: int, free: int) -> int:
        try:
            target = self._best(self._fit, claim, free | own)
        except NotEnoughCpusError:
            return 0
        return target if self._cost(claim, target) < self._cost(claim, own) else 0

    def _target_to_make_room(self, claim: LocalRequest, other: LocalRequest) -> int:
        """CPUs to which `other` could move so that the claim then gets CPUs, or better ones; 0 if
        there are none."""
        fit, owners = self._fit, self._owners
        own, others = owners.own(claim), owners.own(other)
        # CPUs that ended containers of the pod of `other` keep do not become free.
        leaves = others & ~owners.ended_of_others(claim.uid)
        free = owners.free(claim) & ~own
        wanted = self._cpus_from(claim, own, free | leaves)
        if not wanted & leaves:
            return 0
        placed = fit if fit.usable(others) == others else fit.loose
        try:
            target = self._best(placed, other, (owners.free(other) | others) & ~wanted & ~own)
        except NotEnoughCpusError:
            return 0
        if self._cost(other, others) < self._cost(other, target):
            return 0
        gets = self._cpus_from(claim, own, (free | leaves) & ~target)
        if not gets or (self._users and owners.empties((other, target), (claim, gets))):
            return 0
        return target

    def _cpus_from(self, claim: LocalRequest, own: int, free: int) -> int:
        """The CPUs that the claim gets if these are free; 0 if it gets none, or no better ones."""
        if own:
            return self._lower(claim, own, free)
        try:
            return self._choose(claim, free)
        except NotEnoughCpusError:
            return 0

    def _move(self, claim: LocalRequest, target: int, reason: MoveReason) -> Move:
        source = self._owners.own(claim)
        self._owners.assign(claim, target)
        self._owners.withheld |= source & ~target
        return Move(claim.uid, claim.name, CpuSet.from_int(source), CpuSet.from_int(target), reason)
