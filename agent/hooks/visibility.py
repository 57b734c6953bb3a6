"""Device visibility of new containers: by decision, policy, and the fields that the frontend can
change."""

from __future__ import annotations

from collections.abc import Callable

from agent.hooks import devices
from agent.hooks.calls import Creation, Outcomes
from agent.hooks.carriers import Carried
from agent.hooks.changes import UNCHANGED, Changes, DeviceFields, beyond
from agent.hooks.devices import TakenError
from agent.hooks.gpus import UnhonouredError
from agent.model.failurepolicy import CREATE, DEVICES
from agent.model.verdict import Wait
from agent.model.visible import Visible, VisibleDevices


class DeniedError(Exception):
    """The container must not be created; the text says why."""


class _LateError(UnhonouredError):
    reason = "late"


class _DoorError(UnhonouredError):
    reason = "door"


def visible_devices(
    creation: Creation,
    carried: Callable[[], Carried],
    visible: Visible | Wait,
    node: VisibleDevices | None,
    says: DeviceFields,
    outcomes: Outcomes,
) -> Changes:
    """The changes for it. A container that can't have its allocation fails or keeps its plugin's
    choice, by policy; it never gets another pod's device. `visible` is Wait when there was no
    decision in time. Raises DeniedError."""
    title = creation.pod_title
    try:
        try:
            return _decided(creation, carried, visible, node, says, outcomes)
        except UnhonouredError as error:
            why = f"{title}: {error}"
            if outcomes.fails(CREATE, DEVICES, error.reason, why):
                raise DeniedError(why) from None
            return _kept(creation, carried, node, says)
    except TakenError as error:
        why = f"{title}: {error}"
        outcomes.refused(CREATE, DEVICES, "taken", why)
        raise DeniedError(why) from None


def _decided(
    creation: Creation,
    carried: Callable[[], Carried],
    visible: Visible | Wait,
    node: VisibleDevices | None,
    says: DeviceFields,
    outcomes: Outcomes,
) -> Changes:
    if isinstance(visible, Wait):
        patience = creation.waiting.patience_seconds
        raise _LateError(f"no devices after {patience:g} s: {visible.reason}")
    if node is None:
        return UNCHANGED
    found = carried()
    if found.privileged and visible.gpus is not None:
        why = f"{creation.pod_title}: is privileged, and reaches every device"
        outcomes.goes_on(CREATE, DEVICES, "privileged", why)
    changes = devices.changes(creation.request.pod.uid, found, visible, node)
    if lacking := beyond(changes, says):
        raise _DoorError(f"this way into the runtime can't change {', '.join(lacking)}")
    return changes


def _kept(
    creation: Creation,
    carried: Callable[[], Carried],
    node: VisibleDevices | None,
    says: DeviceFields,
) -> Changes:
    if node is None:
        return UNCHANGED
    uid = creation.request.pod.uid
    changes = devices.unallocated(uid, carried(), node, given=creation.allocated)
    return UNCHANGED if beyond(changes, says) else changes
