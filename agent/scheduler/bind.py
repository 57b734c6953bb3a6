"""From the node that kube-scheduler chose to a bound pod: reserved here, written once, and given
back where that fails.

The lock is held for the decision alone, never while the API server is asked. Until it is known what
became of a Binding nobody else gets what it carries.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping

from agent.allocate.ledger import StaleOfferError
from agent.allocate.place.answer import Granted, Refused
from agent.allocate.place.wish import WishError
from agent.scheduler.asked import Asked, Recent, asked
from agent.scheduler.bindings import Bindings, Outcome, PodError, PodName
from agent.scheduler.cluster import Cluster, ReserveError
from agent.scheduler.groupname import GroupError
from agent.scheduler.groups import Groups


class BindError(Exception):
    """The pod is not bound; the message says why."""


class LostRaceError(BindError):
    """The node had room when kube-scheduler was told so, and has none any more."""


class Binder:
    """Any thread may bind. `lost_races`: binds whose node was taken by others since the filter."""

    def __init__(
        self,
        cluster: Cluster,
        groups: Groups,
        bindings: Bindings,
        recent: Recent,
        standing: Callable[[], str | None] = lambda: None,
    ) -> None:
        """`standing`: why nothing may be bound now, None where it may."""
        self._cluster = cluster
        self._groups = groups
        self._bindings = bindings
        self._recent = recent
        self._standing = standing
        self._lock = threading.Lock()
        self._under_way: set[str] = set()
        self._doubts: dict[str, Mapping[str, str]] = {}
        self.lost_races = 0

    def bind(self, pod: PodName, node: str) -> None:
        """A pod that is bound to that node already is left as it is. Raises BindError."""
        with self._alone(pod):
            wanted = self._wanted(pod, node)
            if wanted is None:
                return
            with self._cluster.lock:
                annotations = earlier = self._again(pod, node)
                if annotations is None:
                    annotations = self._reserved(wanted, node).annotations()
            # A fault of ours tells nothing of the Binding.
            outcome = Outcome(None, "nobody knows what became of the Binding")
            try:
                # It may be long since this was asked: others lead then, and give the same away.
                if (reason := self._standing()) is not None:
                    outcome = Outcome(False, reason)
                else:
                    outcome = self._bindings.bind(pod, node, annotations)
            finally:
                self._settle(wanted, outcome, annotations, again=earlier is not None)
        if not outcome.bound:
            raise BindError(outcome.error)
        self._recent.forget(pod.uid)

    @contextlib.contextmanager
    def _alone(self, pod: PodName) -> Iterator[None]:
        """A second bind of a pod would give away what the first one is about to write."""
        with self._lock:
            if pod.uid in self._under_way:
                raise BindError(f"pod {pod.title} is being bound already")
            self._under_way.add(pod.uid)
        try:
            yield
        finally:
            with self._lock:
                self._under_way.discard(pod.uid)

    def _again(self, pod: PodName, node: str) -> Mapping[str, str] | None:
        """What an earlier Binding said that may still come true: no other may be sent beside it,
        the same may. None where there is none. Under the lock."""
        for uid in [uid for uid in self._doubts if self._cluster.reservation(uid) is None]:
            del self._doubts[uid]
        kept = self._cluster.reservation(pod.uid)
        if kept is None or not kept.sent:
            return None
        if kept.node != node or pod.uid not in self._doubts:
            raise BindError(f"an earlier Binding of pod {pod.title} to {kept.node} may come true")
        # It may not expire while the same is under way once more.
        self._cluster.confirm(pod.uid)
        return self._doubts[pod.uid]

    def _settle(
        self, wanted: Asked, outcome: Outcome, annotations: Mapping[str, str], *, again: bool
    ) -> None:
        uid = wanted.wish.uid
        with self._cluster.lock:
            if outcome.bound:
                self._doubts.pop(uid, None)
            elif outcome.bound is None:
                self._doubts[uid] = annotations
            # What became of this Binding says nothing of an earlier one.
            if outcome.bound is False and not again:
                self._give_back(wanted)
            else:
                self._cluster.confirm(uid)

    def _wanted(self, pod: PodName, node: str) -> Asked | None:
        """None for a pod that is bound to that node already."""
        bound, known = self._cluster.bound(pod.uid), self._recent.get(pod.uid)
        if bound is None and known is None:
            try:
                found = self._bindings.pod(pod)
                if found is None:
                    raise BindError(f"pod {pod.title} is gone")
                bound, known = found.node, asked(found)
            except (PodError, WishError, GroupError) as error:
                raise BindError(str(error)) from None
        if bound and bound != node:
            raise BindError(f"pod {pod.title} is bound to node {bound}")
        return None if bound else known

    def _reserved(self, wanted: Asked, node: str) -> Granted:
        """Under the lock."""
        wish, group = wanted.wish, wanted.group
        hindrance = self._cluster.eligible(node, wish)
        if hindrance is not None:
            raise BindError(f"node {node}: {hindrance}")
        self._groups.expire()
        if group is not None:
            taken = self._groups.take(group, wish, node)
            if isinstance(taken, str):
                raise self._lost(taken)
            return taken
        state = self._cluster.node(node)
        if state is None:
            raise BindError(f"node {node} is not known")
        offer = state.place.offer(wish)
        if isinstance(offer, Refused):
            raise self._lost(f"node {node}: {offer.text()}")
        try:
            self._cluster.reserve(node, offer)
        except StaleOfferError as error:
            raise self._lost(str(error)) from None
        except ReserveError as error:
            raise BindError(str(error)) from None
        return offer

    def _lost(self, text: str) -> BindError:
        self.lost_races += 1
        return LostRaceError(text)

    def _give_back(self, wanted: Asked) -> None:
        """Under the lock."""
        self._cluster.release(wanted.wish.uid)
        if wanted.group is not None:
            self._groups.give_back(wanted.group, wanted.wish.uid)
