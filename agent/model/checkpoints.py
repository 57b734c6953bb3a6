"""Devices that pods hold without a scheduler's annotation, as the Device object says it.

Key and shape are those of the proposal for fine-grained device scheduling (which writes
`gpu-checkpoints` too). A device is named as the object names it; a part of it stands behind `::`,
but for virtual functions, which have addresses of their own there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from agent.model import jsontext
from agent.model.annotations import AnnotationError
from agent.model.holding import Form, Grant, Holding, Source
from agent.model.jsontext import JsonError

DEVICES_CHECKPOINTS: Final = "node.koordinator.sh/devices-checkpoints"


class _Entry(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    pod_uid: str = msgspec.field(default="", name="podUID")
    container_name: str = ""
    resource_name: str = ""
    device_ids: tuple[str, ...] | None = msgspec.field(default=None, name="deviceIDs")


def encode(holdings: Iterable[Holding]) -> dict[str, str]:
    """The annotation, none where nothing is held; what is open to all is not held."""
    ids: dict[tuple[str, str, str], set[str]] = {}
    for each in holdings:
        if each.device and each.form is not Form.OPEN:
            ids.setdefault((each.uid, each.container, each.resource), set()).add(_name(each))
    entries = [_Entry(*key, tuple(sorted(names))) for key, names in sorted(ids.items())]
    return {DEVICES_CHECKPOINTS: msgspec.json.encode(entries).decode()} if entries else {}


def decode(annotations: Mapping[str, str]) -> tuple[Grant, ...]:
    """Of a Device, whoever wrote it. Raises AnnotationError."""
    text = annotations.get(DEVICES_CHECKPOINTS)
    try:
        entries = (jsontext.decode(_decoder, text) if text else None) or ()
    except JsonError as error:
        raise AnnotationError(DEVICES_CHECKPOINTS, str(error)) from None
    return tuple(
        Grant(
            each.pod_uid,
            each.container_name,
            each.resource_name,
            each.device_ids or (),
            Source.CHECKPOINT,
        )
        for each in entries
    )


def _name(holding: Holding) -> str:
    if holding.form is Form.FUNCTION:
        return holding.part
    return f"{holding.device}::{holding.part}" if holding.part else holding.device


_decoder: Final = msgspec.json.Decoder(tuple[_Entry, ...] | None)
