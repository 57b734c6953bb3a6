"""The preempt verb: kube-scheduler's candidates, with the victims that make our offer possible."""

from __future__ import annotations

from agent.allocate.place.wish import Needs, Wish, WishError, wish_of
from agent.scheduler.disruption import Budgets
from agent.scheduler.groupname import GroupError, group_of
from agent.scheduler.sacrifice import Sacrifice, sacrifice
from agent.scheduler.tenants import House, Tenants
from agent.scheduler.wire import (
    ExtenderPreemptionArgs,
    ExtenderPreemptionResult,
    MetaPod,
    MetaVictims,
)

# Over all candidates of a request, and what each has at least.
_TRIALS, _LEAST = 2000, 20


class Preemption:
    """Any thread may ask."""

    def __init__(self, tenants: Tenants, budgets: Budgets) -> None:
        self._tenants = tenants
        self._budgets = budgets

    def __call__(self, args: ExtenderPreemptionArgs) -> ExtenderPreemptionResult:
        """Candidates where no victims of lower priority help are left out; for a member of a group
        all of them, as room for one member is none for the group.

        kube-scheduler's own victims are exchanged for others only where the sum of resources is why
        it named them, and the others give back as much: what else speaks against a node, it alone
        knows.
        """
        try:
            wish, group = wish_of(args.pod), group_of(args.pod)
        except (WishError, GroupError):
            return ExtenderPreemptionResult({})
        if not wish.preempts or group is not None:
            return ExtenderPreemptionResult({})
        trials = max(_LEAST, _TRIALS // max(1, len(args.victims)))
        answers: dict[str, MetaVictims] = {}
        for node, named in args.victims.items():
            house = self._tenants.on(node, wish)
            if house is None:
                continue
            if wish.needs is Needs.NOTHING and not house.place.facts.binds_all:
                answers[node] = named
                continue
            found = self._found(wish, house, named, trials, exchange=not args.constrained)
            if found is not None:
                pods = tuple(MetaPod(each.uid) for each in found.victims)
                answers[node] = MetaVictims(pods, found.violations)
        return ExtenderPreemptionResult(answers)

    def _found(
        self, wish: Wish, house: House, named: MetaVictims, trials: int, *, exchange: bool
    ) -> Sacrifice | None:
        uids = frozenset(each.uid for each in named.pods)
        resources = exchange and house.room.explains(wish.requests, uids)
        return sacrifice(
            house.place,
            house.tenants,
            wish,
            self._budgets,
            named=() if resources else uids,
            room=house.room if resources else None,
            trials=trials,
        )
