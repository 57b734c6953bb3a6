"""Evicts pods on nodes that only the extender rejects: enough CPU is free in sum, but NUMA nodes or
devices are full.

kube-scheduler does not preempt there, since its own rules accept the node. The evictor selects
victims by the rules of kube-scheduler's preemption: only pods of lower priority, and none for a pod
whose preemptionPolicy is Never. Unlike kube-scheduler it never violates a disruption budget.
Victims are evicted by the Eviction API (policy/v1) with their grace period. The node becomes the
pod's nominated node.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from agent.host.log_once import about
from agent.kube.auth import AccessError
from agent.kube.errors import KubeError, NotFoundError, RejectedError, TooManyRequestsError
from agent.kube.events import Regarding
from agent.kube.eviction import EvictionResult, evict
from agent.kube.transport import Transport
from agent.model.pod.apiobjects import PodGroup
from agent.scheduler.preemption.disruption_budgets import Budgets
from agent.scheduler.preemption.victim_selection import (
    BoundPod,
    NodeSnapshots,
    PreemptionCandidate,
    select_victims,
)
from agent.scheduler.state.pod_info import Feasible
from agent.scheduler.state.pods_api import condition, patch_status
from agent.scheduler.unschedulable.queue import QueuedPod, UnschedulableQueue, scheduling_unit

DISRUPTION_TARGET: Final = "DisruptionTarget"
PREEMPTION: Final = "PreemptionByScheduler"
"""kube-scheduler's own reason. While a pod with it is terminating on the nominated node,
kube-scheduler selects no other victims and keeps the nomination."""


class EvictionApi:
    """Requests evictions from the API server. Safe for many threads. All methods raise KubeError
    and AccessError."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def dry_run_evict(self, victim: BoundPod) -> EvictionResult:
        """Returns what `evict` would return now."""
        return self._evict(victim, dry_run=True)

    def evict(self, victim: BoundPod) -> EvictionResult:
        return self._evict(victim, dry_run=False)

    def set_condition(self, victim: BoundPod, title: str) -> None:
        """Writes the condition DisruptionTarget into the status of a victim, with the title of the
        pod to make room for. Does nothing if the victim no longer exists."""
        message = f"evicted to make room for pod {title}"
        target = condition(DISRUPTION_TARGET, PREEMPTION, message)
        with contextlib.suppress(NotFoundError, RejectedError):
            patch_status(
                self._transport, victim.namespace, victim.name, victim.uid, {"conditions": [target]}
            )

    def _evict(self, victim: BoundPod, *, dry_run: bool) -> EvictionResult:
        pod = Regarding(victim.namespace, victim.name, victim.uid)
        try:
            return evict(self._transport, pod, dry_run=dry_run)
        except TooManyRequestsError:
            return EvictionResult.BLOCKED


KUBE_SCHEDULER_SECONDS: Final = 1.0
"""Within this time kube-scheduler calls preempt for the pod, if its own rules need victims."""
RETRY_INTERVAL_SECONDS: Final = 10.0
"""The minimum between two attempts for one pod."""
EVICTION_SECONDS: Final = 600.0
"""The time in which the victims must terminate."""
BIND_SECONDS: Final = 15.0
"""The time in which the pod must be bound after that."""
# Limits of one step: pods, nodes for one pod, trials for one node.
_PODS: Final = 8
_NODES: Final = 32
_TRIALS: Final = 120
# For the victims of one pod, on all nodes.
_SEARCH_SECONDS: Final = 10.0

log = logging.getLogger(__name__)


class Plan(msgspec.Struct, frozen=True):
    """The victims on a node for a pod or its group. The plan ends at `until`."""

    queued: QueuedPod
    node: str
    victims: tuple[BoundPod, ...]
    until: float


