"""Which devices a new container sees: pure functions of what its request carries, what the agent
decided for it, and who has what on the node.

Every carrier that is found is rewritten, whatever the device plugin was told to use: strategies
combine, and one that is left alone would let another pod's card in.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import chain
from typing import Final

import msgspec

from agent.hooks import carriers, gpus
from agent.hooks.carriers import PRELOAD, Carried
from agent.hooks.changes import UNCHANGED, CarriedNode, Changes
from agent.hooks.gpus import UnhonouredError
from agent.model.visible import HeldDevice, NodeDevices, Visible

_ALL: Final = "all"
_MOST_NAMES: Final = 1024
"""More than a node has GPUs; all of them are compared with all of those."""


class TakenError(ValueError):
    """A request names what another pod has: it must not go on with that. The text says what."""


def changes(uid: str, carried: Carried, visible: Visible, node: NodeDevices) -> Changes:
    """What the request to make a container of the pod changes for it to see those devices. Raises
    UnhonouredError, TakenError."""
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


def unallocated(uid: str, carried: Carried, node: NodeDevices, *, given: bool = False) -> Changes:
    """For a container that keeps what its request names. `given`: its pod was given devices that it
    can't have. Raises TakenError where another pod has what is named; `all` may be named by a pod
    that was given nothing: it watches them. One that names nothing must not get what its image
    says, unless it serves the node's devices, or reaches them whatever is written."""
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


def _others(node: NodeDevices, uid: str) -> Iterator[HeldDevice]:
    """What the pod was not given, and others were."""
    return (each for each in node.held if each.holders and uid not in each.holders)


def _related(device: HeldDevice, held: Iterable[HeldDevice]) -> list[HeldDevice]:
    """The device, the card that it is a part of, and its parts."""
    return [
        each for each in held if device.uuid in (each.uuid, each.card) or each.uuid == device.card
    ]


def _keeps_off(
    uid: str, carried: Carried, node: NodeDevices, removed: Collection[CarriedNode] = ()
) -> None:
    """Raises TakenError where one of the device nodes, or of the cards of a claim, is another
    pod's. A card's own node says nothing of its instances, which have nodes beside it; of a folder
    a runtime takes all that is in it."""
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
    """What the container preloads itself stays, behind ours."""
    return tuple(
        (name, f"{value}:{carried.preload}" if name == PRELOAD and carried.preload else value)
        for name, value in visible.environment
    )
