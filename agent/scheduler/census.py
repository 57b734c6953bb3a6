"""Which pods of a node its word on its NUMA nodes counts, as far as that can be known.

This alone is history: the order in which pods began, who went last, and who came since the last
word. Who starts anew does not know it, and where the word there is counts other pods, waits for the
next one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from agent.allocate.zoned.freshness import Method, State, freshness
from agent.allocate.zoned.node import ZoneFacts
from agent.allocate.zoned.pod import ZonedPod, exclusive
from agent.model import fingerprint
from agent.scheduler.readings import PodReading

MOST_GONE: Final = 8
"""How many of the pods that went last a word may count still."""


class Census:
    """One thread at a time."""

    __slots__ = ("_begun", "_counted", "_ended", "_gone", "_pods", "_since", "_waiting")

    def __init__(self, pods: Mapping[str, PodReading]) -> None:
        """`pods`: those of the whole cluster that hold something, by uid."""
        self._pods = pods
        self._begun: list[str] = []
        self._waiting: list[str] = []
        self._ended: dict[str, PodReading] = _NOBODY
        self._gone: tuple[tuple[int, ZonedPod | None], ...] = ()
        self._since: frozenset[str] = frozenset()
        self._counted: _Counted | None = None

    @property
    def empty(self) -> bool:
        """Nobody has begun."""
        return not self._begun

    def reported(self) -> None:
        """The node gave a new word: it may count all that have begun."""
        self._counted = None
        if self._since:
            self._since = self._since.difference(self._begun)

    def seen(self, pod: PodReading, *, new: bool = False) -> None:
        """A pod on the node as it is now, ended or not; `new`: no word can count it yet."""
        uid, here = pod.uid, self._begun
        if pod.ended:
            self._ended = {**self._ended, uid: pod}
        elif new or not pod.begun:
            self._since |= {uid}
        if not (pod.begun or pod.ended):
            here = self._waiting
        elif uid in self._waiting:
            self._waiting.remove(uid)
        if uid not in here:
            here.append(uid)
        self._counted = None

    def went(self, pod: PodReading) -> None:
        """It is no more; as it was."""
        uid = pod.uid
        if uid in self._since:
            self._since -= {uid}
        if uid in self._ended:
            self._ended = {key: each for key, each in self._ended.items() if key != uid}
        if uid in self._waiting:
            self._waiting.remove(uid)
        if uid in self._begun:
            self._begun.remove(uid)
            self._gone = (*self._gone[1 - MOST_GONE :], (_hash(pod), pod.zoned))
        self._counted = None

    def counted(self, zones: ZoneFacts) -> frozenset[str] | None:
        """The uids of pods that the word counts; None where it counts some that are not known."""
        if self._counted is None:
            self._counted = self._count(zones)
        return self._counted.uids

    def _count(self, zones: ZoneFacts) -> _Counted:
        if zones.fingerprint is None:
            return _Counted(frozenset(self._begun) - self._since)
        gone = [at for at, zoned in self._gone if _counts(zones, zoned)]
        for uids in self._told_of():
            naming = [pod for pod in map(self._pod, uids) if _counts(zones, pod.zoned)]
            found = freshness(zones.fingerprint, [_hash(each) for each in naming], gone)
            if found.state is not State.OTHER:
                missing = {each.uid for each in naming[len(naming) - found.missing :]}
                return _Counted(frozenset(uids) - missing)
        return _Counted(None)

    def _told_of(self) -> Iterator[list[str]]:
        """Whom reports may name, in the order in which they began: all that have, as ours do; those
        alone that have not ended, as a kubelet tells of them; and those beside them that it has
        taken in, which the API server hears of when they run."""
        yield self._begun
        running = [uid for uid in self._begun if uid not in self._ended]
        if self._ended:
            yield running
        if self._waiting:
            yield [*running, *self._waiting]

    def _pod(self, uid: str) -> PodReading:
        return self._ended.get(uid) or self._pods[uid]


class _Counted(msgspec.Struct, frozen=True):
    uids: frozenset[str] | None


_NOBODY: Final[dict[str, PodReading]] = {}


def _counts(zones: ZoneFacts, zoned: ZonedPod | None) -> bool:
    if zones.method is Method.ALL:
        return True
    return zoned is not None and exclusive(zoned, zones.told.available)


def _hash(pod: PodReading) -> int:
    namespace, _, name = pod.title.partition("/")
    return fingerprint.pod_hash(namespace, name)
