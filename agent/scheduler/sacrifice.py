"""Who has to end on a node so that a pod, or a group of them, gets what it asks for there."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import msgspec

from agent.allocate.place.place import Place
from agent.allocate.victims import TRIALS, Candidate, fewest
from agent.scheduler.demands import Demand
from agent.scheduler.disruption import Budgets
from agent.scheduler.shapes import Fit


class Tenant(msgspec.Struct, frozen=True, gc=False):
    """A pod on a node. `started_at` in nanoseconds since 1970, 0 where nobody knows; `leaving`:
    somebody has asked for its end already."""

    uid: str
    namespace: str
    name: str
    priority: int = 0
    started_at: int = 0
    labels: Mapping[str, str] = {}
    leaving: bool = False

    @property
    def title(self) -> str:
        return f"{self.namespace}/{self.name}"


class Sacrifice(msgspec.Struct, frozen=True):
    """`victims`, the most important first; `violations`: how many of them their disruption budgets
    do not allow."""

    node: str
    victims: tuple[Tenant, ...]
    violations: int

    @property
    def key(self) -> tuple[Any, ...]:
        """Of several nodes' the smaller is better; no two are alike."""
        return (
            self.violations,
            [each.priority for each in self.victims],
            [-each.started_at for each in self.victims],
            self.node,
        )


class Room(msgspec.Struct, frozen=True):
    """What a node has for pods, by resource, and what of it the pods on it request: what
    kube-scheduler's own rule on resources looks at."""

    allocatable: Mapping[str, int]
    requested: Mapping[str, Mapping[str, int]]

    def fits(self, requests: Mapping[str, int], gone: Collection[str], pods: int = 1) -> bool:
        """Whether so many pods, which request that in all, find it when those are gone."""
        left = [each for uid, each in self.requested.items() if uid not in gone]
        if len(left) + pods > self.allocatable.get("pods", len(left) + pods):
            return False
        return all(
            amount + sum(each.get(name, 0) for each in left) <= self.allocatable.get(name, 0)
            for name, amount in requests.items()
        )

    def explains(self, requests: Mapping[str, int], named: Collection[str]) -> bool:
        """Whether resources alone are the reason for just these victims: each of them is needed."""
        return self.fits(requests, named) and not any(
            self.fits(requests, [each for each in named if each != spared]) for spared in named
        )


def sacrifice(
    place: Place,
    tenants: Sequence[Tenant],
    demand: Demand,
    budgets: Budgets,
    *,
    named: Collection[str] = (),
    room: Room | None = None,
    trials: int = TRIALS,
) -> Sacrifice | None:
    """The fewest and least important tenants without whom `place` has room for what is asked; None
    where none of lower priority help. `place` is the caller's own copy, and changed.

    `named` are among them, for reasons that are another's. `room`: its requests have to fit too.
    Pods that leave already come first: their end costs nobody anything.
    """
    lower = [each for each in tenants if each.priority < demand.wish.priority]
    by_uid = {each.uid: each for each in lower}
    if not by_uid.keys() >= set(named):
        return None
    allowed: dict[str, int] = {}
    candidates = [_candidate(each, budgets, allowed) for each in lower]
    trial = _Trial(place, demand)

    def helps(gone: frozenset[str]) -> bool:
        if not gone.issuperset(named):
            return False
        if room is not None and not room.fits(demand.requests, gone, demand.pods):
            return False
        return trial.has_room(gone)

    found = fewest(candidates, allowed, helps, trials=trials)
    if found is None:
        return None
    victims = sorted((by_uid[uid] for uid in found.uids), key=_importance)
    return Sacrifice(place.facts.name, tuple(victims), found.violations)


class _Trial:
    """A place whose tenants come and go."""

    def __init__(self, place: Place, demand: Demand) -> None:
        self._place = place
        self._demand = demand
        self._holdings = dict(place.holdings)
        self._gone: frozenset[str] = frozenset()

    def has_room(self, gone: frozenset[str]) -> bool:
        for uid in gone - self._gone:
            self._place.release(uid)
        for uid in self._gone - gone:
            if (holding := self._holdings.get(uid)) is not None:
                self._place.record(holding)
        self._gone = gone
        return isinstance(self._demand.answer(self._place), Fit)


_LEAVES: Final = -(1 << 31) - 1


def _candidate(tenant: Tenant, budgets: Budgets, allowed: dict[str, int]) -> Candidate:
    if tenant.leaving:
        return Candidate(tenant.uid, _LEAVES, tenant.started_at)
    covering = budgets.covering(tenant.namespace, tenant.name, tenant.labels)
    for budget in covering:
        allowed[budget.title] = budget.allowed
    titles = tuple(budget.title for budget in covering)
    return Candidate(tenant.uid, tenant.priority, tenant.started_at, titles)


def _importance(tenant: Tenant) -> tuple[int, int, str]:
    return -tenant.priority, tenant.started_at, tenant.uid