class Evictor:
    """One thread calls `step`. `leading` returns whether this process leads; only the leader
    evicts."""

    def __init__(
        self,
        transport: Transport,
        snapshots: NodeSnapshots,
        queue: UnschedulableQueue,
        budgets: Budgets,
        leading: Callable[[], bool],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._transport = transport
        self._api = EvictionApi(transport)
        self._snapshots = snapshots
        self._queue = queue
        self._budgets = budgets
        self._leading = leading
        self._clock = clock
        self._plans: dict[str, Plan] = {}
        self.evicted = 0
        self._paused_until: dict[str, float] = {}

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans in flight: one per pod or group, and one per node."""
        return tuple(self._plans.values())

    def pause(self, uid: str, group: PodGroup | None = None) -> None:
        """Pauses evictions for that pod and its group: kube-scheduler preempts for them."""
        self._paused_until[scheduling_unit(uid, group)] = self._clock() + RETRY_INTERVAL_SECONDS

    def step(self) -> None:
        """Updates the plans, and makes new ones for unschedulable pods. Drops all plans if this
        process does not lead."""
        if not self._leading():
            self._plans.clear()
            return
        now = self._clock()
        for plan in self.plans:
            self._update_plan(plan, now)
        for uid, until in tuple(self._paused_until.items()):
            if until <= now:
                del self._paused_until[uid]
        for queued in self._due(now)[:_PODS]:
            self._paused_until[queued.unit] = now + RETRY_INTERVAL_SECONDS
            found = self._candidate(queued)
            if found is not None:
                self._execute(queued, found, now)

    def _update_plan(self, plan: Plan, now: float) -> None:
        if not self._queue.contains(plan.queued.uid) or now >= plan.until:
            self._end_plan(plan)
        elif plan.until > now + BIND_SECONDS and self._snapshots.all_ended(plan.victims):
            plan = msgspec.structs.replace(plan, until=now + BIND_SECONDS)
            self._plans[plan.queued.unit] = plan

    def _end_plan(self, plan: Plan) -> None:
        """Makes the node available to other pods again."""
        if self._plans.pop(plan.queued.unit, None) is not None:
            self._queue.withdraw(plan.queued.uid, plan.node)

    def _due(self, now: float) -> list[QueuedPod]:
        """Returns the pods for which victims may be selected now, of each group only the first."""
        pods = self._queue.pods()
        excluded = {each.unit for each in pods if each.nominated}
        excluded |= self._plans.keys() | self._paused_until.keys()
        found: dict[str, QueuedPod] = {}
        for each in pods:
            if each.unit not in excluded and _ready(each, now):
                found.setdefault(each.unit, each)
        return list(found.values())

    def _candidate(self, queued: QueuedPod) -> PreemptionCandidate | None:
        """Returns the best candidate of all nodes; None if no eviction is needed or allowed."""
        requirements = queued.requirements
        assert requirements is not None
        busy = {plan.node for plan in self.plans}
        found: list[PreemptionCandidate] = []
        until = self._clock() + _SEARCH_SECONDS
        for node in [each for each in queued.candidates if each not in busy][:_NODES]:
            snapshot = self._snapshots.take(node, requirements.pod_request, queued.group)
            if snapshot is None:
                continue
            if isinstance(requirements.check(snapshot.allocator), Feasible):
                return None  # the pod is retried without an eviction
            trials = max(1, _TRIALS // requirements.pods)
            candidate = select_victims(
                snapshot.allocator,
                snapshot.potential_victims,
                requirements,
                self._budgets,
                trials=trials,
                expired=lambda: self._clock() >= until,
            )
            if candidate is not None and not candidate.violations:
                found.append(candidate)
        return min(found, key=lambda each: each.key, default=None)

    def _execute(self, queued: QueuedPod, chosen: PreemptionCandidate, now: float) -> None:
        """Evicts all victims, or none if a dry run fails for one of them."""
        victims = [each for each in chosen.victims if not each.terminating]
        if not victims:
            return  # all of them are terminating
        try:
            self._nominate(queued, chosen.node, dry_run=True)
        except (NotFoundError, RejectedError) as error:
            log.info(
                "pod %s left the unschedulable queue: %s",
                queued.title,
                error,
                extra=about(queued.title),
            )
            self._queue.remove(queued.uid)
            return
        except (KubeError, AccessError) as error:
            log.warning(
                "pod %s: eviction failed: %s", queued.title, error, extra=about(queued.title)
            )
            return
        plan = Plan(queued, chosen.node, chosen.victims, now + EVICTION_SECONDS)
        self._plans[queued.unit] = plan
        self._queue.nominate(queued.uid, chosen.node)
        if not self._evict_all(queued, chosen.node, victims):
            self._end_plan(plan)
            return
        try:
            for each in victims:
                self._api.set_condition(each, queued.title)
            self._nominate(queued, chosen.node)
        except (KubeError, AccessError) as error:
            # The victims are evicted anyway; kube-scheduler does not know the nomination.
            log.warning(
                "pod %s: status update failed: %s", queued.title, error, extra=about(queued.title)
            )

    def _evict_all(self, queued: QueuedPod, node: str, victims: Sequence[BoundPod]) -> bool:
        """Returns whether all victims are evicted."""
        try:
            if any(self._api.dry_run_evict(each) is not EvictionResult.EVICTED for each in victims):
                return False
            if not self._leading():
                return False  # another process may lead by now
            for each in victims:
                result = self._api.evict(each)
                names = queued.title, each.title, node
                log.info(
                    "pod %s: eviction of pod %s from node %s: %s",
                    *names,
                    result.value,
                    extra=about(each.title, node=node),
                )
                if result is EvictionResult.BLOCKED:
                    return False
                self.evicted += result is EvictionResult.EVICTED
        except (KubeError, AccessError) as error:
            log.warning(
                "pod %s: eviction on node %s failed: %s",
                queued.title,
                node,
                error,
                extra=about(queued.title, node=node),
            )
            return False
        return True

    def _nominate(self, queued: QueuedPod, node: str, *, dry_run: bool = False) -> None:
        patch_status(
            self._transport,
            queued.namespace,
            queued.name,
            queued.uid,
            {"nominatedNodeName": node},
            dry_run=dry_run,
        )


def _ready(queued: QueuedPod, now: float) -> bool:
    return (
        queued.requirements is not None
        and queued.requirements.pod_request.preempts
        and bool(queued.candidates)
        and now - queued.rejected_at >= KUBE_SCHEDULER_SECONDS
    )
