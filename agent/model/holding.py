"""Who holds what of a device, by whatever name it was given to him."""

from __future__ import annotations

import enum

import msgspec


class Source(enum.StrEnum):
    """Who says so. Of two that tell of one device and container the first here knows better."""

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
    """A right to use it beside others, by time-slicing or MPS."""
    INSTANCE = "instance"
    """A MIG instance."""
    FUNCTION = "function"
    """A virtual function."""
    OPEN = "open"
    """It is within reach, of many at once: nothing is taken."""
    CPUS = "cpus"
    """No device: CPUs that a driver gave."""


class Grant(msgspec.Struct, frozen=True):
    """What a container was given, in the giver's words. `resource`: the plugin's (`nvidia.com/gpu`)
    or the driver's (`gpu.nvidia.com`); "" where a container shows it and nobody says by which.
    `claim`: namespace and name, as `namespace/name`, of one that several pods may use, or its uid
    where a container shows no more; `share`: which part of a device that several claims share;
    `cdi`: the names by which the runtime was asked to put it in.
    """

    uid: str
    container: str
    resource: str
    names: tuple[str, ...]
    source: Source
    claim: str = ""
    share: str = ""
    cdi: tuple[str, ...] = ()


class Holding(msgspec.Struct, frozen=True):
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
    source: Source = Source.CHECKPOINT
    claim: str = ""
