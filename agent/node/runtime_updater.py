"""Updates the runtime, in the background, with the values that the agent wrote to cgroups.

A runtime writes all values that it stores of a container whenever a client updates one of them. The
updater makes one call at a time, with the newest values only. The CPUs of a call in progress count
as held (`in_progress`), as the runtime may apply them at any moment.

The updater skips a container whose cgroup does not exist any more. containerd 2.4.2 with NRI, its
default, crashes with a nil pointer when it removes a container during an update of it
(internal/cri/nri, criContainer.GetRlimits); it removes the cgroup well before the container.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from agent.cri.client import Cri, VerboseStatus
from agent.model.cpu.cpuset import EMPTY, CpuSet
from agent.model.linux_resources import NO_RESOURCES, LinuxResources
from agent.model.verdict import Code
from agent.rpc.grpc import NO_ANSWER, RpcError

log = logging.getLogger(__name__)

RETRY_SECONDS = 5.0
SETTLE_SECONDS: Final = 1.0
"""How long after a decision its updates begin. A runtime needs tens of milliseconds of CPU time for
each update, and at that time it starts the containers of the pod that caused the decision. The
updates are not urgent: the cgroups have the values already. Frontends put the values into every
update of another client; without a frontend, a pass writes the cgroups again after such an
update."""


class RuntimeUpdater:
    """A thread with a connection of its own. The first call begins `settle_seconds` after the queue
    was empty.

    `exists`: whether a cgroup exists."""

    def __init__(
        self, cri: Cri, exists: Callable[[str], bool], settle_seconds: float = SETTLE_SECONDS
    ) -> None:
        self._cri = cri
        self._exists = exists
        self._settle_seconds = settle_seconds
        self._due: float | None = None
        self._changed = threading.Condition()
        self._sent: dict[str, LinuxResources] = {}
        self._queue: dict[str, LinuxResources] = {}
        self._groups: Mapping[str, str] = {}
        self._calling: tuple[str, LinuxResources] | None = None
        self._unanswered: dict[str, CpuSet] = {}
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="runtime-updater", daemon=True)
        self._thread.start()

    def update(
        self,
        containers: Mapping[str, LinuxResources],
        stored: Mapping[str, VerboseStatus],
        groups: Mapping[str, str],
    ) -> None:
        """Queues the wanted values that the runtime does not store.

        `containers`: all that run, with their wanted values.
        `stored`: the values that the runtime stores, for the containers that were inspected in this
            pass.
        `groups`: their cgroups, as far as they are known."""
        with self._changed:
            self._groups = groups
            for gone in self._sent.keys() - containers.keys():
                del self._sent[gone]
            self._unanswered = {
                container_id: cpus
                for container_id, cpus in self._unanswered.items()
                if containers.get(container_id, NO_RESOURCES) != NO_RESOURCES
            }
            self._queue = {
                container_id: wanted
                for container_id, wanted in containers.items()
                if wanted != NO_RESOURCES
                and not self._note_current(container_id, wanted, stored.get(container_id))
            }
            if not self._queue:
                self._due = None
                return
            if self._due is None:
                self._due = time.monotonic() + self._settle_seconds
            self._changed.notify_all()

    def pause(self) -> bool:
        """Clears the queue until the next `update`. Returns whether a call is in progress, or has
        had no answer."""
        with self._changed:
            self._queue = {}
            return self._calling is not None or bool(self._unanswered)

    def in_progress(self) -> dict[str, CpuSet]:
        """By container id, the CPUs of the call in progress, and of calls without an answer: a
        runtime that hung may still apply those, until it answers a later call."""
        with self._changed:
            cpus_by_id = dict(self._unanswered)
            if self._calling is not None:
                container_id, wanted = self._calling
                cpus_by_id[container_id] = cpus_by_id.get(container_id, EMPTY) | _cpus(wanted)
            return {each: cpus for each, cpus in cpus_by_id.items() if cpus}

    def idle(self) -> bool:
        """Whether the queue is empty and no call is in progress."""
        with self._changed:
            return not self._queue and self._calling is None

    def close(self) -> None:
        """Ends the thread after the call in progress."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()
        self._cri.close()

    def _note_current(
        self, container_id: str, wanted: LinuxResources, status: VerboseStatus | None
    ) -> bool:
        """Whether the runtime stores the values already. Then it counts as having got them."""
        sent = self._sent.get(container_id)
        if container_id in self._unanswered:
            return False
        if sent is None and status is not None and stores(status, wanted):
            sent = self._sent[container_id] = wanted
        return sent == wanted

    def _run(self) -> None:
        while True:
            with self._changed:
                self._wait_until_due()
                if self._closing:
                    return
                container_id = next(iter(self._queue))
                wanted = self._queue.pop(container_id)
                if not self._queue:
                    self._due = None
                self._calling = container_id, wanted
                group = self._groups.get(container_id)
            ended = group is not None and not self._exists(group)
            error = Code.NOT_FOUND if ended else self._call(container_id, wanted)
            with self._changed:
                self._calling = None
                if error not in NO_ANSWER:
                    self._sent[container_id] = wanted
                    self._unanswered.pop(container_id, None)
                    continue
                self._sent.pop(container_id, None)
                if error != Code.UNAVAILABLE:  # the call ended with the runtime
                    before = self._unanswered.get(container_id, EMPTY)
                    self._unanswered[container_id] = before | _cpus(wanted)
                self._changed.wait_for(lambda: self._closing, RETRY_SECONDS)

    def _wait_until_due(self) -> None:
        """Returns when a call is due, or after `close`. Passes in between do not restart the
        wait."""
        while not self._closing:
            left = None
            if self._queue and self._due is not None:
                left = self._due - time.monotonic()
                if left <= 0:
                    return
            self._changed.wait(left)

    def _call(self, container_id: str, wanted: LinuxResources) -> int:
        """Returns the status of the call. An update that the runtime refuses is not repeated: the
        cgroups are correct without it."""
        try:
            self._cri.update(container_id, wanted)
        except RpcError as error:
            if error.code not in NO_ANSWER and error.code != Code.NOT_FOUND:
                log.warning("container %s: the runtime refused the update: %s", container_id, error)
            return error.code
        return Code.OK


def _cpus(wanted: LinuxResources) -> CpuSet:
    return EMPTY if wanted.cpuset is None else CpuSet.parse(wanted.cpuset)


def stores(status: VerboseStatus, wanted: LinuxResources) -> bool:
    """Whether the runtime stores the wanted values of a container."""
    return wanted.missing_in(status.resources) == NO_RESOURCES
