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

from agent.allocate.place.answer import Granted
from agent.kube.auth import AccessError
from agent.kube.errors import KubeError, NotFoundError, RejectedError
from agent.kube.transport import Transport
from agent.scheduler.disruption import Budgets
from agent.scheduler.evictions import Evictions, Fate
from agent.scheduler.podstatus import patch_status
from agent.scheduler.sacrifice import Sacrifice, Tenant, sacrifice
from agent.scheduler.tenants import Tenants
from agent.scheduler.waiting import Waiter, Waiting

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
    """Whose end makes room for a pod on a node; `until`: when we cease to wait for it."""

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
        """Those in flight: one a pod, and one a node."""
        return tuple(self._plans.values())

    def rest(self, uid: str) -> None:
        """Somebody else makes room for that pod now."""
        self._rests_until[uid] = self._clock() + REST_SECONDS

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
        due = [each for each in self._waiting.waiters() if self._due(each, now)]
        for waiter in due[:_PODS]:
            self._rests_until[waiter.uid] = now + REST_SECONDS
            found = self._sacrifice(waiter)
            if found is not None:
                self._carry_out(waiter, found, now)

    def _follow(self, plan: Plan, now: float) -> None:
        uid = plan.waiter.uid
        if not self._waiting.waits(uid) or now >= plan.until:
            self._end(uid)
        elif plan.until > now + AFTER_SECONDS and self._tenants.gone(plan.victims):
            self._plans[uid] = msgspec.structs.replace(plan, until=now + AFTER_SECONDS)

    def _end(self, uid: str) -> None:
        """The plan: others may have the node again."""
        if (plan := self._plans.pop(uid, None)) is not None:
            self._waiting.give_up(uid, plan.node)

    def _due(self, waiter: Waiter, now: float) -> bool:
        return (
            waiter.wish is not None
            and waiter.wish.preempts
            and bool(waiter.candidates)
            and not waiter.nominated
            and waiter.uid not in self._plans
            and waiter.uid not in self._rests_until
            and now - waiter.refused_at >= SETTLE_SECONDS
        )

    def _sacrifice(self, waiter: Waiter) -> Sacrifice | None:
        """The best of the nodes; None where nobody has to end, or nobody may."""
        assert waiter.wish is not None
        busy = {plan.node for plan in self.plans}
        found: list[Sacrifice] = []
        for node in [each for each in waiter.candidates if each not in busy][:_NODES]:
            seen = self._tenants.on(node, waiter.wish)
            if seen is None:
                continue
            if isinstance(seen.place.offer(waiter.wish), Granted):
                return None  # it will be tried again
            one = sacrifice(seen.place, seen.tenants, waiter.wish, self._budgets, trials=_TRIALS)
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
        self._plans[waiter.uid] = Plan(waiter, chosen.node, chosen.victims, now + PLAN_SECONDS)
        self._waiting.keep(waiter.uid, chosen.node)
        if not self._evicted(waiter, chosen.node, victims):
            self._end(waiter.uid)
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
