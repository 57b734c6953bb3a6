"""Binds a pod to the node that kube-scheduler chose: reserves its allocation, sends the Binding,
and releases the reservation if the Binding failed.

The cluster's lock is held only for the decision, never during a request to the API server. While
the outcome of a Binding is unknown, its reservation stays.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from agent.allocate.node_allocator.allocator import StaleOfferError
from agent.allocate.node_allocator.answer import NodeOffer
from agent.allocate.refusal import Refusal
from agent.model.pod.apiobjects import GroupError
from agent.model.pod_request import PodRequestError
from agent.scheduler.state.cluster import Reservation, ReserveError, SchedulerCache
from agent.scheduler.state.group_reservations import GroupReservations
from agent.scheduler.state.pod_info import BindDecision, PodInfo, PodInfoCache, PodName, pod_info
from agent.scheduler.state.pods_api import BindError, BindingApi, BindOutcome, PodError

log = logging.getLogger(__name__)

SNAPSHOT_SECONDS: Final = 1.0
"""The greatest age of kube-scheduler's snapshot of the nodes when it filters for a pod."""
MAX_DECISIONS: Final = 200
"""Decisions that are kept for the page; each has some kilobytes."""


class LostRaceError(BindError):
    """The filter returned the node, but the node no longer has room for the pod."""


