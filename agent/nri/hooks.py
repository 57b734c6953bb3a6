"""The runtime's NRI calls, translated for admission."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

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
from agent.model.linux_resources import LinuxResources
from agent.model.notifications import PodAnnounced
from agent.model.settings import frontends
from agent.model.settings.frontends import Deadlines
from agent.model.verdict import Refuse
from agent.nri.conflicts import Conflicts
from agent.nri.containers import Containers
from agent.nri.messages import NriContainer
from agent.nri.service import PluginCall

_HOOKS = {
    "CreateContainer": frontends.CREATE,
    "UpdateContainer": frontends.UPDATE,
}


class _InProgress(NamedTuple):
    """A creation that the plugin answered, until the runtime reports its result. `adjusted`: the
    plugin's changes."""

    creation: Creation | Unread
    adjusted: Changes


class NriHooks:
    """Implements `service.Plugin` with admission. A call waits until its hook's deadline, or until
    the end of the call's budget if that is earlier; then the failure policy decides."""

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

    def synchronize(self, containers: Sequence[NriContainer]) -> Mapping[str, LinuxResources]:
        """The runtime reports its containers when a session begins. The calls of the session before
        have ended, and other containers may have been created without a hook."""
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
            self._containers.requested(each.id, changes.over(each.requested))
        return {each.id: changes for each, changes in differing}

    def pod_announced(self, pod: PodAnnounced) -> None:
        self._admission.pod_announced(pod)

    def pod_removed(self, uid: str) -> None:
        self._admission.sandbox_changed(uid)

    def create(self, call: PluginCall) -> Verdict:
        if not isinstance(call.state, Creation):
            assert isinstance(call.request, CreateContainer)
            call.state = Creation(call.request, self._waiting(call, frontends.CREATE))
        answer = self._admission.create(call.state, call.carried)
        if isinstance(answer, Changes):
            self._in_progress[call.container.id] = _InProgress(call.state, answer)
            if (cpuset := answer.resources.cpuset) is not None:
                self._containers.expect(call.container.id, cpuset)
        return answer

    def update(self, call: PluginCall) -> Verdict:
        if not isinstance(call.state, Update):
            assert isinstance(call.request, UpdateContainer)
            call.state = Update(call.request, self._waiting(call, frontends.UPDATE))
            self._check(call.container)
        answer = self._admission.update(call.state)
        if isinstance(answer, Changes):
            self._changing[call.container.id] = call.state
            if cpuset := answer.resources.over(call.state.request.requested).cpuset:
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
            if pending.adjusted.resources.cpuset is not None:
                self._check(container)
        self._containers.put(container)

    def updated(self, container: NriContainer) -> None:
        update = self._changing.pop(container.id, None)
        self._containers.put(container)
        if update is not None:
            self._admission.updated(update, may_be_of_agent=True)

    def ended(self, container: NriContainer) -> None:
        pending = self._in_progress.pop(container.id, None)
        if pending is not None:
            self._admission.created(pending.creation, "")
            if pending.adjusted != UNCHANGED:
                self._conflicts.undone(container.title)
        self._changing.pop(container.id, None)
        self._containers.drop(container.id)
        self._admission.removed(container.id)
        self._admission.report_change()

    def _check(self, container: NriContainer) -> None:
        """Reports a conflict if another writer changed the container's CPUs."""
        if (expected := self._containers.changed_by_others(container)) is not None:
            self._conflicts.changed(container.title, expected, container.requested.cpuset or "")

    def _waiting(self, call: PluginCall, hook: str) -> Waiting:
        return Waiting(call.started, min(self._deadlines.of(hook), call.budget_seconds))
