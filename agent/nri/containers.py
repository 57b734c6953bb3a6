"""The runtime's containers with their values, by its reports and by later requests, and the updates
of those whose values differ from the agent's, one container at a time.

An update is never sent inside a call of the runtime, which holds its lock until the answer. A
runtime in which updates can cause a deadlock gets none (`service`); the agent also updates
containers by CRI calls, with every runtime. The container of an update in progress is assumed until
a pass of the agent that began after the update's end: until then no owner's container is created on
CPUs that the update may still set."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from agent.hooks.agent_client import Notifier, SnapshotFile
from agent.hooks.cpuset import AssumedContainer, AssumedContainers, requested_cpus
from agent.host import processes
from agent.host.log_once import of_title
from agent.host.loop import Loop
from agent.model.cpu.cpuset import CpuSet
from agent.model.linux_resources import NO_RESOURCES, LinuxResources
from agent.model.notifications import SnapshotRequest
from agent.model.snapshot import NOTHING, Snapshot
from agent.nri.conflicts import Conflicts
from agent.nri.link import PluginLink
from agent.nri.messages import NriContainer
from agent.rpc.grpc import NO_ANSWER, RpcError

PERIOD_SECONDS: Final = 0.1
_EXPECTED_CPUSETS: Final = 4
"""The CPUs that a container may have at one time: those of a request, of another request at the
same time, and the runtime's after each of the two."""

log = logging.getLogger(__name__)


class Containers:
    """The runtime's containers. `version` grows with each change after which a container may
    differ from the agent's values."""

    def __init__(self) -> None:
        self._present: dict[str, NriContainer] = {}
        self._expected: dict[str, deque[str]] = {}
        self.version = 0

    def __len__(self) -> int:
        return len(self._present)

    def replace(self, containers: Iterable[NriContainer]) -> None:
        """The runtime reported all containers."""
        self.version += 1
        self._present = {each.id: each for each in containers}
        self._expected = {}
        for each in self._present.values():
            self.expect(each.id, each.requested.cpuset)

    def put(self, container: NriContainer) -> None:
        """The container exists."""
        self.version += 1
        self._present[container.id] = container
        self.expect(container.id, container.requested.cpuset)

    def expect(self, container_id: str, cpuset: str | None) -> None:
        """The runtime reports these CPUs for a container, or they were requested."""
        expected = self._expected.setdefault(container_id, deque(maxlen=_EXPECTED_CPUSETS))
        expected.append(cpuset or "")

    def requested(self, container_id: str, values: LinuxResources) -> None:
        """The runtime was requested to set these values. Without effect for a container that the
        runtime has not reported."""
        before = self._present.get(container_id)
        if before is not None and before.requested != values:
            self.version += 1
            self._present[container_id] = msgspec.structs.replace(before, requested=values)
            self.expect(container_id, values.cpuset)

    def drop(self, container_id: str) -> None:
        """The container ended."""
        self._present.pop(container_id, None)
        self._expected.pop(container_id, None)

    def __contains__(self, container_id: str) -> bool:
        return container_id in self._present

    def values_of(self, container_id: str) -> LinuxResources | None:
        """The last requested values; None for a container that the runtime has not reported."""
        present = self._present.get(container_id)
        return None if present is None else present.requested

    def changed_by_others(self, container: NriContainer) -> str | None:
        """The last expected cpuset, if another process changed the reported container's CPUs;
        otherwise None. Several of the last expected cpusets are right, because changes by the CRI
        and by NRI are concurrent: containerd reads a container before it waits for the lock of NRI
        (internal/cri/nri, UpdateContainerResources), so that it may report the values before a
        change that has ended."""
        expected = self._expected.get(container.id)
        if not expected or (container.requested.cpuset or "") in expected:
            return None
        return expected[-1]

    def differing(self, snapshot: Snapshot) -> Iterator[tuple[NriContainer, LinuxResources]]:
        """The containers whose values differ from the snapshot's, with the changes to make. Leaves
        out containers that the agent blocks."""
        for each in self._present.values():
            wanted = snapshot.containers.get(each.id, NOTHING)
            changes = wanted.over(each.requested).missing_in(each.requested)
            if changes != NO_RESOURCES and not wanted.blocked:
                yield each, changes


