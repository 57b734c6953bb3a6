"""What new containers see of devices: by decision, by what the door can change, and by policy."""

from __future__ import annotations

from agent.hooks import devices
from agent.hooks.changes import UNCHANGED, Changes
from agent.hooks.cpuset import Wait
from agent.hooks.devices import Says, TakenError
from agent.hooks.gpus import UnhonouredError
from agent.model.failurepolicy import CREATE, DEVICES
from agent.model.visible import NodeDevices, Visible
from agent.proxy.calls import Creation
from agent.proxy.outcomes import Outcomes


class DeniedError(Exception):
    """The container must not be made; the text says why."""


class _LateError(UnhonouredError):
    reason = "late"


class _DoorError(UnhonouredError):
    reason = "door"


class Shown:
    """A container that can't have what was allocated, for whatever reason, fails or keeps its
    plugin's choice, by policy; it never gets another pod's."""

    def __init__(self, outcomes: Outcomes, says: Says) -> None:
        self._outcomes = outcomes
        self._says = says

    def of(self, creation: Creation, visible: Visible | Wait, node: NodeDevices | None) -> Changes:
        """`visible` is Wait where nothing was decided in time. Raises DeniedError."""
        title = creation.pod_title
        try:
            try:
                return self._decided(creation, visible, node)
            except UnhonouredError as error:
                why = f"{title}: {error}"
                if self._outcomes.fails(CREATE, DEVICES, error.reason, why):
                    raise DeniedError(why) from None
                return self._kept(creation, node)
        except TakenError as error:
            why = f"{title}: {error}"
            self._outcomes.refused(CREATE, DEVICES, "taken", why)
            raise DeniedError(why) from None

    def _decided(
        self, creation: Creation, visible: Visible | Wait, node: NodeDevices | None
    ) -> Changes:
        if isinstance(visible, Wait):
            patience = creation.waiting.patience_seconds
            raise _LateError(f"no devices after {patience:g} s: {visible.reason}")
        if node is None:
            return UNCHANGED
        carried = creation.carried()
        if carried.privileged and visible.gpus is not None:
            why = f"{creation.pod_title}: is privileged, and reaches every device"
            self._outcomes.goes_on(CREATE, DEVICES, "privileged", why)
        changes = devices.changes(creation.request.pod.uid, carried, visible, node)
        if lacking := devices.beyond(changes, self._says):
            raise _DoorError(f"this way into the runtime can't change {', '.join(lacking)}")
        return changes

    def _kept(self, creation: Creation, node: NodeDevices | None) -> Changes:
        if node is None:
            return UNCHANGED
        changes = devices.unallocated(
            creation.request.pod.uid, creation.carried(), node, given=creation.allocated
        )
        return UNCHANGED if devices.beyond(changes, self._says) else changes
