"""The runtime's NRI calls, translated for admission, and the values of the runtime's containers by
its reports and by the requests since."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from agent.hooks import cpuset
from agent.hooks.admission import Admission
from agent.hooks.agent_client import SnapshotFile
from agent.hooks.requests import (
    UNCHANGED,
    Changes,
    CreateContainer,
    Creation,
    Unread,
    Update,
    UpdateContainer,
    Verdict,
    Waiting,
)
from agent.model.notifications import PodAnnounced, RequestedResources
from agent.model.settings import failure_policy
from agent.model.settings.failure_policy import Deadlines
from agent.model.snapshot import NOTHING, Snapshot
from agent.model.verdict import Refuse
from agent.nri.conflicts import Conflicts
from agent.nri.messages import NriContainer
from agent.nri.service import PluginCall

_EXPECTED_CPUSETS: Final = 4
"""Of each container: a creation or change, another one at the same time, and the runtime's values
after each."""
_HOOKS = {
    "CreateContainer": failure_policy.CREATE,
    "UpdateContainer": failure_policy.UPDATE,
}


class _InProgress(NamedTuple):
    """A container between the plugin's answer and its creation; `adjusted`: the plugin's
    changes."""

    creation: Creation | Unread
    adjusted: Changes


class NriHooks:
    """Holds a call until its hook's deadline, or until the runtime would time out if that is
    earlier; then its failure policy decides."""

    def __init__(
        self,
        admission: Admission,
        deadlines: Deadlines,
        snapshots: SnapshotFile,
        containers: Containers,
        conflicts: Conflicts,
    ) -> None:
        self._admission = admission
        self._deadlines = deadlines
        self._snapshots = snapshots
        self._containers = containers
        self._conflicts = conflicts
        self._in_progress: dict[str, _InProgress] = {}
        self._changing: dict[str, Update] = {}

    def synchronize(self, containers: Sequence[NriContainer]) -> Mapping[str, Changes]:
        """The calls in progress have ended: each container exists or was not created. Others may
        have been created without a hook."""
        present = {each.id for each in containers}
        for container_id, pending in self._in_progress.items():
            made = container_id if container_id in present else ""
            self._admission.created(pending.creation, made)
        self._in_progress, self._changing = {}, {}
        self._admission.creations_missed()
        self._containers.replace(containers)
        snapshot = self._snapshots.current()
        differing = list(self._containers.differing(snapshot)) if snapshot else []
        for each, changes in differing:
            self._containers.requested(each.id, changes.over(each.asked))
        return {each.id: changes for each, changes in differing}

    def pod_announced(self, pod: PodAnnounced) -> None:
        self._admission.pod_announced(pod)

    def create(self, call: PluginCall) -> Verdict:
        if not isinstance(call.state, Creation):
            assert isinstance(call.request, CreateContainer)
            call.state = Creation(call.request, self._waiting(call, failure_policy.CREATE))
        answer = self._admission.create(call.state, call.carried)
        if isinstance(answer, Changes):
            self._in_progress[call.container.id] = _InProgress(call.state, answer)
            if answer.cpuset is not None:
                self._containers.expect(call.container.id, answer.cpuset)
        return answer

    def update(self, call: PluginCall) -> Verdict:
        if not isinstance(call.state, Update):
            assert isinstance(call.request, UpdateContainer)
            call.state = Update(call.request, self._waiting(call, failure_policy.UPDATE))
            self._check(call.container)
        answer = self._admission.update(call.state)
        if isinstance(answer, Changes):
            self._changing[call.container.id] = call.state
            if cpuset := answer.over(call.state.request.asked).cpuset:
                self._containers.expect(call.container.id, cpuset)
        return answer

    def unhooked(
        self, method: str, call: PluginCall | None, reason: str, detail: str
    ) -> Refuse | None:
        state = call.state if call is not None else None
        creation = state if isinstance(state, Creation) else None
        answer = self._admission.unhooked(_HOOKS[method], creation, reason, detail)
        if isinstance(answer, Refuse):
            return answer
        if answer is not None and call is not None:
            self._in_progress[call.container.id] = _InProgress(answer, UNCHANGED)
        elif answer is not None:
            self._admission.created(answer, "")
        return None

    def abandoned(self, call: PluginCall) -> None:
        if isinstance(call.state, Creation):
            self._admission.abandoned(call.state)

    def created(self, container: NriContainer) -> None:
        pending = self._in_progress.pop(container.id, None)
        if pending is not None:
            self._admission.created(pending.creation, container.id)
            if pending.adjusted.cpuset is not None:
                self._check(container)
        self._containers.put(container)

    def updated(self, container: NriContainer) -> None:
        update = self._changing.pop(container.id, None)
        self._containers.put(container)
        if update is not None:
            self._admission.updated(update, may_be_ours=True)

    def ended(self, container: NriContainer) -> None:
        pending = self._in_progress.pop(container.id, None)
        if pending is not None:
            self._admission.created(pending.creation, "")
            if pending.adjusted != UNCHANGED:
                self._conflicts.undone(container.title)
        self._changing.pop(container.id, None)
        self._containers.drop(container.id)
        self._admission.removed(container.id)
        self._admission.request_snapshot()

    def _check(self, container: NriContainer) -> None:
        """Whether another writer changed the container's CPUs."""
        if (asked := self._containers.changed_by_others(container)) is not None:
            self._conflicts.changed(container.title, asked, container.asked.cpuset)

    def _waiting(self, call: PluginCall, hook: str) -> Waiting:
        return Waiting(call.started, min(self._deadlines.of(hook), call.budget_seconds))


