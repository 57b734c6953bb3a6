"""A plugin for tests that records the runtime's calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agent.hooks.requests import UNCHANGED, Changes
from agent.model.linux_resources import LinuxResources
from agent.model.notifications import PodAnnounced
from agent.model.verdict import Refuse, Wait
from agent.nri.messages import NriContainer
from agent.nri.service import PluginCall


class Recorder:
    """Answers with `answer`, or fails with `error`; records calls and events."""

    def __init__(self) -> None:
        self.answer: Changes | Wait | Refuse = UNCHANGED
        self.error: Exception | None = None
        self.changes: Mapping[str, LinuxResources] = {}
        self.calls: list[PluginCall] = []
        self.unhooked_calls: list[tuple[str, PluginCall | None, str, str]] = []
        self.refusal: Refuse | None = None
        self.policy_error: Exception | None = None
        self.events: list[tuple[str, object]] = []

    def synchronize(self, containers: Sequence[NriContainer]) -> Mapping[str, LinuxResources]:
        self._record("synchronize", containers)
        return self.changes

    def pod_announced(self, pod: PodAnnounced) -> None:
        self._record("pod", pod)

    def pod_removed(self, uid: str) -> None:
        self._record("pod removed", uid)

    def create(self, call: PluginCall) -> Changes | Wait | Refuse:
        self.calls.append(call)
        if self.error:
            raise self.error
        return self.answer

    def update(self, call: PluginCall) -> Changes | Wait | Refuse:
        return self.create(call)

    def unhooked(
        self, method: str, call: PluginCall | None, reason: str, detail: str
    ) -> Refuse | None:
        self.unhooked_calls.append((method, call, reason, detail))
        if self.policy_error:
            raise self.policy_error
        return self.refusal

    def abandoned(self, call: PluginCall) -> None:
        self._record("abandoned", call.container.id)

    def created(self, container: NriContainer) -> None:
        self._record("created", container.id)

    def updated(self, container: NriContainer) -> None:
        self._record("updated", container.id)

    def ended(self, container: NriContainer) -> None:
        self._record("ended", container.id)

    def _record(self, name: str, value: object) -> None:
        self.events.append((name, value))
        if self.error:
            raise self.error
