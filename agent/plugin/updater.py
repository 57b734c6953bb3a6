"""Tells the runtime what the agent changed: containers that exist, one at a time. A runtime whose
NRI can lock itself up over that is left to the agent, which tells it by the CRI in any case.

Outside of every call of the runtime's: it holds its lock until that is answered. A call under way
counts as a grant, from before the snapshot that it obeys can be outdated until the agent has looked
since its end, so that no owner's container is made beside what it may still put in force.
"""

from __future__ import annotations

import logging
from typing import Final

from agent.hooks.changes import Changes
from agent.hooks.cpuset import Grant
from agent.host import processes
from agent.model.cpuset import CpuSet
from agent.model.doorbell import Look
from agent.model.snapshot import Snapshot
from agent.plugin.conflicts import Conflicts
from agent.plugin.containers import Containers
from agent.proxy.admission import may_hold
from agent.proxy.bell import Bell
from agent.proxy.grants import Grants
from agent.proxy.snapshots import SnapshotFile
from agent.rpc.grpc import NO_ANSWER, RpcError
from agent.runtime.loop import Loop
from agent.runtime.nri.link import Link
from agent.runtime.nri.messages import Seen

PERIOD_SECONDS: Final = 0.1

log = logging.getLogger(__name__)


class Updater:
    """No answer is a proof (runtime.md §4.8): where a process of the container is known, what it
    may run on is read, and the agent looks in any case. What the runtime refuses is not said again
    until something else is wanted."""

    def __init__(
        self,
        loop: Loop,
        link: Link,
        snapshots: SnapshotFile,
        containers: Containers,
        grants: Grants,
        bell: Bell,
        conflicts: Conflicts,
        proc: str = "/proc",
    ) -> None:
        self.updates = 0
        self.failed = 0
        self.unverified = 0
        """Accepted by the runtime, and yet a process of the container may run elsewhere."""
        self._loop = loop
        self._link = link
        self._snapshots = snapshots
        self._containers = containers
        self._grants = grants
        self._bell = bell
        self._conflicts = conflicts
        self._proc = proc
        self._refused: dict[str, Changes] = {}
        self._settled: tuple[int, int] | None = None
        self._obeyed: Snapshot | None = None
        self._under_way = False
        self._told = False

    def start(self) -> None:
        """From now on looks for something to tell."""
        self._look()
        self._loop.after(PERIOD_SECONDS, self.start)

    def _look(self) -> None:
        """Tells the first container that differs, and after its answer the next."""
        snapshot = self._snapshots.current()
        if self._under_way or snapshot is None or self._link.stats.held_now:
            return
        if not self._link.takes_updates:
            return
        state = (self._containers.version, self._link.sessions)
        if snapshot is self._obeyed and state == self._settled:
            return
        for container, changes in self._containers.differing(snapshot):
            if self._refused.get(container.id) != changes:
                self._tell(container, changes, snapshot)
                return
        self._obeyed, self._settled = snapshot, state
        self._refused = {
            each: changes for each, changes in self._refused.items() if each in self._containers
        }
        if self._told:
            self._told = False
            self._bell.ring(Look())

    def _tell(self, container: Seen, changes: Changes, snapshot: Snapshot) -> None:
        wanted = snapshot.containers[container.id]
        asked = changes.over(container.asked)
        # Whatever is changed, the runtime writes all that it remembers.
        cpus = may_hold(asked.cpuset)
        title = f"container {container.title}"
        grant = self._grants.open(Grant(container.pod_uid, title, cpus, wanted))
        self._under_way = self._told = True
        self._containers.telling = (container.id, asked)

        def done(error: RpcError | None) -> None:
            self._under_way = False
            self._containers.telling = None
            if error is None:
                self._grants.answered(grant, container.id)
                self.updates += 1
                self._refused.pop(container.id, None)
                present = self._containers.asked(container.id)
                if present is not None:
                    self._containers.told(container.id, changes.over(present))
                self._verify(container, changes)
            else:
                self._grants.failed(grant)
                self._fail(container, changes, error)
            self._loop.after(0, self._look)

        self._link.update(container.id, changes, done)

    def _fail(self, container: Seen, changes: Changes, error: RpcError) -> None:
        self.failed += 1
        if error.code in NO_ANSWER:
            return
        self._refused[container.id] = changes
        log.warning("%s: the runtime refuses a change: %s", container.title, error)
        self._conflicts.error(container.title, error.message)

    def _verify(self, container: Seen, changes: Changes) -> None:
        if not container.pid or changes.cpuset is None:
            return
        allowed = processes.allowed_cpus(self._proc, container.pid)
        if allowed is not None and CpuSet.parse(allowed) - CpuSet.parse(changes.cpuset):
            self.unverified += 1
            log.warning(
                "%s: the runtime was told CPUs %s, its process runs on %s",
                container.title,
                changes.cpuset,
                allowed,
            )
