"""Events of pods for which no node has room, with the reasons and the objects to change.

kube-scheduler's own Event counts the nodes of each reason; this one names what can be changed. A
pod gets it after it has waited for LASTING_SECONDS, and again every AGAIN_SECONDS. Its text has no
amounts, so the API server keeps one Event while the reasons stay the same. If evictions would make
room and this process makes none, the Event begins with the option that switches them on. Each
explanation is followed by a pause of PAUSES times its duration, so that they take a small part of
the process's time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Protocol

from agent.kube.events import Regarding
from agent.scheduler.unschedulable.queue import (
    QueuedPod,
    UnschedulableQueue,
    WaitingPodExplainer,
)
from agent.view import explanation

NO_NODE_HAS_ROOM: Final = "NoNodeHasRoom"
LASTING_SECONDS: Final = 10.0
AGAIN_SECONDS: Final = 600.0
MAX_PER_STEP: Final = 20
EXPLAIN_SECONDS: Final = 2.0
PAUSES: Final = 20.0
EVICT_HINT: Final = (
    "The eviction of pods of lower priority would make room. kube-scheduler evicts none on a node "
    "that has enough in sum; Topolet's scheduler does with --evict (scheduler.evict of the chart). "
)


class EventRecording(Protocol):
    """Delivers Events."""

    def record(self, regarding: Regarding, reason: str, note: str) -> None: ...


class NoRoomEvents:
    """One thread calls `step`. `leading` returns whether this process leads; only the leader
    records Events."""

    def __init__(
        self,
        queue: UnschedulableQueue,
        explainer: WaitingPodExplainer,
        recorder: EventRecording,
        leading: Callable[[], bool],
        *,
        evicts: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`evicts`: this process evicts pods of lower priority."""
        self._queue = queue
        self._explainer = explainer
        self._recorder = recorder
        self._leading = leading
        self._evicts = evicts
        self._clock = clock
        self._due: dict[str, float] = {}
        self._not_before = 0.0

    def step(self) -> None:
        """Explains pods that are due, the most important first. Never raises."""
        if not self._leading():
            self._due.clear()
            return
        pods = self._queue.pods()
        self._due = {each.uid: self._due.get(each.uid, 0.0) for each in pods}
        explained = 0
        for each in pods:
            now = self._clock()
            if now < self._not_before or explained == MAX_PER_STEP:
                return
            if now - each.since >= LASTING_SECONDS and now >= self._due[each.uid]:
                self._explain(each, now)
                explained += 1

    def _explain(self, queued: QueuedPod, now: float) -> None:
        self._due[queued.uid] = now + AGAIN_SECONDS
        if (info := queued.info) is None:
            return
        found = self._explainer.explain_waiting(info, until=time.monotonic() + EXPLAIN_SECONDS)
        self._not_before = now + (self._clock() - now) * (1 + PAUSES)
        # If a node has room, kube-scheduler rejects it for other reasons, or the room is new.
        if not found.winner and not found.nodes_left_out:
            regarding = Regarding(queued.namespace, queued.name, queued.uid)
            evictable = any(each.eviction and not each.eviction.protected for each in found.nodes)
            hint = EVICT_HINT if evictable and not self._evicts else ""
            self._recorder.record(regarding, NO_NODE_HAS_ROOM, hint + explanation.note(found))
