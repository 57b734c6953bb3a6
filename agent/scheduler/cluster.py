"""The whole cluster as a scheduler knows it: every node with what its pods hold and what was
promised to others.

All of it follows from the objects alone, but for the reservations: who starts anew, or begins to
lead, has the same ledger once the watches have told all.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from agent.allocate.place.answer import Granted
from agent.allocate.place.facts import PlaceRules
from agent.allocate.place.wish import Wish
from agent.kube.objects import Change, ChangeKind
from agent.model.deviceobject import DeviceObject
from agent.model.nodetopology import NodeTopology
from agent.scheduler.changelog import ChangeLog, Changes
from agent.scheduler.groupname import Group
from agent.scheduler.nodestate import News, NodeState
from agent.scheduler.readings import NodeReading, PodReading, Unreadable
from agent.scheduler.reservations import Reservation, Reservations

T = TypeVar("T")
EXPIRY_SECONDS: Final = 60.0
"""A Binding that nobody answered has come true by then, or never will: the API server itself gives
a request no more time (its --request-timeout)."""


class ReserveError(Exception):
    """Nothing can be reserved there; the message says why."""


class Cluster:
    """Safe for many threads. `lock` is held by every method; who reads a node's state, or needs
    several steps to be one, holds it meanwhile, and shortly."""

    def __init__(
        self,
        *,
        agents: bool = True,
        rules: PlaceRules | None = None,
        expiry_seconds: float = EXPIRY_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`agents`: a node must have one that is Ready to give CPUs or devices; `rules`: how every
        node gives them. A reservation whose Binding was taken is asked about after
        `expiry_seconds`."""
        self.lock = threading.RLock()
        self._agents = agents
        self._rules = rules
        self._expiry_seconds = expiry_seconds
        self._clock = clock
        self._states: dict[str, NodeState] = {}
        self._pods: dict[str, PodReading] = {}
        self._grouped: dict[str, set[str]] = {}
        self._reservations = Reservations()
        self._log = ChangeLog()
        self._firm_log = ChangeLog()

    # what is known
    def node(self, name: str) -> NodeState | None:
        """None where there is no such Node. To be read under the lock."""
        with self.lock:
            state = self._states.get(name)
            return state if state is not None and state.node is not None else None

    def nodes(self) -> tuple[NodeState, ...]:
        """Those that have a Node. To be read under the lock."""
        with self.lock:
            return tuple(each for each in self._states.values() if each.node is not None)

    def eligible(self, name: str, wish: Wish) -> str | None:
        """Why the node can't take such a pod, whatever is free there; None where it may."""
        with self.lock:
            state = self._states.get(name)
            if state is None:
                return "the node is not known"
            return state.hindrance(wish.needs, agents=self._agents)

    def changed_since(self, serial: int) -> Changes:
        """The nodes whose answer to some pod may have changed after that serial (0: the first)."""
        with self.lock:
            return self._log.since(serial)

    def firmly_changed_since(self, serial: int) -> Changes:
        """The same without those of which nothing changed but what they tell of their NUMA nodes,
        which concerns only pods that need nothing of us. Its serials are its own."""
        with self.lock:
            return self._firm_log.since(serial)

    def bound(self, uid: str) -> str | None:
        """The node that a watch has shown the pod to be bound to."""
        with self.lock:
            pod = self._pods.get(uid)
            return pod.node if pod is not None else None

    def pod(self, uid: str) -> PodReading | None:
        """One that a watch has shown to be bound."""
        with self.lock:
            return self._pods.get(uid)

    def companions(self, group: Group) -> dict[str, PodReading]:
        """The pods of a group that a watch has shown to be bound, by uid in its order; they may say
        another size of it."""
        with self.lock:
            return {uid: self._pods[uid] for uid in sorted(self._grouped.get(group.title, ()))}

    def home(self, group: Group) -> str | None:
        """The node of most of them; None where none is bound."""
        nodes = [each.node for each in self.companions(group).values()]
        return max(sorted(nodes), key=nodes.count, default=None)

    def reservation(self, uid: str) -> Reservation | None:
        with self.lock:
            return self._reservations.get(uid)

    # promises
    def reserve(self, name: str, granted: Granted) -> None:
        """Takes what was offered, until `confirm` or `release`. Raises ReserveError, and
        StaleOfferError where something of it was given away since."""
        with self.lock:
            state = self.node(name)
            if state is None:
                raise ReserveError(f"node {name} is not known")
            if (pod := self._pods.get(granted.uid)) is not None:
                raise ReserveError(f"pod {granted.wish.title} is bound to {pod.node}")
            before = self._reservations.get(granted.uid)
            if before is not None:
                raise ReserveError(f"a bind of pod {before.title} to {before.node} is under way")
            holding = state.place.commit(granted)
            self._touch(state)
            self._reservations.put(Reservation(name, holding))

    def confirm(self, uid: str) -> None:
        """The API server took the pod's Binding, or may have: the reservation stays until a watch
        shows what became of the pod."""
        with self.lock:
            kept = self._reservations.get(uid)
            if kept is not None:
                until = self._clock() + self._expiry_seconds
                self._reservations.put(Reservation(kept.node, kept.holding, until))

    def release(self, uid: str) -> bool:
        """The promise is off; False where there was none, or the pod is bound already."""
        with self.lock:
            kept = self._reservations.pop(uid)
            if kept is not None:
                self._give_back(kept)
            return kept is not None

    def overdue(self) -> tuple[Reservation, ...]:
        """Those that were confirmed and that no watch has shown in time."""
        with self.lock:
            return self._reservations.overdue(self._clock())

    def expire(self, reservation: Reservation) -> bool:
        """Ends an overdue reservation; False where it is no more what it was."""
        with self.lock:
            return self._reservations.get(reservation.uid) is reservation and self.release(
                reservation.uid
            )

    # what the watches tell
    def pods_changed(self, changes: Sequence[Change[PodReading]]) -> None:
        for change in changes:
            with self.lock:
                if change.kind is ChangeKind.DELETED:
                    self._ended(change.value, gone=True)
                else:
                    self._seen(change.value)

    def nodes_changed(self, changes: Sequence[Change[NodeReading]]) -> None:
        for change in changes:
            with self.lock:
                state = self._state(change.key.name)
                self._heard(state, state.see_node(_there(change)))

    def topologies_changed(self, changes: Sequence[Change[NodeTopology | Unreadable]]) -> None:
        for change in changes:
            with self.lock:
                state = self._state(change.key.name)
                self._heard(state, state.see_topology(_there(change)))

    def devices_changed(self, changes: Sequence[Change[DeviceObject | Unreadable]]) -> None:
        for change in changes:
            with self.lock:
                state = self._state(change.key.name)
                self._heard(state, state.see_devices(_there(change)))

    def _heard(self, state: NodeState, news: News) -> None:
        if news is News.ALL:
            self._touch(state)
        elif news is News.WORD:
            self._log.add(state.name)
        self._tidy(state)

    def _seen(self, pod: PodReading) -> None:
        if pod.holding is None:
            # A pod that was bound is never unbound: it has ended, or this is an old word on it.
            if pod.node:
                self._ended(pod)
            return
        before = self._pods.get(pod.uid)
        if before is not None and before.node != pod.node:
            self._ended(before, gone=True)
        elif before is not None and before.group != pod.group:
            self._ungroup(before)
        self._pods[pod.uid] = pod
        if pod.group is not None:
            self._grouped.setdefault(pod.group.title, set()).add(pod.uid)
        reservation = self._reservations.pop(pod.uid)
        if reservation is not None and reservation.node != pod.node:
            self._give_back(reservation)
        state = self._state(pod.node)
        news = state.agent(pod.uid, pod.agent_ready)
        if state.place.holdings.get(pod.uid) != pod.holding:
            state.place.record(pod.holding)
            news = True
        if news:
            self._touch(state)
        if before is None or _counted(before) != _counted(pod):
            self._heard(state, state.see_pod(pod, new=reservation is not None))

    def _ended(self, pod: PodReading, *, gone: bool = False) -> None:
        """It holds nothing any more; until it is gone it may be an agent, and its node's word
        counts it."""
        if (reservation := self._reservations.pop(pod.uid)) is not None:
            self._give_back(reservation)
        known = self._pods.pop(pod.uid, None)
        if known is not None:
            self._ungroup(known)
        # The last word on it may be older than its node.
        node = pod.node if known is None else known.node
        state = self._states.get(node)
        if state is None:
            if gone:
                return
            state = self._state(node)
        news = state.lose_pod(known or pod) if gone else state.see_pod(pod)
        released = state.place.release(pod.uid)
        if state.agent(pod.uid, None if gone else pod.agent_ready) or released is not None:
            self._touch(state)
        self._heard(state, news)

    def _ungroup(self, pod: PodReading) -> None:
        if pod.group is None:
            return
        uids = self._grouped[pod.group.title]
        uids.discard(pod.uid)
        if not uids:
            del self._grouped[pod.group.title]

    def _give_back(self, reservation: Reservation) -> None:
        state = self._state(reservation.node)
        state.place.release(reservation.uid)
        self._touch(state)
        self._tidy(state)

    def _state(self, name: str) -> NodeState:
        state = self._states.get(name)
        if state is None:
            state = self._states[name] = NodeState(name, self._pods, self._rules)
        return state

    def _touch(self, state: NodeState) -> None:
        self._log.add(state.name)
        self._firm_log.add(state.name)
        state.changed()

    def _tidy(self, state: NodeState) -> None:
        if state.empty:
            self._states.pop(state.name, None)


def _counted(pod: PodReading) -> tuple[object, ...]:
    """What of a pod tells whether its node's word has it."""
    return pod.begun, pod.started_at, pod.zoned


def _there(change: Change[T]) -> T | None:
    return None if change.kind is ChangeKind.DELETED else change.value