class Binder:
    """Binds pods. Safe for many threads."""

    def __init__(
        self,
        cluster: SchedulerCache,
        groups: GroupReservations,
        bindings: BindingApi,
        pod_infos: PodInfoCache,
        unavailable_reason: Callable[[], str | None] = lambda: None,
    ) -> None:
        """`unavailable_reason` returns why no Binding may be sent now, or None."""
        self._cluster = cluster
        self._groups = groups
        self._bindings = bindings
        self._pod_infos = pod_infos
        self._unavailable_reason = unavailable_reason
        self._lock = threading.Lock()
        self._binding: set[str] = set()
        self._unknown_outcomes: dict[str, Mapping[str, str]] = {}
        self.lost_races = 0
        """The number of binds that failed because another pod took the room after the filter."""
        self.decisions: deque[BindDecision] = deque(maxlen=MAX_DECISIONS)
        """The last decisions, the newest at the end."""
        self._numbers = itertools.count(1)

    def bind(self, pod: PodName, node: str) -> None:
        """Does nothing for a pod that is bound to that node already. Raises BindError."""
        try:
            bound, node_offer = self._bind(pod, node)
        except BindError as error:
            self._record(pod, node, error=str(error))
            raise
        if bound:
            self._record(pod, node, node_offer)

    def _record(
        self, pod: PodName, node: str, node_offer: NodeOffer | None = None, error: str = ""
    ) -> None:
        self.decisions.append(
            BindDecision(next(self._numbers), time.monotonic(), pod, node, node_offer, error)
        )

    def _bind(self, pod: PodName, node: str) -> tuple[bool, NodeOffer | None]:
        """Returns whether this call bound the pod, and the offer that it got; no offer if an
        earlier Binding was sent again."""
        node_offer: NodeOffer | None = None
        with self._exclusively(pod):
            info = self._pod_info(pod, node)
            if info is None:
                return False, None
            if info.group is not None:
                reason = self._groups.prepare(info.group, info.pod_request, node)
                if reason:
                    raise self._lost(reason)
            with self._cluster.lock:
                self._forget_ended()
                earlier = self._unknown_outcome(pod, node)
                if earlier is not None:
                    annotations = earlier
                    # The reservation must not expire during the second attempt.
                    self._cluster.confirm(pod.uid)
                else:
                    node_offer = self._reserve(info, node)
                    annotations = node_offer.annotations()
                    self._check_overcommitment(info, node)
            # The outcome of a Binding is unknown after an exception.
            outcome = BindOutcome(None, "the outcome of the Binding is unknown")
            try:
                # Another process may lead by now, and reserve the same CPUs and devices.
                if (reason := self._unavailable_reason()) is not None:
                    outcome = BindOutcome(False, reason)
                else:
                    outcome = self._bindings.bind(pod, node, annotations)
            finally:
                self._finish(info, outcome, annotations, again=earlier is not None)
        if not outcome.bound:
            raise BindError(outcome.error)
        self._pod_infos.forget(pod.uid)
        return True, node_offer

    @contextlib.contextmanager
    def _exclusively(self, pod: PodName) -> Iterator[None]:
        """Rejects a second concurrent bind of a pod: it would release the reservation of the
        first."""
        with self._lock:
            if pod.uid in self._binding:
                raise BindError(f"pod {pod.title} is being bound already")
            self._binding.add(pod.uid)
        try:
            yield
        finally:
            with self._lock:
                self._binding.discard(pod.uid)

    def _forget_ended(self) -> None:
        """Forgets the Bindings whose reservation has ended. The caller holds the lock."""
        uids = list(self._unknown_outcomes)
        for uid in (uid for uid in uids if self._cluster.reservation(uid) is None):
            del self._unknown_outcomes[uid]

    def _unknown_outcome(self, pod: PodName, node: str) -> Mapping[str, str] | None:
        """Returns the annotations of an earlier Binding to this node whose outcome is unknown, None
        if there is none. The same Binding may be sent again. Raises BindError if a different one
        may take effect. The caller holds the lock."""
        kept = self._cluster.reservation(pod.uid)
        if kept is None or not kept.confirmed:
            return None
        if kept.node != node or pod.uid not in self._unknown_outcomes:
            raise BindError(f"an earlier Binding of pod {pod.title} to {kept.node} may take effect")
        return self._unknown_outcomes[pod.uid]

    def _finish(
        self, info: PodInfo, outcome: BindOutcome, annotations: Mapping[str, str], *, again: bool
    ) -> None:
        uid = info.pod_request.uid
        with self._cluster.lock:
            if outcome.bound:
                self._unknown_outcomes.pop(uid, None)
            elif outcome.bound is None:
                self._unknown_outcomes[uid] = annotations
            # The outcome of this Binding does not determine that of an earlier one.
            if outcome.bound is False and not again:
                self._unreserve(info)
            else:
                self._cluster.confirm(uid)

    def _pod_info(self, pod: PodName, node: str) -> PodInfo | None:
        """Returns None for a pod that is bound to that node already."""
        bound = self._cluster.node_of(pod.uid)
        info = self._pod_infos.get(pod.uid)
        if bound is None and info is None:
            try:
                found = self._bindings.pod(pod)
                if found is None:
                    raise BindError(f"pod {pod.title} no longer exists")
                bound = found.node
                info = pod_info(found, self._cluster.pod_defaults)
            except (PodError, PodRequestError, GroupError) as error:
                raise BindError(str(error)) from None
        if bound and bound != node:
            raise BindError(f"pod {pod.title} is bound to node {bound}")
        return None if bound else info

    def _reserve(self, info: PodInfo, node: str) -> NodeOffer:
        """The caller holds the lock."""
        pod_request, group = info.pod_request, info.group
        ineligibility = self._cluster.ineligibility(node, pod_request)
        if ineligibility is not None:
            raise BindError(f"node {node}: {ineligibility.text}")
        self._groups.expire()
        if group is not None:
            taken = self._groups.take(group, pod_request, node)
            if isinstance(taken, str):
                raise self._lost(taken)
            return taken
        offer = self._cluster.offer(node, pod_request)
        if offer is None:
            raise BindError(f"node {node} is not known")
        if isinstance(offer, Refusal):
            raise self._lost(f"node {node}: {offer.text}")
        try:
            self._cluster.reserve(node, offer)
        except StaleOfferError as error:
            raise self._lost(str(error)) from None
        except ReserveError as error:
            raise BindError(str(error)) from None
        return offer

    def _check_overcommitment(self, info: PodInfo, node: str) -> None:
        """Ends the new reservation if another scheduler has bound a pod to the node since
        kube-scheduler read the node's pods, and the node has too little for both: the kubelet would
        reject one of them for good (OutOfcpu). The next cycle of kube-scheduler counts that pod.
        Raises LostRaceError. The caller holds the lock."""
        state, filtered_at = self._cluster.node(node), self._pod_infos.filtered_at(info.pod.uid)
        if state is None or state.foreign_bound_at is None or filtered_at is None:
            return
        if state.foreign_bound_at <= filtered_at - SNAPSHOT_SECONDS:
            return
        if excess := state.overcommitted(info.pod_request.requests):
            self._unreserve(info)
            text = f"node {node}: another scheduler bound a pod to it since the filter: {excess}"
            raise self._lost(text)

    def _lost(self, text: str) -> BindError:
        self.lost_races += 1
        return LostRaceError(text)

    def _unreserve(self, info: PodInfo) -> None:
        """The caller holds the lock."""
        self._cluster.release(info.pod_request.uid)
        if info.group is not None:
            self._groups.release(info.group, info.pod_request.uid)


class ReservationExpiry:
    """Ends group reservations that are too old, and reservations whose pods no watch has reported
    as bound in time. The latter end only if the API server reports that the pod is not bound: a
    watch that lags must not release the allocation of a bound pod. One thread calls `step`."""

    def __init__(
        self, cluster: SchedulerCache, groups: GroupReservations, bindings: BindingApi
    ) -> None:
        self._cluster = cluster
        self._groups = groups
        self._bindings = bindings

    def step(self) -> None:
        """Handles all overdue reservations. Never raises."""
        with self._cluster.lock:
            self._groups.expire()
        for each in self._cluster.overdue():
            try:
                if self._bound(each):
                    self._cluster.confirm(each.uid)
                elif self._cluster.expire(each):
                    log.warning("pod %s: the reservation on %s has expired", each.title, each.node)
            except PodError as error:
                log.warning("an overdue reservation stays: %s", error)
                self._cluster.confirm(each.uid)

    def _bound(self, reservation: Reservation) -> bool:
        namespace, _, name = reservation.title.partition("/")
        pod = self._bindings.pod(PodName(namespace, name, reservation.uid))
        return pod is not None and bool(pod.node)
