"""What a device plugin answered when it gave devices (v1beta1 ContainerAllocateResponse), from the
kubelet's device checkpoint: the carriers of the container to be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from agent.allocate.foreign.carriers import Carriers
from agent.hooks import wire

_ENVIRONMENT: Final = 1
_MOUNTS: Final = 2
_DEVICES: Final = 3
_ANNOTATIONS: Final = 4
_CDI_DEVICES: Final = 5
_CONTAINER_PATH: Final = 1
_HOST_PATH: Final = 2
_NAME: Final = 1


def carriers(answer: bytes) -> Carriers:
    """Raises ValueError for bytes that are no such message."""
    return Carriers(
        environment=tuple(wire.string_map(answer, _ENVIRONMENT).items()),
        cdi_devices=tuple(wire.text(each, _NAME) for each in _messages(answer, _CDI_DEVICES)),
        annotations=tuple(wire.string_map(answer, _ANNOTATIONS).items()),
        mounts=tuple(wire.text(each, _CONTAINER_PATH) for each in _messages(answer, _MOUNTS)),
        nodes=tuple(wire.text(each, _HOST_PATH) for each in _messages(answer, _DEVICES)),
    )


def _messages(answer: bytes, wanted: int) -> Iterator[bytes]:
    for field, kind, payload in wire.fields(answer):
        if (field, kind) == (wanted, wire.BYTES):
            yield payload
