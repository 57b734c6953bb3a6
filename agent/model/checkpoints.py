"""Devices that pods hold without an annotation of a scheduler, in an annotation of the Device
object. Key and format are those of the fine-grained device scheduling proposal (which writes
`gpu-checkpoints` too). A device has the name that the object gives it, with its part after `::`,
except for virtual functions, which have addresses of their own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Final

import msgspec

from agent.model import bounds
from agent.model.annotations import decoded
from agent.model.holding import DeviceGrant, DeviceHolding, Form, HoldingSource

DEVICES_CHECKPOINTS: Final = "node.koordinator.sh/devices-checkpoints"


class _Entry(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    pod_uid: str = msgspec.field(default="", name="podUID")
    container_name: str = ""
    resource_name: str = ""
    device_ids: tuple[str, ...] | None = msgspec.field(default=None, name="deviceIDs")


def encode(holdings: Iterable[DeviceHolding]) -> dict[str, str]:
    """The annotation; none without held devices. A device that everybody may open is not held."""
    ids: dict[tuple[str, str, str], set[str]] = {}
    for each in holdings:
        if each.device and each.form is not Form.OPEN:
            ids.setdefault((each.uid, each.container, each.resource), set()).add(_name(each))
    entries = [_Entry(*key, tuple(sorted(names))) for key, names in sorted(ids.items())]
    return {DEVICES_CHECKPOINTS: msgspec.json.encode(entries).decode()} if entries else {}


def decode(annotations: Mapping[str, str]) -> tuple[DeviceGrant, ...]:
    """The annotation of a Device object. Raises AnnotationError."""
    entries = decoded(annotations, DEVICES_CHECKPOINTS, _decoder, bounds.OBJECT_LIST_BYTES) or ()
    return tuple(
        DeviceGrant(
            each.pod_uid,
            each.container_name,
            each.resource_name,
            each.device_ids or (),
            HoldingSource.CHECKPOINT,
        )
        for each in entries
    )


def _name(holding: DeviceHolding) -> str:
    if holding.form is Form.FUNCTION:
        return holding.part
    return f"{holding.device}::{holding.part}" if holding.part else holding.device


_decoder: Final = msgspec.json.Decoder(
    Annotated[tuple[_Entry, ...], msgspec.Meta(max_length=bounds.MOST_PODS)] | None
)