class Updater:
    """Updates the containers whose values differ from the snapshot's.

    The runtime's answer does not prove a change: for an unknown or ended container it is success
    (containerd: internal/nri/domain.go, updateContainers). So after an update the CPUs of the
    container's process are read, if the process is known, and the agent is notified in any case. A
    refused update is not repeated until the agent wants other values."""

    def __init__(
        self,
        loop: Loop,
        link: PluginLink,
        snapshots: SnapshotFile,
        containers: Containers,
        assumed: AssumedContainers,
        notifier: Notifier,
        conflicts: Conflicts,
        proc: str = "/proc",
    ) -> None:
        self.updates = 0
        self.failed = 0
        self.unverified = 0
        """Updates that the runtime accepted while the container's process may run on other
        CPUs."""
        self._loop = loop
        self._link = link
        self._snapshots = snapshots
        self._containers = containers
        self._assumed = assumed
        self._notifier = notifier
        self._conflicts = conflicts
        self._proc = proc
        self._refused: dict[str, LinuxResources] = {}
        self._settled: tuple[int, int] | None = None
        self._applied: Snapshot | None = None
        self._under_way = False
        self._updated = False

    def start(self) -> None:
        """Starts to update containers."""
        self._update_next()
        self._loop.after(PERIOD_SECONDS, self.start)

    def _update_next(self) -> None:
        """Updates the first container that differs, and after the runtime's answer the next."""
        snapshot = self._snapshots.current()
        if self._under_way or snapshot is None or len(self._link.held):
            return
        if not self._link.accepts_updates:
            return
        state = (self._containers.version, self._link.sessions)
        if snapshot is self._applied and state == self._settled:
            return
        for container, changes in self._containers.differing(snapshot):
            if self._refused.get(container.id) != changes:
                self._send(container, changes, snapshot)
                return
        self._applied, self._settled = snapshot, state
        self._refused = {
            each: changes for each, changes in self._refused.items() if each in self._containers
        }
        if self._updated:
            self._updated = False
            self._notifier.notify(SnapshotRequest())

    def _send(self, container: NriContainer, changes: LinuxResources, snapshot: Snapshot) -> None:
        wanted = snapshot.containers[container.id]
        values = changes.over(container.requested)
        # Whatever is changed, the runtime writes all values that it stores.
        cpus = requested_cpus(values.cpuset)
        title = f"container {container.title}"
        number = self._assumed.assume(AssumedContainer(container.pod_uid, title, cpus, wanted))
        self._under_way = self._updated = True
        self._containers.expect(container.id, values.cpuset)

        def done(error: RpcError | None) -> None:
            self._under_way = False
            if error is None:
                self._assumed.answered(number, container.id)
                self.updates += 1
                self._refused.pop(container.id, None)
                present = self._containers.values_of(container.id)
                if present is not None:
                    self._containers.requested(container.id, changes.over(present))
                self._verify(container, changes)
            else:
                self._assumed.failed(number)
                self._fail(container, changes, error)
            self._loop.after(0, self._update_next)

        self._link.update(container.id, changes, done)

    def _fail(self, container: NriContainer, changes: LinuxResources, error: RpcError) -> None:
        self.failed += 1
        if error.code in NO_ANSWER:
            return
        self._refused[container.id] = changes
        fields = of_title(container.title, "update_failed")
        log.warning("%s: the runtime refuses a change: %s", container.title, error, extra=fields)
        self._conflicts.error(container.title, error.message)

    def _verify(self, container: NriContainer, changes: LinuxResources) -> None:
        if not container.pid or changes.cpuset is None:
            return
        allowed = processes.allowed_cpus(self._proc, container.pid)
        if allowed is not None and CpuSet.parse(allowed) - CpuSet.parse(changes.cpuset):
            self.unverified += 1
            log.warning(
                "%s: the runtime was updated to CPUs %s, but its process runs on %s",
                container.title,
                changes.cpuset,
                allowed,
                extra=of_title(container.title, "unverified"),
            )
