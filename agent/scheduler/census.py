"""Which pods of a node its word on its NUMA nodes counts, as far as that can be known.

This alone is history: the order in which pods began, who went last, and who came since the last
word. Who starts anew does not know it, and where the word there is counts other pods, waits for the
next one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from agent.allocate.zoned.freshness import Freshness, Method, State, freshness
from agent.allocate.zoned.node import ZoneFacts
from agent.allocate.zoned.pod import ZonedPod, exclusive
from agent.model import fingerprint
from agent.scheduler.readings import PodReading

MOST_GONE: Final = 8
"""How many of the pods that went last a word may count still."""


class Census:
    """One thread at a time."""

    __slots__ = ("_begun", "_ended", "_freshness", "_gone", "_pods", "_since")

    def __init__(self, pods: Mapping[str, PodReading]) -> None:
        """`pods`: those of the whole cluster that hold something, by uid."""
        self._pods = pods
        self._begun: list[str] = []
        self._ended: dict[str, PodReading] | None = None
        self._gone: tuple[tuple[int, ZonedPod | None], ...] = ()
        self._since: frozenset[str] = frozenset()
        self._freshness: Freshness | None = None

    @property
    def empty(self) -> bool:
        """Nobody has begun."""
        return not self._begun

    def reported(self) -> None:
        """The node gave a new word: it may count all that have begun."""
        self._freshness = None
        if self._since:
            self._since = self._since.difference(self._begun)

    def seen(self, pod: PodReading, *, new: bool = False) -> None:
        """A pod on the node as it is now, ended or not; `new`: no word can count it yet."""
        if pod.ended:
            self._ended = {**(self._ended or {}), pod.uid: pod}
        elif new or not pod.begun:
            self._since |= {pod.uid}
        if (pod.begun or pod.ended) and pod.uid not in self._begun:
            self._begun.append(pod.uid)
            self._freshness = None

    def went(self, pod: PodReading) -> None:
        """It is no more; as it was."""
        if pod.uid in self._since:
            self._since -= {pod.uid}
        if self._ended is not None:
            self._ended = {uid: each for uid, each in self._ended.items() if uid != pod.uid} or None
        if pod.uid in self._begun:
            self._begun.remove(pod.uid)
            self._gone = (*self._gone[1 - MOST_GONE :], (_hash(pod), pod.zoned))
            self._freshness = None

    def counted(self, zones: ZoneFacts) -> frozenset[str] | None:
        """The uids of pods that the word counts; None where it counts some that are not known."""
        found = self._fresh(zones)
        if found.state is State.OTHER:
            return None
        begun = frozenset(self._begun)
        if found.state is State.UNTOLD:
            return begun - self._since
        if found.missing:
            begun -= {each.uid for each in self._counting(zones)[-found.missing :]}
        return begun

    def _fresh(self, zones: ZoneFacts) -> Freshness:
        if self._freshness is None:
            known = [_hash(each) for each in self._counting(zones)]
            gone = [at for at, zoned in self._gone if _counts(zones, zoned)]
            self._freshness = freshness(zones.fingerprint, known, gone)
            if self._freshness.state is State.CURRENT:
                self._gone = ()
        return self._freshness

    def _counting(self, zones: ZoneFacts) -> list[PodReading]:
        ended = self._ended or {}
        pods = (self._pods.get(uid) or ended[uid] for uid in self._begun)
        return [each for each in pods if _counts(zones, each.zoned)]


def _counts(zones: ZoneFacts, zoned: ZonedPod | None) -> bool:
    if zones.method is Method.ALL:
        return True
    return zoned is not None and exclusive(zoned, zones.told.available)


def _hash(pod: PodReading) -> int:
    namespace, _, name = pod.title.partition("/")
    return fingerprint.pod_hash(namespace, name)
