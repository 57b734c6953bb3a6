"""Decides the owners of CPUs on this node, without a scheduler and without a state file.

Owners keep their CPUs and come before all other claims, which come in the order of their age. A
claim gets only CPUs that are free before the decision: CPUs that a container is about to leave are
not assigned in the same decision, so the results may be applied in any order. While a container
shares CPUs, some CPUs stay in the pool; if the pool is empty (CPUs went offline, or the first
sharing container was created), the last owner yields.

The present owners are those of the last decision; without one, they are found in the cgroups. A
container owns its CPUs if no other container runs on them. It also owns them if it runs on exactly
as many CPUs as it requests, unless these are the CPUs that all others share: in this case a
decision was applied in part, and no container has to move. If no CPU is left to share, a container
that runs alone may be a sharing one on the rest: then it owns its CPUs only if their number is its
request.

A new owner gets CPUs, in this order: those of ended containers of its pod; on the NUMA nodes that
the most of its devices are near to, of these first on nodes with enough free huge pages for it; on
nodes near any of its devices; on any nodes with enough free huge pages; on the others. A place is
used only if all its CPUs fit there. The huge pages that owners requested of a node are not free,
also while the owners do not use them yet.

The CPUs of a container are close to each other: narrow areas come first, as in the kubelet's NUMA
hints (pkg/kubelet/cm/cpumanager/policy_static.go, generateCPUTopologyHints): an L3 cache if the
options count it, a NUMA node, a socket, the machine; inside the area the kubelet's options choose.
Among equal areas, one that breaks no whole core comes first, then the fullest.

A container moves only to CPUs that are free before any move of the decision is made. A move to
better CPUs lowers the cost of one container and raises no other's. A container that makes room for
another does not get worse CPUs, and moves only if the next decision then lowers a cost or gives
CPUs to a container that has too few. So the number of moves is finite. After a move that makes room
no further move is planned in the same decision.

A container with devices prefers the NUMA nodes that the most of them are near to, whatever the cost
of the CPUs there. A container that has huge pages does not leave its NUMA nodes: its pages stay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

from agent.allocate.kubelet.cpu_assignment import of_whole_cores, take_aligned
from agent.allocate.kubelet.static_policy import (
    AllocationRefused,
    NotEnoughCpusError,
    RefusalReason,
    StaticOptions,
)
from agent.allocate.node_local.claim import (
    Alignment,
    LocalAllocation,
    LocalDecision,
    LocalInput,
    LocalOutcome,
    LocalPolicy,
    LocalRequest,
    LocalRules,
    Move,
    MoveReason,
    Occupancy,
    OwnedCpus,
    Share,
    Sharing,
)
from agent.model.cpu.cpuset import EMPTY, CpuSet, lowest, union
from agent.model.cpu.layout import Area, Layout
from agent.model.snapshot import LocalOwner

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
        candidates = []
        for area in self._areas(usable, count):
            inside = area & free
            try:
                cpus = take_aligned(self.layout, inside, count, self.options)
            except NotEnoughCpusError:
                continue
            key = self.cost(cpus), self._broken(whole, cpus), inside.bit_count(), cpus & -cpus
            candidates.append((key, cpus))
        if not candidates:
            raise NotEnoughCpusError(count, usable.bit_count())
        return min(candidates)[1]

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
        candidates = []
        for rank, start in enumerate(starts):
            cpus = self._spilled(start, free & ~start, count)
            if self.usable(cpus) == cpus:
                candidates.append(((self.cost(cpus), self._broken(whole, cpus), rank), cpus))
        if not candidates:
            raise NotEnoughCpusError(count, (base | self.usable(free | base)).bit_count())
        return min(candidates)[1]

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
        cost = self._ideals.get(key)
        if cost is None:
            try:
                cost = self._cost(claim, self._best(self._fit, claim, self._owners.assignable))
            except NotEnoughCpusError:
                cost = _NO_COST
            self._ideals[key] = cost
        return cost

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


def outcome_by_pod(local: LocalInput, free: CpuSet) -> LocalOutcome:
    """The decision by pod. The pool never becomes empty: every pod has a sandbox, which shares it.

    `free`: the CPUs that are shared before the decision."""
    unavailable = CpuSet.from_int(local.rules.layout.cpus) - free
    sharing = Sharing(unavailable, users=True, held=local.held, hugepages=local.hugepages)
    decision = decide(local.rules, local.claims, sharing)
    by_uid: dict[str, list[LocalRequest]] = {}
    for claim in sorted(local.claims, key=lambda claim: claim.key):
        by_uid.setdefault(claim.uid, []).append(claim)
    answers = decision.answers
    owners = tuple(
        LocalOwner(*claim.key, str(answers[claim.key].cpus), str(answers[claim.key].original))
        for claims in by_uid.values()
        for claim in claims
    )
    shares = {
        uid: Share(
            _known(claims, {claim.name: answers[claim.key].cpus for claim in claims}),
            {
                claim.name: _text(refused)
                for claim in claims
                if (refused := answers[claim.key].refused)
            },
            union(answers[claim.key].cpus for claim in claims),
        )
        for uid, claims in by_uid.items()
    }
    for uid, name in sorted(local.sharing):
        share = shares.get(uid, Share())
        shares[uid] = msgspec.structs.replace(share, blocked={**share.blocked, name: ""})
    return LocalOutcome(
        shares, decision.pool, owners, decision.moves, decision.again, decision.alignments
    )


def _known(claims: list[LocalRequest], cpus: Mapping[str, CpuSet]) -> dict[str, CpuSet]:
    """The CPUs of ended containers that no other container of the pod took over: a container that
    returns to them needs a new decision."""
    kept = {}
    for claim in claims:
        own = cpus[claim.name]
        others = union(cpus[other.name] for other in claims if other is not claim)
        if own and not (claim.ended and own & others):
            kept[claim.name] = own
    return kept


def _text(refused: AllocationRefused) -> str:
    text = f"{refused.reason.value}: {refused.requested} requested"
    return f"{text}, {refused.available} available" + (
        f", {refused.held} already owned" if refused.held else ""
    )


def decide(rules: LocalRules, claims: Iterable[LocalRequest], sharing: Sharing) -> LocalDecision:
    """One decision, independent of the order of the claims, whose keys differ."""
    shared = rules.layout.cpus & ~sharing.unavailable.mask
    if rules.options.strict_cpu_reservation:
        shared &= ~rules.reserved.mask
    if rules.policy is LocalPolicy.NONE:
        return LocalDecision({}, CpuSet.from_int(shared))
    ordered = sorted(claims, key=lambda each: (each.created_at, each.uid, each.name))
    admission = _Admission(rules, ordered, sharing, shared)
    admission.admit(sharing.users)
    if not sharing.users and not admission.owners.pool and admission.refused:
        admission = _Admission(rules, ordered, sharing, shared)
        admission.admit(True)
    return admission.decision()


class _Admission:
    def __init__(
        self, rules: LocalRules, claims: list[LocalRequest], sharing: Sharing, shared: int
    ) -> None:
        self._rules = rules
        self._claims = claims
        self._sharing = sharing
        self._fit = CpuFit(rules.layout, rules.options)
        self._shared = shared
        self._assignable = shared & ~rules.reserved.mask
        self._occupancy = Occupancy(claims, sharing.held.mask)
        self._sources: dict[tuple[str, str], int] = {}
        self._moves: list[Move] = []
        self._alignments: list[Alignment] = []
        self.owners = OwnedCpus(self._assignable, shared)
        self.refused: dict[tuple[str, str], AllocationRefused] = {}

    def admit(self, users: bool) -> None:
        """Decides about all claims. With `users`, new owners must not empty the pool."""
        self._keep()
        kept = [claim for claim in self._claims if self.owners.own(claim)]
        newcomers = [
            claim for claim in self._claims if not claim.ended and not self.owners.own(claim)
        ]
        for claim in kept:
            if not claim.ended and self.owners.own(claim).bit_count() != claim.cpus:
                self._serve(claim, users)
        for claim in newcomers:
            self._serve(claim, users)
        for claim in self._claims:
            self._note_change(claim)
        if self._rules.policy is LocalPolicy.DYNAMIC:
            self._defragment(kept, newcomers, users)

    def decision(self) -> LocalDecision:
        answers = {}
        for claim in self._claims:
            own = self.owners.own(claim)
            answers[claim.key] = LocalAllocation(
                CpuSet.from_int(own),
                CpuSet.from_int(self._original(claim, own)),
                self.refused.get(claim.key),
            )
        waits = bool(self.refused and self.owners.withheld)
        better = any(
            each.reason in (MoveReason.DEFRAGMENT, MoveReason.MAKE_ROOM) for each in self._moves
        )
        pool = CpuSet.from_int(self.owners.pool)
        return LocalDecision(
            answers, pool, tuple(self._moves), waits or better, tuple(self._alignments)
        )

    def _original(self, claim: LocalRequest, own: int) -> int:
        """The CPUs that the container had before its resize. Those of one that was never resized
        change when it moves."""
        source, first = self._sources.get(claim.key, 0), claim.original.mask
        moved = not source & ~first and source.bit_count() == own.bit_count()
        return own if moved else first & own or own

    def _keep(self) -> None:
        """Owners keep those of their CPUs that are online and requested."""
        owners = self.owners
        present = _present_owners(
            self._claims,
            self._occupancy,
            self._assignable,
            self._shared,
            self._sharing.held.mask,
            lambda cpus, count: cpus.bit_count() == count and self._fit.usable(cpus) == cpus,
        )
        leaving = 0
        for owner in present:
            claim, had = owner.claim, owner.cpus
            base = had & owners.untaken(claim)
            if base != had and not owner.certain:
                continue
            self._sources[claim.key] = had
            if not base:
                continue
            kept = base
            if base.bit_count() > claim.cpus and not claim.ended and self._whole(claim):
                kept = self._fit.shrunk(base, claim.cpus, claim.original.mask)
            leaving |= base & ~kept
            if self._sharing.users and owners.empties((claim, kept)):
                leaving |= kept
                continue
            owners.assign(claim, kept)
            if claim.held and owner.certain and not claim.ended and self._occupancy.alone(claim):
                leaving |= claim.held.mask & ~kept
        owners.withheld = leaving

    def _serve(self, claim: LocalRequest, users: bool) -> None:
        """Assigns CPUs to a claim that has none, or fewer than it requests."""
        owners, fit = self.owners, self._fit
        own = owners.own(claim)
        free = owners.free(claim)
        if not self._whole(claim):
            self._refuse(claim, RefusalReason.NO_WHOLE_CORES, free)
            return
        try:
            cpus = self._choose(claim, free)
        except NotEnoughCpusError:
            cores = self._rules.options.full_pcpus_only
            reason = RefusalReason.NOT_ENOUGH_CORES if cores else RefusalReason.NOT_ENOUGH_CPUS
            self._refuse(claim, reason, fit.usable(free | own))
            return
        if users and owners.empties((claim, cpus)):
            self._refuse(claim, RefusalReason.DEFAULT_EMPTIED, free)
            return
        if not own and (claim.devices or claim.hugepages):
            self._note_alignment(claim, cpus)
        owners.assign(claim, cpus)

    def _choose(self, claim: LocalRequest, free: int) -> int:
        """All CPUs that the claim owns, and more; CPUs of ended containers of the pod first.

        Raises NotEnoughCpusError."""
        own = self.owners.own(claim)
        left = self.owners.reusable(claim)
        try:
            if (own | left).bit_count() > claim.cpus:
                return self._grown(claim, own, left)
            return self._grown(claim, own | left, free)
        except NotEnoughCpusError:
            return self._grown(claim, own, free)

    def _grown(self, claim: LocalRequest, base: int, free: int) -> int:
        """The CPUs of `base`, and free CPUs of the first area that has enough. An area without all
        of `base` does not count, because the CPUs would be on more NUMA nodes.

        Raises NotEnoughCpusError."""
        *near, machine = device_areas(self._fit.layout, claim)
        with_hugepages = 0
        if claim.hugepages and not base:
            with_hugepages = self._rules.layout.of_nodes(self._nodes_with_hugepages(claim))
        for area in (*near, machine):
            for part in (area & with_hugepages, area):
                if part and part != self._fit.layout.cpus and not base & ~part:
                    try:
                        return self._fit.grown(base, free & part, claim.cpus)
                    except NotEnoughCpusError:
                        continue
        return self._fit.grown(base, free, claim.cpus)

    def _nodes_with_hugepages(self, claim: LocalRequest) -> CpuSet:
        requested: Counter[tuple[int, int]] = Counter()
        for other in self._claims:
            if other.hugepages and not other.ended:
                for node in self._rules.layout.node_ids(self.owners.own(other)):
                    requested.update({(node, size): n for size, n in other.hugepages.items()})
        free = {
            (node, pool.size_bytes): min(
                pool.size_bytes * pool.free,
                pool.size_bytes * pool.total - requested[node, pool.size_bytes],
            )
            for node, pools in self._sharing.hugepages.items()
            for pool in pools
        }
        return CpuSet(
            node
            for node in self._sharing.hugepages
            if all(free.get((node, size), 0) >= n for size, n in claim.hugepages.items())
        )

    def _note_alignment(self, claim: LocalRequest, cpus: int) -> None:
        layout = self._rules.layout
        self._alignments.append(
            Alignment(
                claim.uid,
                claim.name,
                CpuSet.from_int(cpus),
                CpuSet(layout.node_ids(cpus)),
                CpuSet(claim.devices),
                self._nodes_with_hugepages(claim) if claim.hugepages else None,
            )
        )

    def _whole(self, claim: LocalRequest) -> bool:
        options, layout = self._rules.options, self._rules.layout
        return not options.full_pcpus_only or claim.cpus % layout.threads == 0

    def _refuse(self, claim: LocalRequest, reason: RefusalReason, free: int) -> None:
        threads = self._rules.layout.threads
        held = self.owners.own(claim).bit_count()
        self.refused[claim.key] = AllocationRefused(
            reason, claim.cpus, free.bit_count(), threads, held
        )

    def _note_change(self, claim: LocalRequest) -> None:
        source, target = self._sources.get(claim.key, 0), self.owners.own(claim)
        if not source or not target or source == target:
            return
        if not source & ~target:
            reason = MoveReason.WIDEN
        elif not target & ~source and target.bit_count() == claim.cpus:
            reason = MoveReason.SHRINK
        else:
            reason = MoveReason.REPLACE
        sets = CpuSet.from_int(source), CpuSet.from_int(target)
        self._moves.append(Move(claim.uid, claim.name, *sets, reason))

    def _defragment(
        self, kept: list[LocalRequest], newcomers: list[LocalRequest], users: bool
    ) -> None:
        settled = [
            each
            for each in kept
            if not each.ended
            and self._sources[each.key] == self.owners.own(each)
            and each.cpus == len(CpuSet.from_int(self.owners.own(each)))
            and (each.held or EMPTY).mask in (0, self.owners.own(each))
        ]
        refused = [
            each
            for each in newcomers
            if each.key in self.refused
            and self.refused[each.key].reason is RefusalReason.NOT_ENOUGH_CORES
        ]
        mover = Mover(self._fit, self.owners, settled, self._choose, users)
        self._moves += mover.plan(refused, self._rules.max_moves)


class _PresentOwner(msgspec.Struct, frozen=True):
    """A claim that owns CPUs before the decision, not yet checked against earlier claims."""

    claim: LocalRequest
    cpus: int
    """A mask."""
    certain: bool
    """The CPUs are from the last decision, so the claim also keeps a part of them."""


def _present_owners(
    claims: Sequence[LocalRequest],
    occupancy: Occupancy,
    assignable: int,
    shared: int,
    sharing: int,
    fits: Callable[[int, int], bool],
) -> list[_PresentOwner]:
    """The owners in the order of admission. The CPUs are masks.

    `claims`: sorted.
    `assignable`: CPUs that may be owned.
    `shared`: all CPUs that are owned or shared.
    `sharing`: the CPUs of sharing containers.
    `fits`: whether this number of CPUs could be assigned to a claim."""
    certain = [claim for claim in claims if claim.owned]
    unknown = [
        (claim, claim.held.mask)
        for claim in claims
        if claim.owned is None and claim.held and not claim.held.mask & ~assignable
    ]
    alone = [claim for claim in unknown if occupancy.alone(claim[0])]
    rest = shared
    for claim in certain:
        rest &= ~(claim.owned or EMPTY).mask
    for _, held in alone:
        rest &= ~held
    pool_known = bool(rest or sharing)
    proven = [
        (claim, held)
        for claim, held in alone
        if fits(held, claim.cpus) or (pool_known and not claim.ended)
    ]
    likely = [
        (claim, held)
        for claim, held in unknown
        if not claim.ended
        and held not in (rest, sharing)
        and fits(held, claim.cpus)
        and not occupancy.alone(claim)
    ]
    return [
        *(
            _PresentOwner(claim, (claim.owned or EMPTY).mask, True)
            for claim in certain
            if not claim.ended
        ),
        *(
            _PresentOwner(claim, (claim.owned or EMPTY).mask, True)
            for claim in certain
            if claim.ended
        ),
        *(_PresentOwner(claim, held, False) for claim, held in proven if not claim.ended),
        *(_PresentOwner(claim, held, False) for claim, held in likely),
        *(_PresentOwner(claim, held, False) for claim, held in proven if claim.ended),
    ]
