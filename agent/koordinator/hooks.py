"""What koord-runtime-proxy asks, translated for admission, and which creations it has under way."""

from __future__ import annotations

import time
from typing import Final, NamedTuple

from agent.hooks.admission import Admission
from agent.hooks.agent_link import SnapshotFile
from agent.hooks.requests import (
    Changes,
    CreateContainer,
    Creation,
    Unread,
    Update,
    UpdateContainer,
    Verdict,
    Waiting,
)
from agent.koordinator.messages import ContainerRef
from agent.koordinator.service import RuntimeHookCall
from agent.model import failurepolicy
from agent.model.failurepolicy import Deadlines
from agent.model.notifications import PodAnnounced
from agent.model.verdict import Refuse

SETTLE_SECONDS: Final = 10.0
"""After which a creation that was not started counts as over: there is no report of its failure."""

_METHODS: Final = {
    "PreRunPodSandbox": failurepolicy.RUN,
    "PostStopPodSandbox": "StopPodSandbox",
    "PreCreateContainer": failurepolicy.CREATE,
    "PreStartContainer": "StartContainer",
    "PostStartContainer": "StartContainer",
    "PreUpdateContainerResources": failurepolicy.UPDATE,
    "PostStopContainer": "StopContainer",
}
"""By which name failure policies know a hook."""


class _Making(NamedTuple):
    creation: Creation
    over_at: float


class KoordinatorHooks:
    """Holds a call until its hook's deadline or shortly before its caller's; then its failure
    policy decides."""

    def __init__(self, admission: Admission, deadlines: Deadlines, snapshots: SnapshotFile) -> None:
        self._admission = admission
        self._deadlines = deadlines
        self._snapshots = snapshots
        self._making: dict[tuple[str, str], _Making] = {}

    def pod_announced(self, pod: PodAnnounced) -> None:
        self._admission.pod_announced(pod)

    def create(self, call: RuntimeHookCall, request: CreateContainer) -> Verdict:
        self._settle()
        if not isinstance(call.state, Creation):
            call.state = Creation(request, self._waiting(call, failurepolicy.CREATE))
            self._over(request.pod.uid, request.container_name)
        answer = self._admission.create(call.state, call.carried)
        if isinstance(answer, Changes):
            key = request.pod.uid, request.container_name
            self._over(*key)
            self._making[key] = _Making(call.state, time.monotonic() + SETTLE_SECONDS)
        return answer

    def update(self, call: RuntimeHookCall, request: UpdateContainer) -> Verdict:
        if not isinstance(call.state, Update):
            call.state = Update(request, self._waiting(call, failurepolicy.UPDATE))
        answer = self._admission.update(call.state)
        if isinstance(answer, Changes) and not self._repeats_ours(request):
            self._admission.updated(call.state)
        return answer

    def exists(self, container: ContainerRef) -> None:
        making = self._making.pop((container.pod_uid, container.name), None)
        if making is None:
            self._admission.request_snapshot()
        else:
            self._admission.created(making.creation, container.container_id)

    def stopped(self, container: ContainerRef) -> None:
        self._admission.removed(container.container_id)
        self._admission.request_snapshot()

    def pod_stopped(self, uid: str) -> None:
        for key in [key for key in self._making if key[0] == uid]:
            self._over(*key)
        self._admission.request_snapshot()

    def abandoned(self, call: RuntimeHookCall) -> None:
        if isinstance(call.state, Creation):
            self._admission.abandoned(call.state)

    def unhooked(self, hook: str, call: RuntimeHookCall, reason: str, detail: str) -> Refuse | None:
        creation = call.state if isinstance(call.state, Creation) else None
        answer = self._admission.unhooked(_METHODS[hook], creation, reason, detail)
        if isinstance(answer, Unread):
            self._admission.created(answer, "")
            return None
        return answer

    def _settle(self) -> None:
        now = time.monotonic()
        for key in [key for key, making in self._making.items() if making.over_at <= now]:
            self._over(*key)

    def _over(self, uid: str, name: str) -> None:
        """The container may exist, or was never made."""
        making = self._making.pop((uid, name), None)
        if making is not None:
            self._admission.created(making.creation, "")

    def _waiting(self, call: RuntimeHookCall, hook: str) -> Waiting:
        patience = self._deadlines.of(hook)
        if call.budget_seconds is not None:
            patience = min(patience, call.budget_seconds)
        return Waiting(call.started, patience)

    def _repeats_ours(self, request: UpdateContainer) -> bool:
        """Whether the CPU shares are those that we set: koord-runtime-proxy repeats a container's
        values in every update of it, and these are not a kubelet's request."""
        snapshot = self._snapshots.current()
        wanted = snapshot.containers.get(request.container_id) if snapshot else None
        return wanted is not None and wanted.limits.shares == request.asked.shares