class Containers:
    """The runtime's containers. `version` grows with everything after which a container may differ
    from the wanted values."""

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
            self.expect(each.id, each.asked.cpuset)

    def put(self, container: NriContainer) -> None:
        """The container exists."""
        self.version += 1
        self._present[container.id] = container
        self.expect(container.id, container.asked.cpuset)

    def expect(self, container_id: str, cpuset: str) -> None:
        """The runtime has these CPUs for a container, or they were requested."""
        expected = self._expected.setdefault(container_id, deque(maxlen=_EXPECTED_CPUSETS))
        expected.append(cpuset)

    def requested(self, container_id: str, asked: RequestedResources) -> None:
        """The runtime was asked for these values; an unreported container stays unknown."""
        before = self._present.get(container_id)
        if before is not None and before.asked != asked:
            self.version += 1
            self._present[container_id] = msgspec.structs.replace(before, asked=asked)
            self.expect(container_id, asked.cpuset)

    def drop(self, container_id: str) -> None:
        """The container ended."""
        self._present.pop(container_id, None)
        self._expected.pop(container_id, None)

    def __contains__(self, container_id: str) -> bool:
        return container_id in self._present

    def asked(self, container_id: str) -> RequestedResources | None:
        """The values that the runtime was asked for last, None for an unreported container."""
        present = self._present.get(container_id)
        return None if present is None else present.asked

    def changed_by_others(self, container: NriContainer) -> str | None:
        """The last requested cpuset, when the runtime has another one than the container had or was
        asked for shortly before; otherwise None. Changes by the CRI and by NRI are concurrent, and
        containerd reads a container before it waits for the lock of NRI (internal/cri/nri,
        UpdateContainerResources): a request may show a container as it was before a change that has
        ended."""
        expected = self._expected.get(container.id)
        if not expected or container.asked.cpuset in expected:
            return None
        return expected[-1]

    def differing(self, snapshot: Snapshot) -> Iterator[tuple[NriContainer, Changes]]:
        """The containers whose values differ from the agent's, with the changes. A container that
        must not be created yet is not changed either."""
        for each in self._present.values():
            wanted = snapshot.containers.get(each.id, NOTHING)
            changes = cpuset.missing(wanted, each.asked)
            if changes != UNCHANGED and not wanted.blocked:
                yield each, changes
