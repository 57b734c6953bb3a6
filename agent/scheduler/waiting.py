"""The pods that our rules hold back, and those of them that a changed node has room for by now."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable, Sequence
from typing import Final, Protocol

import msgspec

from agent.allocate.place.wish import Wish
from agent.kube.objects import Change, ChangeKind
from agent.scheduler.changelog import Changes
from agent.scheduler.readings import PodReading
from agent.scheduler.shapes import Answer, Fit, Question

AT_ONCE: Final = 128
"""Pods of one round: a node has room for few of those that wait alike."""
REST_SECONDS: Final = 4.0
"""Between two tries of one pod; kube-scheduler may have reasons of its own against a node."""

STALE_SECONDS: Final = 900.0
"""After its last refusal nobody asks for a pod any more."""


class Waiter(msgspec.Struct, frozen=True, eq=False):
    """A pod that found no node. `since`: when it was refused first, `refused_at`: when last, by a
    clock that never goes back; `candidates`: the nodes that only our rule stood against, where an
    eviction may help, and `wish` what it asks of them; None where no eviction of ours shall."""

    uid: str
    namespace: str
    name: str
    question: Question
    since: float
    refused_at: float
    priority: int = 0
    candidates: tuple[str, ...] = ()
    wish: Wish | None = None

    @property
    def title(self) -> str:
        return f"{self.namespace}/{self.name}"


class Answers(Protocol):
    """What nodes say to a kind of pod: the cluster's log, and agent.scheduler.shapes before it."""

    def changed_since(self, serial: int) -> Changes: ...

    def known(self) -> Iterable[str]: ...

    def answers(self, question: Question, nodes: Sequence[str]) -> Sequence[Answer]: ...


class Hope(msgspec.Struct, frozen=True):
    """A waiter, and the node that has room for it."""

    waiter: Waiter
    node: str


class Waiting:
    """Any thread may tell of pods; one asks for rounds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiters: dict[str, Waiter] = {}
        self._hopes: dict[str, str] = {}
        self._tried_at: dict[str, float] = {}
        self._serial: int | None = None  # None: every node is to be looked at
        self._again: set[str] = set()

    def refused(self, waiter: Waiter) -> None:
        """It found no node, for the first time or again."""
        with self._lock:
            before = self._waiters.get(waiter.uid)
            if before is not None:
                waiter = msgspec.structs.replace(waiter, since=before.since)
            self._waiters[waiter.uid] = waiter

    def adopt(self, waiter: Waiter) -> None:
        """It waits since before we were asked."""
        with self._lock:
            self._waiters.setdefault(waiter.uid, waiter)

    def clear(self) -> None:
        """Nobody is known to wait, and nothing of what nodes said before."""
        with self._lock:
            self._waiters.clear()
            self._hopes.clear()
            self._tried_at.clear()
            self._serial = None

    def pods_changed(self, changes: Sequence[Change[PodReading]]) -> None:
        """What a watch tells: who is bound, or gone, waits no more."""
        for change in changes:
            if change.kind is ChangeKind.DELETED or change.value.node:
                self.settled(change.value.uid)

    def look_again(self, node: str) -> None:
        """Something else than the cluster's state spoke against that node, and does no more."""
        with self._lock:
            self._again.add(node)

    def waits(self, uid: str) -> bool:
        with self._lock:
            return uid in self._waiters

    def settled(self, uid: str) -> None:
        """It was offered a node, or is gone."""
        with self._lock:
            self._waiters.pop(uid, None)
            self._hopes.pop(uid, None)
            self._tried_at.pop(uid, None)

    def waiters(self) -> list[Waiter]:
        """Who waits: the most important first, then who waits longest."""
        with self._lock:
            return sorted(
                self._waiters.values(), key=lambda each: (-each.priority, each.since, each.uid)
            )

    def round(self, answers: Answers, now: float) -> list[Hope]:
        """Whom to try again now, the most important first: a node that changed since the last round
        has room. Those beyond the first few are told in later rounds, if there is room still."""
        waiters = self._current(now)
        changed = self._changed(answers)
        room: dict[tuple[Hashable, str | None], str | None] = {}
        found: list[Hope] = []
        for waiter in waiters:
            before = self._hopes.get(waiter.uid)
            key = waiter.question.shape, before
            if key not in room:
                nodes = changed if before is None else (before, *changed)
                room[key] = _first(answers, waiter.question, nodes) if nodes else None
            if (node := room[key]) is not None:
                found.append(Hope(waiter, node))
        rested = [
            each
            for each in found
            if now - self._tried_at.get(each.waiter.uid, -REST_SECONDS) >= REST_SECONDS
        ][:AT_ONCE]
        tried = {each.waiter.uid for each in rested}
        with self._lock:
            here = self._waiters.keys()
            self._hopes = {
                each.waiter.uid: each.node
                for each in found
                if each.waiter.uid not in tried and each.waiter.uid in here
            }
            self._tried_at.update((uid, now) for uid in tried & here)
        return rested

    def _current(self, now: float) -> list[Waiter]:
        """Without those that kube-scheduler has forgotten: it tries a pod every five minutes."""
        waiters = self.waiters()
        for each in waiters:
            if now - each.refused_at > STALE_SECONDS:
                self.settled(each.uid)
        return [each for each in waiters if now - each.refused_at <= STALE_SECONDS]

    def _changed(self, answers: Answers) -> tuple[str, ...]:
        changes = answers.changed_since(self._serial or 0)
        names = None if self._serial is None else changes.names
        self._serial = changes.serial
        with self._lock:
            again, self._again = self._again, set()
        if names is not None:
            names |= again
        return tuple(sorted(answers.known() if names is None else names))


def _first(answers: Answers, question: Question, nodes: Sequence[str]) -> str | None:
    for node, answer in zip(nodes, answers.answers(question, nodes), strict=True):
        if isinstance(answer, Fit):
            return node
    return None
