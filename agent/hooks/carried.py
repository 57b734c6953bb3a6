"""The devices that the bytes of a CRI request name."""

from __future__ import annotations

from typing import Final

from agent.hooks import carriers, wire
from agent.hooks.carriers import Carried
from agent.hooks.changes import CarriedNode
from agent.hooks.requests import (
    ANNOTATIONS,
    CDI_DEVICES,
    CONFIG,
    CONTAINER_PATH,
    ENVIRONMENT,
    HOST_PATH,
    MOUNTS,
    NODE_HOST_PATH,
    NODE_PATH,
    NODE_PERMISSIONS,
    NODES,
    PRIVILEGED,
    SECURITY_CONTEXT,
)
from agent.model import gpunames

_SIGNS: Final = {
    ENVIRONMENT: (gpunames.VISIBLE_DEVICES.encode(), carriers.PRELOAD.encode()),
    MOUNTS: (
        b"nvidia-container-devices",
        b"device-plugins",
        b"pod-resources",
        b"node-feature-discovery",
    ),
    NODES: (b"",),
    ANNOTATIONS: (gpunames.CDI_ANNOTATIONS.encode(),),
    CDI_DEVICES: (b"",),
}
"""Part of every entry that may name devices: most requests have many other entries."""


def carried(message: bytes) -> Carried:
    """The carriers of devices of a request to create a container. Raises WireError."""
    found: dict[int, list[bytes]] = {field: [] for field in _SIGNS}
    for field, kind, payload in wire.fields(wire.merged(message, CONFIG)):
        if kind == wire.BYTES and field in found:
            signs = _SIGNS[field]
            if any(sign in payload for sign in signs):
                found[field].append(payload)
    variables = [
        (name, wire.text(each, 2))
        for each in found[ENVIRONMENT]
        if (name := wire.text(each, 1)) in (gpunames.VISIBLE_DEVICES, carriers.PRELOAD)
    ]
    notes = [
        (key, wire.text(each, 2))
        for each in found[ANNOTATIONS]
        if gpunames.is_cdi_annotation(key := wire.text(each, 1))
    ]
    places = [wire.text(each, CONTAINER_PATH) for each in found[MOUNTS]]
    return Carried(
        environment=tuple(value for name, value in variables if name == gpunames.VISIBLE_DEVICES),
        preload=dict(variables).get(carriers.PRELOAD, ""),
        mounts=tuple(each for each in places if carriers.mounted_name(each) is not None),
        annotations=tuple(notes),
        cdi_devices=tuple(wire.text(each, 1) for each in found[CDI_DEVICES]),
        nodes=tuple(_node(each) for each in found[NODES]),
        privileged=bool(wire.number(wire.merged(message, *SECURITY_CONTEXT), PRIVILEGED)),
        serving=any(carriers.serves(wire.text(each, HOST_PATH)) for each in found[MOUNTS]),
    )


def _node(message: bytes) -> CarriedNode:
    return CarriedNode(
        gpunames.cleaned(wire.text(message, NODE_HOST_PATH)),
        wire.text(message, NODE_PATH),
        wire.text(message, NODE_PERMISSIONS),
    )
