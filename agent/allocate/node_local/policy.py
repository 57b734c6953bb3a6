"""The owners of CPUs on this node, without a scheduler that chose them and without a state file.

Owners keep their CPUs and come before all others, which come in the order of their age. A claim
only gets CPUs that are free before: CPUs that a container is about to leave go to nobody in the
same decision, so the answers may be applied in any order. While a container shares CPUs, some CPUs
stay in the pool; when the pool is empty (CPUs went offline, or the first sharing container came),
the owner that comes last yields.
"""

from __future__ import annotations

from collections.abc import Iterable

from agent.allocate.kubelet.demand import AllocationRefused, RefusalReason
from agent.allocate.kubelet.packed import NotEnoughCpusError
from agent.allocate.node_local.claim import (
    Book,
    LocalAllocation,
    LocalDecision,
    LocalPolicy,
    LocalRequest,
    LocalRules,
    Move,
    MoveReason,
    Sharing,
)
from agent.allocate.node_local.defragment import Mover
from agent.allocate.node_local.fit import CpuFit
from agent.allocate.node_local.tenure import Occupancy, tenures
from agent.model.cpuset import EMPTY, CpuSet


def decide(rules: LocalRules, claims: Iterable[LocalRequest], sharing: Sharing) -> LocalDecision:
    """One decision; the same whatever the order of the claims, whose keys differ."""
    shared = rules.layout.cpus & ~sharing.unavailable.mask
    if rules.options.strict_cpu_reservation:
        shared &= ~rules.reserved.mask
    if rules.policy is LocalPolicy.NONE:
        return LocalDecision({}, CpuSet.from_int(shared))
    ordered = sorted(claims, key=lambda each: (each.created_at, each.uid, each.name))
    hearing = _Hearing(rules, ordered, sharing, shared)
    hearing.hear(sharing.users)
    if not sharing.users and not hearing.book.pool and hearing.refused:
        hearing = _Hearing(rules, ordered, sharing, shared)
        hearing.hear(True)
    return hearing.decision()


class _Hearing:
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
        self.book = Book(self._assignable, shared)
        self.refused: dict[tuple[str, str], AllocationRefused] = {}

    def hear(self, users: bool) -> None:
        """`users`: newcomers may not empty the pool."""
        self._keep()
        kept = [each for each in self._claims if self.book.own(each)]
        newcomers = [each for each in self._claims if not each.ended and not self.book.own(each)]
        for claim in kept:
            if not claim.ended and self.book.own(claim).bit_count() != claim.cpus:
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
            own = self.book.own(claim)
            answers[claim.key] = LocalAllocation(
                CpuSet.from_int(own),
                CpuSet.from_int(self._original(claim, own)),
                self.refused.get(claim.key),
            )
        waits = bool(self.refused and self.book.withheld)
        better = any(
            each.reason in (MoveReason.DEFRAGMENT, MoveReason.MAKE_ROOM) for each in self._moves
        )
        pool = CpuSet.from_int(self.book.pool)
        return LocalDecision(answers, pool, tuple(self._moves), waits or better)

    def _original(self, claim: LocalRequest, own: int) -> int:
        """A container that was never resized takes its claim along when it moves."""
        source, first = self._sources.get(claim.key, 0), claim.original.mask
        moved = not source & ~first and source.bit_count() == own.bit_count()
        return own if moved else first & own or own

    def _keep(self) -> None:
        """Owners keep their CPUs, as far as these are online and requested."""
        book = self.book
        heard = tenures(
            self._claims,
            self._occupancy,
            self._assignable,
            self._shared,
            self._sharing.held.mask,
            lambda cpus, count: cpus.bit_count() == count and self._fit.usable(cpus) == cpus,
        )
        leaving = 0
        for tenure in heard:
            claim, had = tenure.claim, tenure.cpus
            base = had & book.untaken(claim)
            if base != had and not tenure.certain:
                continue
            self._sources[claim.key] = had
            if not base:
                continue
            kept = base
            if base.bit_count() > claim.cpus and not claim.ended and self._whole(claim):
                kept = self._fit.shrunk(base, claim.cpus, claim.original.mask)
            leaving |= base & ~kept
            if self._sharing.users and book.empties((claim, kept)):
                leaving |= kept
                continue
            book.give(claim, kept)
            if claim.held and tenure.certain and not claim.ended and self._occupancy.alone(claim):
                leaving |= claim.held.mask & ~kept
        book.withheld = leaving

    def _serve(self, claim: LocalRequest, users: bool) -> None:
        """CPUs for a claim that has none, or not as many as it wants."""
        book, fit = self.book, self._fit
        own = book.own(claim)
        free = book.free(claim)
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
        if users and book.empties((claim, cpus)):
            self._refuse(claim, RefusalReason.DEFAULT_EMPTIED, free)
            return
        book.give(claim, cpus)

    def _choose(self, claim: LocalRequest, free: int) -> int:
        """All CPUs that the claim owns, and more; those of ended containers of the pod come first.
        Raises NotEnoughCpusError."""
        own = self.book.own(claim)
        left = self.book.reusable(claim)
        try:
            if (own | left).bit_count() > claim.cpus:
                return self._fit.grown(own, left, claim.cpus)
            return self._fit.grown(own | left, free, claim.cpus)
        except NotEnoughCpusError:
            return self._fit.grown(own, free, claim.cpus)

    def _whole(self, claim: LocalRequest) -> bool:
        options, layout = self._rules.options, self._rules.layout
        return not options.full_pcpus_only or claim.cpus % layout.threads == 0

    def _refuse(self, claim: LocalRequest, reason: RefusalReason, free: int) -> None:
        threads = self._rules.layout.threads
        held = self.book.own(claim).bit_count()
        self.refused[claim.key] = AllocationRefused(
            reason, claim.cpus, free.bit_count(), threads, held
        )

    def _note_change(self, claim: LocalRequest) -> None:
        source, target = self._sources.get(claim.key, 0), self.book.own(claim)
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
            and self._sources[each.key] == self.book.own(each)
            and each.cpus == len(CpuSet.from_int(self.book.own(each)))
            and (each.held or EMPTY).mask in (0, self.book.own(each))
        ]
        refused = [
            each
            for each in newcomers
            if each.key in self.refused
            and self.refused[each.key].reason is RefusalReason.NOT_ENOUGH_CORES
        ]
        mover = Mover(self._fit, self.book, settled, self._choose, users)
        self._moves += mover.plan(refused, self._rules.max_moves)
