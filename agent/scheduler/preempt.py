"""The preempt verb: kube-scheduler's candidates, with the victims that make our offer possible."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import msgspec

from agent.allocate.place.wish import Needs, WishError
from agent.scheduler.asked import Asked, asked
from agent.scheduler.cluster import Cluster
from agent.scheduler.demands import Demand
from agent.scheduler.disruption import Budgets
from agent.scheduler.groupname import Group, GroupError
from agent.scheduler.groups import Groups
from agent.scheduler.questions import demand
from agent.scheduler.sacrifice import Sacrifice, Tenant, sacrifice
from agent.scheduler.tenants import House, Tenants
from agent.scheduler.waiting import Waiting
from agent.scheduler.wire import (
    ExtenderPreemptionArgs,
    ExtenderPreemptionResult,
    MetaPod,
    MetaVictims,
)

BEGUN_SECONDS: Final = 10.0
"""For kube-scheduler to end the victims that we named, and for a member of the group to be tried
again when they are gone."""
SEARCH_SECONDS: Final = 2.0
"""For the candidates of a request: what is not looked at by then is left out. kube-scheduler waits
5 s (`httpTimeout`), and begins with other nodes the next time."""
# Over all candidates of a request, and what each has at least.
_TRIALS, _LEAST = 2000, 20


class Preemption:
    """Any thread may ask."""

    def __init__(
        self,
        cluster: Cluster,
        groups: Groups,
        waiting: Waiting,
        budgets: Budgets,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._groups = groups
        self._waiting = waiting
        self._budgets = budgets
        self._clock = clock
        self._tenants = Tenants(cluster)
        self._lock = threading.Lock()
        self._begun: dict[str, _Begun] = {}

    def __call__(self, args: ExtenderPreemptionArgs) -> ExtenderPreemptionResult:
        """Candidates where no victims of lower priority help are left out.

        kube-scheduler's own victims are exchanged for others only where the sum of resources is why
        it named them, and the others give back as much: what else speaks against a node, it alone
        knows.
        """
        try:
            wanted = asked(args.pod)
        except (WishError, GroupError):
            return ExtenderPreemptionResult({})
        if not wanted.wish.preempts:
            return ExtenderPreemptionResult({})
        if wanted.group is not None:
            with self._lock:
                return ExtenderPreemptionResult(self._for_group(args, wanted, wanted.group))
        return ExtenderPreemptionResult(self._for_pod(args, wanted))

    def _for_pod(self, args: ExtenderPreemptionArgs, wanted: Asked) -> dict[str, MetaVictims]:
        wish, asks = wanted.wish, demand(wanted, self._cluster)
        answers: dict[str, MetaVictims] = {}
        for node, named in self._in_time(args):
            house = self._tenants.on(node, wish)
            if house is None:
                continue
            if wish.needs is Needs.NOTHING and not house.place.facts.binds_all:
                answers[node] = named
            elif found := self._found(args, asks, house, named):
                answers[node] = _told(found)
        return answers

    def _for_group(
        self, args: ExtenderPreemptionArgs, wanted: Asked, group: Group
    ) -> Mapping[str, MetaVictims]:
        """Room is made once, for all members that have none, on one node."""
        with self._cluster.lock:
            held, home = self._groups.held(group), self._cluster.home(group)
            asks = demand(wanted, self._cluster)
        if held is not None:
            # What is ours to give is the pod's there; what else it lacks kube-scheduler knows.
            return {node: named for node, named in args.victims.items() if node == held}
        if self._has_begun(group) or self._waiting.kept_for(group):
            return {}
        found: list[Sacrifice] = []
        for node, named in self._in_time(args):
            if home is not None and node != home:
                continue
            house = self._tenants.on(node, wanted.wish, group)
            if house is not None and (one := self._found(args, asks, house, named)):
                found.append(one)
        if not found:
            return {}
        best = min(found, key=lambda each: each.key)
        self._begun[group.title] = _Begun(best.victims, self._clock())
        return {best.node: _told(best)}

    def _found(
        self, args: ExtenderPreemptionArgs, asks: Demand, house: House, named: MetaVictims
    ) -> Sacrifice | None:
        uids = frozenset(each.uid for each in named.pods)
        exchange = not args.constrained and house.room.explains(asks.wish.requests, uids)
        return sacrifice(
            house.place,
            house.tenants,
            asks,
            self._budgets,
            named=() if exchange else uids,
            room=house.room if exchange else None,
            trials=max(_LEAST, _TRIALS // (len(args.victims) * asks.pods)),
        )

    def _in_time(self, args: ExtenderPreemptionArgs) -> Iterator[tuple[str, MetaVictims]]:
        until = self._clock() + SEARCH_SECONDS
        return itertools.takewhile(lambda _: self._clock() < until, args.victims.items())

    def _has_begun(self, group: Group) -> bool:
        """Whether room is being made for it by our last answer."""
        now = self._clock()
        for title, begun in list(self._begun.items()):
            if self._tenants.leaving(begun.victims):
                begun.seen_at = now
            elif now - begun.seen_at >= BEGUN_SECONDS:
                del self._begun[title]
        return group.title in self._begun


class _Begun(msgspec.Struct):
    """`seen_at`: when it was last known to go on."""

    victims: tuple[Tenant, ...]
    seen_at: float


def _told(found: Sacrifice) -> MetaVictims:
    return MetaVictims(tuple(MetaPod(each.uid) for each in found.victims), found.violations)
