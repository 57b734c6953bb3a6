"""Who holds which device, or which part of it, under any of its names."""

from __future__ import annotations

import enum

import msgspec


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
