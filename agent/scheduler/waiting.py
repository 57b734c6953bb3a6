"""The pods that our rules hold back, and those of them that a changed node has room for by now."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable, Sequence
from typing import Final, Protocol

import msgspec

from agent.kube.objects import Change, ChangeKind
from agent.scheduler.changelog import Changes
from agent.scheduler.groupname import Group
from agent.scheduler.nodenames import NodeNames
from agent.scheduler.readings import PodReading
from agent.scheduler.shapes import Answer, Fit, Question
from agent.scheduler.waiter import Waiter

AT_ONCE: Final = 128
"""Pods of one round: a node has room for few of those that wait alike."""
REST_SECONDS: Final = 4.0
"""Between two tries of one pod; kube-scheduler may have reasons of its own against a node."""

LONGEST_ANSWER_SECONDS: Final = 5.0
"""kube-scheduler waits no longer for one."""
STALE_SECONDS: Final = 900.0
"""After its last refusal nobody asks for a pod any more."""


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
        self._recent: list[tuple[float, tuple[str, ...]]] = []
        self._round_at: float | None = None
        self._names = NodeNames()
        self._kept: dict[str, set[str]] = {}

    def refused(self, waiter: Waiter, offered: Iterable[str] | None = None) -> None:
        """It found none of these nodes, for the first time or again."""
        with self._lock:
            if offered is not None:
                if self._names.full:
                    self._forget_names()
                waiter = msgspec.structs.replace(waiter, offered=self._names.bits(offered))
            before = self._waiters.get(waiter.uid)
            if before is not None:
                waiter = msgspec.structs.replace(waiter, since=before.since)
            self._waiters[waiter.uid] = waiter
            self._nominated(before.nominated if before is not None else "", waiter)

    def adopt(self, waiter: Waiter) -> None:
        """It waits since before we were asked."""
        with self._lock:
            if self._waiters.setdefault(waiter.uid, waiter) is waiter:
                self._nominated("", waiter)

    def clear(self) -> None:
        """Nobody is known to wait, and nothing of what nodes said before."""
        with self._lock:
            self._waiters.clear()
            self._hopes.clear()
            self._tried_at.clear()
            self._kept.clear()
            self._recent.clear()
            self._serial = None

    def pods_changed(self, changes: Sequence[Change[PodReading]]) -> None:
        """What a watch tells: who is bound, or gone, waits no more."""
        for change in changes:
            if change.kind is ChangeKind.DELETED or change.value.node:
                self.settled(change.value.uid)

    @property
    def keeps(self) -> bool:
        """Whether room is made for anyone."""
        return bool(self._kept)

    def keep(self, uid: str, node: str) -> None:
        """Room is made there for that pod, until `give_up`, or as long as it waits."""
        with self._lock:
            self._kept.setdefault(node, set()).add(uid)

    def give_up(self, uid: str, node: str) -> None:
        """Others may have it again."""
        with self._lock:
            self._give_up(uid, node)

    def kept_for(self, group: Group) -> bool:
        """Whether room is made somewhere for a member."""
        with self._lock:
            uids = {uid for kept in self._kept.values() for uid in kept}
            return any(self._waiters[uid].group == group for uid in uids & self._waiters.keys())

    def kept_from(
        self, uid: str, priority: int, now: float, group: Group | None = None
    ) -> frozenset[str]:
        """Nodes that the pod, of that group, may not have: room is made there for one that is more
        important, or as important and waits longer. What is made for a member is for all."""
        with self._lock:
            waiter = self._waiters.get(uid)
            mine = (-priority, now if waiter is None else waiter.since, uid)
            return frozenset(
                node
                for node, uids in self._kept.items()
                if any(
                    other.rank < mine and (group is None or other.group != group)
                    for other in map(self._waiters.get, uids)
                    if other is not None
                )
            )

    def __len__(self) -> int:
        return len(self._waiters)

    def waits(self, uid: str) -> bool:
        with self._lock:
            return uid in self._waiters

    def settled(self, uid: str) -> None:
        """It was offered a node, or is gone."""
        with self._lock:
            waiter = self._waiters.pop(uid, None)
            self._hopes.pop(uid, None)
            self._tried_at.pop(uid, None)
            if waiter is not None and self._kept:
                for node in [node for node, uids in self._kept.items() if uid in uids]:
                    self._give_up(uid, node)

    def waiters(self) -> list[Waiter]:
        """By rank."""
        with self._lock:
            return sorted(self._waiters.values(), key=lambda each: each.rank)

    def round(self, answers: Answers, now: float) -> list[Hope]:
        """Whom to try again now, the most important first: a node that changed since the last round
        has room. Those beyond the first few are told in later rounds, if there is room still."""
        waiters = self._current(now)
        news = self._changed(answers)
        # Whom we were asked about meanwhile may have been judged before the last round's changes.
        lately = self._lately(news, now)
        last, self._round_at = self._round_at, now
        with self._lock:
            told = self._names.known(lately)
        room: dict[tuple[Hashable, str | None, int | None, bool], str | None] = {}
        found: list[Hope] = []
        for waiter in waiters:
            before = self._hopes.get(waiter.uid)
            offered = None if waiter.offered is None else waiter.offered & told
            new = last is None or waiter.refused_at >= last
            key = waiter.question.shape, before, offered, new
            if key not in room:
                changed = lately if new else news
                nodes = [] if before is None else [before]
                nodes += changed if offered is None else self._among(changed, offered)
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

    def _nominated(self, before: str, waiter: Waiter) -> None:
        if before and before != waiter.nominated:
            self._give_up(waiter.uid, before)
        if waiter.nominated:
            self._kept.setdefault(waiter.nominated, set()).add(waiter.uid)

    def _give_up(self, uid: str, node: str) -> None:
        """Who was kept from it looks at it again: nothing else tells of the change."""
        uids = self._kept.get(node)
        if uids is not None and uid in uids:
            uids.discard(uid)
            self._again.add(node)
            if not uids:
                del self._kept[node]

    def _lately(self, news: tuple[str, ...], now: float) -> tuple[str, ...]:
        """What has changed in the time that an answer may take, with the news."""
        self._recent = [each for each in self._recent if now - each[0] <= LONGEST_ANSWER_SECONDS]
        if news:
            self._recent.append((now, news))
        return tuple(dict.fromkeys(node for _, nodes in self._recent for node in nodes))

    def _among(self, nodes: Iterable[str], offered: int) -> list[str]:
        with self._lock:
            return self._names.among(nodes, offered)

    def _forget_names(self) -> None:
        """Who waits is tried once more than it need be."""
        self._names.forget()
        self._waiters = {
            uid: msgspec.structs.replace(each, offered=None) for uid, each in self._waiters.items()
        }

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
