"""The devices that a new container sees: by the agent's decision, by policy, and by the fields that
the frontend can change. Every carrier of a device is rewritten, also those that the device plugin
does not use: strategies combine, and one unchanged carrier would expose another pod's card."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import chain
from typing import Final

import msgspec

from agent.hooks import carriers, gpus
from agent.hooks.carriers import PRELOAD, Carried
from agent.hooks.changes import UNCHANGED, CarriedNode, Changes, DeviceFields, beyond
from agent.hooks.gpus import UnhonouredError
from agent.hooks.requests import Creation, Outcomes
from agent.model.failurepolicy import CREATE, DEVICES
from agent.model.verdict import Wait
from agent.model.visible import HeldDevice, Visible, VisibleDevices


class DeniedError(Exception):
    """The container must not be created; the text is the reason."""


class _LateError(UnhonouredError):
    reason = "late"


class _FrontendError(UnhonouredError):
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
    changes = device_changes(creation.request.pod.uid, found, visible, node)
    if lacking := beyond(changes, says):
        raise _FrontendError(f"this way into the runtime can't change {', '.join(lacking)}")
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
    changes = unallocated(uid, carried(), node, given=creation.allocated)
    return UNCHANGED if beyond(changes, says) else changes


_ALL: Final = "all"
_MOST_NAMES: Final = 1024
"""More than a node has GPUs; all of them are compared with all of those."""


class TakenError(ValueError):
    """A request names a device of another pod, so it must not pass. The text names the device."""


def device_changes(uid: str, carried: Carried, visible: Visible, node: VisibleDevices) -> Changes:
    """The changes of the request that show those devices to the container. Raises UnhonouredError,
    TakenError."""
    if visible.refused:
        raise UnhonouredError(visible.refused)
    if visible.gpus is None:
        own = unallocated(uid, carried, node)
    else:
        own = gpus.rewritten(carried, visible.gpus, node.cdi_kind)
    removed, added = list(own.removed_nodes), list(own.nodes)
    for device_type, nodes in sorted(visible.nodes.items()):
        present = [
            each for each in carried.nodes if carriers.is_node_of(device_type, each.host_path)
        ]
        go, come = gpus.replaced(present, nodes, carried.nodes)
        removed += go
        added += come
    _keeps_off(uid, carried, node, removed)
    return msgspec.structs.replace(
        own,
        mounts=(*own.mounts, *visible.mounts),
        environment=(*own.environment, *_environment(carried, visible)),
        nodes=tuple(added),
        removed_nodes=tuple(removed),
    )


def unallocated(
    uid: str, carried: Carried, node: VisibleDevices, *, given: bool = False
) -> Changes:
    """The changes for a container that keeps the devices of its request. `given`: its pod has an
    allocation that can't be honoured. Raises TakenError when the request names another pod's
    device; a pod without an allocation may name `all`: it monitors them. A container that names
    none must not get those of its image, unless it serves the node's devices or reaches them in any
    case."""
    names = list(dict.fromkeys(carried.names()))
    if len(names) > _MOST_NAMES:
        raise TakenError(f"its request names {len(names)} GPUs")
    for device in _others(node, uid):
        whole_and_parts = _related(device, node.held)
        for name in names:
            if (name.lower() == _ALL and given and device.is_gpu) or any(
                carriers.refers(name, each.uuid, each.index) for each in whole_and_parts
            ):
                raise TakenError(f"{name} of its request is {device.uuid}, another pod's")
    _keeps_off(uid, carried, node)
    if not given and (
        node.unasked == "leave"
        or (node.unasked == "hide" and (carried.serving or carried.privileged))
    ):
        return UNCHANGED
    denied = node.unasked == "deny" and _ALL in map(str.lower, names)
    asks = bool(names or carried.environment) or any(
        carriers.is_card_node(each.host_path) for each in carried.nodes
    )
    return gpus.rewritten(carried, ()) if denied or not asks else UNCHANGED


def _others(node: VisibleDevices, uid: str) -> Iterator[HeldDevice]:
    """The devices of other pods that this pod was not given."""
    return (each for each in node.held if each.holders and uid not in each.holders)


def _related(device: HeldDevice, held: Iterable[HeldDevice]) -> list[HeldDevice]:
    """The device, the card that it is part of, and its parts."""
    return [
        each for each in held if device.uuid in (each.uuid, each.card) or each.uuid == device.card
    ]


def _keeps_off(
    uid: str, carried: Carried, node: VisibleDevices, removed: Collection[CarriedNode] = ()
) -> None:
    """Raises TakenError for a device node, or a card of a claim, of another pod. A card's own node
    gives no access to its instances, which have nodes of their own; of a folder a runtime takes
    every node."""
    asked = {each.host_path: each.host_path for each in carried.nodes if each not in removed}
    asked |= {path: name for name, path in carried.claimed()}
    for device in _others(node, uid) if asked else ():
        parts = (each for each in node.held if device.uuid in (each.uuid, each.card))
        for path in chain.from_iterable(each.nodes for each in parts):
            for place in _with_folders(path):
                if (name := asked.get(place)) is not None:
                    raise TakenError(f"{name} of its request is {device.uuid}, another pod's")


def _with_folders(path: str) -> Iterator[str]:
    while path:
        yield path
        path = path.rpartition("/")[0]


def _environment(carried: Carried, visible: Visible) -> tuple[tuple[str, str], ...]:
    """The container's own preloaded libraries stay, after ours."""
    return tuple(
        (name, f"{value}:{carried.preload}" if name == PRELOAD and carried.preload else value)
        for name, value in visible.environment
    )
