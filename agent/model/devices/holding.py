"""Who holds which device, or a part of one, and the annotation of the Device object that lists it.

The annotation lists the devices that pods hold without an annotation of a scheduler. Key and format
are those of the fine-grained device scheduling proposal (which writes `gpu-checkpoints` too). An
entry names a device as the object does, with its part after `::`; a virtual function has an address
of its own."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Annotated, Final

import msgspec

from agent.model import bounds
from agent.model.pod.annotations import decoded


class HoldingSource(enum.StrEnum):
    """The source of a holding. Of two sources about one device and container the first in this
    order counts."""

    ALLOCATION = "allocation"
    """The scheduler's annotation on the pod."""
    CHECKPOINT = "checkpoint"
    """The kubelet, of what device plugins gave, by its file or its API."""
    CLAIM = "claim"
    """The kubelet, of what drivers of dynamic resource allocation (DRA) gave."""
    ANSWER = "answer"
    """The kubelet, of what a device plugin answered: how the container was to be made."""
    CONTAINER = "container"
    """The running container: environment, CDI names, mounts."""
    NODE = "node"
    """Its device nodes."""


class Form(enum.StrEnum):
    """What is held of a device."""

    WHOLE = "whole"
    SHARE = "share"
    """Percents, or bytes, that a scheduler accounts for."""
    REPLICA = "replica"
    """A right to use it together with others, by time-slicing or MPS."""
    INSTANCE = "instance"
    """A MIG instance."""
    FUNCTION = "function"
    """A virtual function."""
    OPEN = "open"
    """It is within reach, of many at once: nothing is taken."""
    CPUS = "cpus"
    """No device: CPUs that a driver gave."""


class DeviceGrant(msgspec.Struct, frozen=True):
    """What a container was given, in the giver's terms. `resource`: the plugin's (`nvidia.com/gpu`)
    or the driver's (`gpu.nvidia.com`); "" when only the container shows it. `claim`: a resource
    claim that several pods may use, as `namespace/name`, or its uid when the container shows no
    more; `share`: the part of a device that several claims share; `cdi`: the CDI names in the
    request."""

    uid: str
    container: str
    resource: str
    names: tuple[str, ...]
    source: HoldingSource
    claim: str = ""
    share: str = ""
    cdi: tuple[str, ...] = ()


class DeviceHolding(msgspec.Struct, frozen=True):
    """`type` and `device` as in the Device object (type, id). `part`: the replica's number, the
    instance's UUID, the virtual function's address, the CPUs as a list. `amounts`: of a share, by
    resource."""

    uid: str
    container: str
    resource: str
    type: str
    device: str
    form: Form
    part: str = ""
    amounts: dict[str, int] = {}
    source: HoldingSource = HoldingSource.CHECKPOINT
    claim: str = ""


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
