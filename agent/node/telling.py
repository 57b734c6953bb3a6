"""Tells the runtime, in the background, what its containers hold since their cgroups were changed.

A runtime writes back all that it remembers of a container whenever it is asked to change a part of
it. One call at a time, the newest values only; whatever a call may put in force meanwhile counts as
held (`under_way`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping

from agent.model.cpuset import EMPTY, CpuSet
from agent.model.wanted import Wanted
from agent.rpc.grpc import NO_ANSWER, Code, RpcError
from agent.runtime.cri import Cri, Placement

log = logging.getLogger(__name__)

RETRY_SECONDS = 5.0


class Teller:
    """A thread with a connection of its own."""

    def __init__(self, cri: Cri) -> None:
        self._cri = cri
        self._changed = threading.Condition()
        self._told: dict[str, Wanted] = {}
        self._queue: dict[str, Wanted] = {}
        self._calling: tuple[str, Wanted] | None = None
        self._unanswered: dict[str, CpuSet] = {}
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="teller", daemon=True)
        self._thread.start()

    def want(self, containers: Mapping[str, Wanted], remembered: Mapping[str, Placement]) -> None:
        """`containers`: all that run; `remembered`: what the runtime said of them, of those it was
        asked about in this look."""
        with self._changed:
            for gone in self._told.keys() - containers.keys():
                del self._told[gone]
            self._unanswered = {
                each: cpus
                for each, cpus in self._unanswered.items()
                if each in containers and not containers[each].hands_off
            }
            self._queue = {
                each: wanted
                for each, wanted in containers.items()
                if not wanted.hands_off and not self._knows(each, wanted, remembered.get(each))
            }
            if self._queue:
                self._changed.notify_all()

    def pause(self) -> bool:
        """Forgets what is still to be told, until `want`; whether a call is under way, or was left
        without an answer."""
        with self._changed:
            self._queue = {}
            return self._calling is not None or bool(self._unanswered)

    def under_way(self) -> dict[str, CpuSet]:
        """By container id, the CPUs that a call is just telling; and those of calls without an
        answer, which a runtime that hung may still put in force, until it answers a later one."""
        with self._changed:
            telling = dict(self._unanswered)
            if self._calling is not None:
                container_id, wanted = self._calling
                telling[container_id] = telling.get(container_id, EMPTY) | _cpus(wanted)
            return {each: cpus for each, cpus in telling.items() if cpus}

    def idle(self) -> bool:
        """Whether nothing is to be told."""
        with self._changed:
            return not self._queue and self._calling is None

    def close(self) -> None:
        """Ends the thread after the call under way."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()
        self._cri.close()

    def _knows(self, container_id: str, wanted: Wanted, said: Placement | None) -> bool:
        told = self._told.get(container_id)
        if container_id in self._unanswered:
            return False
        if told is None and said is not None and remembers(said, wanted):
            told = self._told[container_id] = wanted
        return told == wanted

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closing)
                if self._closing:
                    return
                container_id = next(iter(self._queue))
                wanted = self._queue.pop(container_id)
                self._calling = container_id, wanted
            error = self._tell(container_id, wanted)
            with self._changed:
                self._calling = None
                if error not in NO_ANSWER:
                    self._told[container_id] = wanted
                    self._unanswered.pop(container_id, None)
                    continue
                self._told.pop(container_id, None)
                if error != Code.UNAVAILABLE:  # a call ends with its runtime, and not with us
                    before = self._unanswered.get(container_id, EMPTY)
                    self._unanswered[container_id] = before | _cpus(wanted)
                self._changed.wait_for(lambda: self._closing, RETRY_SECONDS)

    def _tell(self, container_id: str, wanted: Wanted) -> int:
        """The status. What the runtime refuses is not said a second time, the cgroups are right
        without it."""
        try:
            self._cri.update(container_id, wanted)
        except RpcError as error:
            if error.code not in NO_ANSWER and error.code != Code.NOT_FOUND:
                log.warning("container %s: the runtime was not told: %s", container_id, error)
            return error.code
        return Code.OK


def _cpus(wanted: Wanted) -> CpuSet:
    return EMPTY if wanted.cpuset is None else CpuSet.parse(wanted.cpuset)


def remembers(said: Placement, wanted: Wanted) -> bool:
    """Whether the runtime's own word of a container is what is wanted of it."""
    limits = wanted.limits
    quota = limits.quota_microseconds
    if wanted.exclusive and quota is None and said.quota_microseconds > 0:
        return False
    pairs = (
        (wanted.cpuset, said.cpuset),
        (None if limits.mems is None else str(limits.mems), said.mems),
        (quota, said.quota_microseconds),
        (limits.shares, said.shares),
        (limits.memory_limit_bytes, said.memory_limit_bytes),
    )
    return all(asked is None or asked == present for asked, present in pairs)
