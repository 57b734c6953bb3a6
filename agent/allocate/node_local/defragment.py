"""Moves of a dynamic decision: owners to better CPUs, and others out of the way for them.

A container moves only to CPUs that are free before any move of the decision is made. Better CPUs
lower the cost of one container and raise no other's; a container that makes room fares no worse by
it, and is moved only where the next decision then lowers a cost or gives CPUs to a container that
has too few: so moves come to an end. After room was made nothing more is planned, as that would
have to be checked against it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from agent.allocate.kubelet.cpu_assignment import NotEnoughCpusError
from agent.allocate.node_local.claim import Book, LocalRequest, Move, MoveReason
from agent.allocate.node_local.fit import Cost, CpuFit
from agent.model.cpuset import CpuSet

TRIALS: Final = 24
"""How many containers that could make room are tried in one decision."""


class Mover:
    """`settled`: owners that the decision has left where they are, in the order of their claims.
    `choose`: what a claim would be given out of free CPUs. `users`: the pool may not be emptied."""

    def __init__(
        self,
        fit: CpuFit,
        book: Book,
        settled: Sequence[LocalRequest],
        choose: Callable[[LocalRequest, int], int],
        users: bool,
    ) -> None:
        self._fit = fit
        self._book = book
        self._choose = choose
        self._users = users
        self._settled = settled
        self._ideals: dict[int, Cost] = {}
        self._trials = TRIALS

    def plan(self, refused: Sequence[LocalRequest], limit: int) -> list[Move]:
        """At most `limit` moves, made in the book. `refused`: claims that got nothing."""
        moves: list[Move] = []
        moved: set[tuple[str, str]] = set()
        needy = self._needy()
        for claim in needy:
            if len(moves) == limit:
                return moves
            if target := self._better(claim):
                moves.append(self._move(claim, target, MoveReason.DEFRAGMENT))
                moved.add(claim.key)
        if len(moves) == limit:
            return moves
        needy = [each for each in needy if each.key not in moved]
        others = sorted(
            (each for each in self._settled if each.key not in moved), key=lambda each: each.cpus
        )
        for claim in (*refused, *needy):
            for other in others:
                if other.key == claim.key:
                    continue
                if not self._trials:
                    return moves
                self._trials -= 1
                if target := self._room(claim, other):
                    return [*moves, self._move(other, target, MoveReason.MAKE_ROOM)]
        return moves

    def _needy(self) -> list[LocalRequest]:
        """Whose CPUs could lie better on a node of its own; the worst first."""
        found = []
        for index, claim in enumerate(self._settled):
            cost = self._fit.cost(self._book.own(claim))
            ideal = self._ideal(claim.cpus)
            if ideal < cost:
                excess = tuple(low - high for low, high in zip(ideal, cost, strict=True))
                found.append((excess, index, claim))
        return [claim for _, _, claim in sorted(found, key=lambda each: each[:2])]

    def _ideal(self, count: int) -> Cost:
        known = self._ideals.get(count)
        if known is None:
            try:
                known = self._fit.cost(self._fit.best(self._book.assignable, count))
            except NotEnoughCpusError:
                known = _NONE
            self._ideals[count] = known
        return known

    def _better(self, claim: LocalRequest) -> int:
        """CPUs at a lower cost, 0 if there are none."""
        own = self._book.own(claim)
        free = self._book.free(claim) & ~own
        target = self._lower(claim, own, free) if free else 0
        if target and self._users and self._book.empties((claim, target)):
            return 0
        return target

    def _lower(self, claim: LocalRequest, own: int, free: int) -> int:
        try:
            target = self._fit.best(free | own, claim.cpus)
        except NotEnoughCpusError:
            return 0
        return target if self._fit.cost(target) < self._fit.cost(own) else 0

    def _room(self, claim: LocalRequest, other: LocalRequest) -> int:
        """Where the other could go so that the claim then gets CPUs, or better ones; 0: nowhere."""
        fit, book = self._fit, self._book
        own, others = book.own(claim), book.own(other)
        # What an ended container of the other's pod keeps stays that pod's.
        leaves = others & ~book.ended_of_others(claim.uid)
        free = book.free(claim) & ~own
        wanted = self._gets(claim, own, free | leaves)
        if not wanted & leaves:
            return 0
        placed = fit if fit.usable(others) == others else fit.loose
        try:
            target = placed.best((book.free(other) | others) & ~wanted & ~own, other.cpus)
        except NotEnoughCpusError:
            return 0
        if fit.cost(others) < fit.cost(target):
            return 0
        gets = self._gets(claim, own, (free | leaves) & ~target)
        if not gets or (self._users and book.empties((other, target), (claim, gets))):
            return 0
        return target

    def _gets(self, claim: LocalRequest, own: int, free: int) -> int:
        if own:
            return self._lower(claim, own, free)
        try:
            return self._choose(claim, free)
        except NotEnoughCpusError:
            return 0

    def _move(self, claim: LocalRequest, target: int, reason: MoveReason) -> Move:
        source = self._book.own(claim)
        self._book.give(claim, target)
        self._book.withheld |= source & ~target
        return Move(claim.uid, claim.name, CpuSet.from_int(source), CpuSet.from_int(target), reason)


_NONE: Final[Cost] = (0, 0, 0, 0)
