"""Makes room where only our rule blocks: CPUs in sum are free, NUMA nodes or devices are full.

kube-scheduler finds no victim there, as its own rules are content with the node. So we choose them,
by the rules that it keeps to: only pods of lower priority, none for a pod whose preemptionPolicy is
Never, and, further than it goes, none that a disruption budget keeps. They end by the Eviction API
with their grace period; the node is the pod's nominated node then, and is kept for it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from agent.kube.auth import AccessError
from agent.kube.errors import KubeError, NotFoundError, RejectedError
from agent.kube.transport import Transport
from agent.scheduler.disruption import Budgets
from agent.scheduler.evictions import Evictions, Fate
from agent.scheduler.groupname import Group
from agent.scheduler.podstatus import patch_status
from agent.scheduler.sacrifice import Sacrifice, Tenant, sacrifice
from agent.scheduler.shapes import Fit
from agent.scheduler.tenants import Tenants
from agent.scheduler.waiter import Waiter, party
from agent.scheduler.waiting import Waiting

SETTLE_SECONDS: Final = 1.0
"""kube-scheduler asks about its own victims within the cycle that we refused the pod in."""
REST_SECONDS: Final = 10.0
"""Before a pod that nothing could be done for is looked at again."""
PLAN_SECONDS: Final = 600.0
"""For the victims to end."""
AFTER_SECONDS: Final = 15.0
"""For the pod to be bound once they have."""
# Of one round, so that it stays short: pods looked at, nodes looked at for one of them.
_PODS: Final = 8
_NODES: Final = 32
_TRIALS: Final = 120

log = logging.getLogger(__name__)


class Plan(msgspec.Struct, frozen=True):
    """Whose end makes room on a node, for a pod or its group; `until`: when we cease to wait."""

    waiter: Waiter
    node: str
    victims: tuple[Tenant, ...]
    until: float


class Evictor:
    """One thread has the rounds. `leading`: only who decides evicts."""

    def __init__(
        self,
        transport: Transport,
        tenants: Tenants,
        waiting: Waiting,
        budgets: Budgets,
        leading: Callable[[], bool],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._transport = transport
        self._evictions = Evictions(transport)
        self._tenants = tenants
        self._waiting = waiting
        self._budgets = budgets
        self._leading = leading
        self._clock = clock
        self._plans: dict[str, Plan] = {}
        self.evicted = 0
        self._rests_until: dict[str, float] = {}

    @property
    def plans(self) -> tuple[Plan, ...]:
        """Those in flight: one a pod or group, and one a node."""
        return tuple(self._plans.values())

    def rest(self, uid: str, group: Group | None = None) -> None:
        """Somebody else makes room now for that pod, and the group that it is a member of."""
        self._rests_until[party(uid, group)] = self._clock() + REST_SECONDS

    def round(self) -> None:
        """Follows the plans, and makes others for those who wait. Who does not lead has none."""
        if not self._leading():
            self._plans.clear()
            return
        now = self._clock()
        for plan in self.plans:
            self._follow(plan, now)
        for uid, until in tuple(self._rests_until.items()):
            if until <= now:
                del self._rests_until[uid]
        for waiter in self._due(now)[:_PODS]:
            self._rests_until[waiter.party] = now + REST_SECONDS
            found = self._sacrifice(waiter)
            if found is not None:
                self._carry_out(waiter, found, now)

    def _follow(self, plan: Plan, now: float) -> None:
        if not self._waiting.waits(plan.waiter.uid) or now >= plan.until:
            self._end(plan)
        elif plan.until > now + AFTER_SECONDS and self._tenants.gone(plan.victims):
            soon = msgspec.structs.replace(plan, until=now + AFTER_SECONDS)
            self._plans[plan.waiter.party] = soon

    def _end(self, plan: Plan) -> None:
        """Others may have the node again."""
        if self._plans.pop(plan.waiter.party, None) is not None:
            self._waiting.give_up(plan.waiter.uid, plan.node)

    def _due(self, now: float) -> list[Waiter]:
        """Of each group the first."""
        waiters = self._waiting.waiters()
        served = {each.party for each in waiters if each.nominated}
        served |= self._plans.keys() | self._rests_until.keys()
        found: dict[str, Waiter] = {}
        for each in waiters:
            if each.party not in served and _ready(each, now):
                found.setdefault(each.party, each)
        return list(found.values())

    def _sacrifice(self, waiter: Waiter) -> Sacrifice | None:
        """The best of the nodes; None where nobody has to end, or nobody may."""
        demand = waiter.demand
        assert demand is not None
        busy = {plan.node for plan in self.plans}
        found: list[Sacrifice] = []
        for node in [each for each in waiter.candidates if each not in busy][:_NODES]:
            seen = self._tenants.on(node, demand.wish, waiter.group)
            if seen is None:
                continue
            if isinstance(demand.answer(seen.place), Fit):
                return None  # it will be tried again
            trials = max(1, _TRIALS // demand.pods)
            one = sacrifice(seen.place, seen.tenants, demand, self._budgets, trials=trials)
            if one is not None and not one.violations:
                found.append(one)
        return min(found, key=lambda each: each.key, default=None)

    def _carry_out(self, waiter: Waiter, chosen: Sacrifice, now: float) -> None:
        """All of it or nothing, as far as the API server can be asked before."""
        victims = [each for each in chosen.victims if not each.leaving]
        if not victims:
            return  # they end without us
        try:
            self._nominate(waiter, chosen.node, dry_run=True)
        except (NotFoundError, RejectedError) as error:
            log.info("pod %s waits no more: %s", waiter.title, error)
            self._waiting.settled(waiter.uid)
            return
        except (KubeError, AccessError) as error:
            log.warning("pod %s: no room is made for it: %s", waiter.title, error)
            return
        plan = Plan(waiter, chosen.node, chosen.victims, now + PLAN_SECONDS)
        self._plans[waiter.party] = plan
        self._waiting.keep(waiter.uid, chosen.node)
        if not self._evicted(waiter, chosen.node, victims):
            self._end(plan)
            return
        try:
            for each in victims:
                self._evictions.tell(each, waiter.title)
            self._nominate(waiter, chosen.node)
        except (KubeError, AccessError) as error:
            # The room is made all the same; kube-scheduler knows less of it.
            log.warning("pod %s: not all is told: %s", waiter.title, error)

    def _evicted(self, waiter: Waiter, node: str, victims: Sequence[Tenant]) -> bool:
        """Whether all of them end."""
        try:
            if any(self._evictions.would(each) is not Fate.ENDS for each in victims):
                return False
            if not self._leading():
                return False  # others choose by now
            for each in victims:
                fate = self._evictions.evict(each)
                told = waiter.title, each.title, node, fate.value
                log.info("pod %s: eviction of pod %s from node %s: %s", *told)
                if fate is Fate.STAYS:
                    return False
                self.evicted += fate is Fate.ENDS
        except (KubeError, AccessError) as error:
            log.warning("pod %s: no room is made on node %s: %s", waiter.title, node, error)
            return False
        return True

    def _nominate(self, waiter: Waiter, node: str, *, dry_run: bool = False) -> None:
        patch_status(
            self._transport,
            waiter.namespace,
            waiter.name,
            waiter.uid,
            {"nominatedNodeName": node},
            dry_run=dry_run,
        )


def _ready(waiter: Waiter, now: float) -> bool:
    return (
        waiter.demand is not None
        and waiter.demand.wish.preempts
        and bool(waiter.candidates)
        and now - waiter.refused_at >= SETTLE_SECONDS
    )
