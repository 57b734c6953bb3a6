"""What the runtime's NRI asks: translated for admission, and what containers hold is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from agent.hooks.changes import UNCHANGED, Changes
from agent.hooks.requests import CreateContainer, UpdateContainer
from agent.model import failurepolicy
from agent.model.doorbell import PodComes
from agent.model.failurepolicy import Deadlines
from agent.plugin.conflicts import Conflicts
from agent.plugin.containers import Containers
from agent.proxy.admission import Admission, Held, Refused
from agent.proxy.calls import Creation, Unread, Update, Waiting
from agent.proxy.snapshots import SnapshotFile
from agent.rpc.grpc import Code
from agent.runtime.gate import HOLD, Hold, Refuse
from agent.runtime.nri.messages import Seen
from agent.runtime.nri.plugin import Call

_HOOKS = {
    "CreateContainer": failurepolicy.CREATE,
    "UpdateContainer": failurepolicy.UPDATE,
}


class _Making(NamedTuple):
    """A container between our answer and what came of it; `adjusted`: what we changed."""

    creation: Creation | Unread
    adjusted: Changes


class Hooks:
    """Holds a call until its hook's deadline or the end of the runtime's patience, whatever comes
    first; then its policy speaks."""

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
        self._making: dict[str, _Making] = {}
        self._changing: dict[str, Update] = {}

    def synchronize(self, containers: Sequence[Seen]) -> Mapping[str, Changes]:
        """What was under way has ended: either a container is there, or it was not made. Others may
        have been made while nobody asked us."""
        present = {each.id for each in containers}
        for container_id, making in self._making.items():
            made = container_id if container_id in present else ""
            self._admission.created(making.creation, made)
        self._making, self._changing = {}, {}
        self._admission.missed()
        self._containers.replace(containers)
        snapshot = self._snapshots.current()
        differing = list(self._containers.differing(snapshot)) if snapshot else []
        for each, changes in differing:
            self._containers.told(each.id, changes.over(each.asked))
        return {each.id: changes for each, changes in differing}

    def pod_comes(self, pod: PodComes) -> None:
        self._admission.pod_comes(pod)

    def create(self, call: Call) -> Changes | Hold | Refuse:
        if not isinstance(call.state, Creation):
            assert isinstance(call.request, CreateContainer)
            call.state = Creation(call.request, self._waiting(call, failurepolicy.CREATE))
        answer = self._admission.create(call.state, call.carried)
        if isinstance(answer, Held):
            return HOLD
        if isinstance(answer, Refused):
            return Refuse(Code.UNAVAILABLE, answer.why)
        self._making[call.container.id] = _Making(call.state, answer)
        return answer

    def update(self, call: Call) -> Changes | Hold | Refuse:
        if not isinstance(call.state, Update):
            assert isinstance(call.request, UpdateContainer)
            call.state = Update(call.request, self._waiting(call, failurepolicy.UPDATE))
            given = self._containers.strange(call.container)
            if given is not None:
                self._conflicts.changed(call.container.title, given, call.container.asked.cpuset)
        answer = self._admission.update(call.state)
        if isinstance(answer, Held):
            return HOLD
        if isinstance(answer, Refused):
            return Refuse(Code.UNAVAILABLE, answer.why)
        self._changing[call.container.id] = call.state
        return answer

    def unhooked(self, method: str, call: Call | None, reason: str, detail: str) -> Refuse | None:
        state = call.state if call is not None else None
        creation = state if isinstance(state, Creation) else None
        answer = self._admission.unhooked(_HOOKS[method], creation, reason, detail)
        if isinstance(answer, Refused):
            return Refuse(Code.INTERNAL, answer.why)
        if answer is not None and call is not None:
            self._making[call.container.id] = _Making(answer, UNCHANGED)
        elif answer is not None:
            self._admission.created(answer, "")
        return None

    def abandoned(self, call: Call) -> None:
        if isinstance(call.state, Creation):
            self._admission.abandoned(call.state)

    def created(self, container: Seen) -> None:
        making = self._making.pop(container.id, None)
        if making is not None:
            self._admission.created(making.creation, container.id)
            ours = making.adjusted.cpuset
            if ours is not None and ours != container.asked.cpuset:
                self._conflicts.changed(container.title, ours, container.asked.cpuset)
        self._containers.put(container)

    def updated(self, container: Seen) -> None:
        update = self._changing.pop(container.id, None)
        self._containers.put(container)
        if update is not None and not self._is_ours(update):
            self._admission.updated(update)

    def ended(self, container: Seen) -> None:
        making = self._making.pop(container.id, None)
        if making is not None:
            self._admission.created(making.creation, "")
            if making.adjusted != UNCHANGED:
                self._conflicts.undone(container.title)
        self._changing.pop(container.id, None)
        self._containers.drop(container.id)
        self._admission.removed(container.id)
        self._admission.look()

    def _waiting(self, call: Call, hook: str) -> Waiting:
        return Waiting(call.started, min(self._deadlines.of(hook), call.budget_seconds))

    def _is_ours(self, update: Update) -> bool:
        """Whether the agent asked for the change: it asks for what it wants, and nothing else. What
        it then holds is no wish of a kubelet."""
        snapshot = self._snapshots.current()
        wanted = snapshot.containers.get(update.request.container_id) if snapshot else None
        return wanted is not None and wanted.limits.shares == update.request.asked.shares
