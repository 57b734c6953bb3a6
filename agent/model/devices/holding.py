"""Which container holds which device, or a part of one; which uses which GPU; and the annotation of
the Device object that lists it.

The annotation lists the devices that pods hold without an allocation by a scheduler. Key and format
are those of the fine-grained device scheduling proposal, whose example has another key; both are
read. An entry names a device by its id in the object, with the part after `::`; a virtual function
is named by its own address. Entries of others may have the plugin's answer in addition."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Final

import msgspec

from agent.model import bounds
from agent.model.cpu.cpuset import CpuSet
from agent.model.devices.gpus import GpuReading
from agent.model.pod.annotations import decoded
from agent.model.pod.pods import Pod

GroupOf = Callable[[int], str | None]
"""The cgroup of a process, None if the process has ended or is hidden."""


class GpuUse(msgspec.Struct, frozen=True):
    """The use of one card by one container; pod and container are empty for processes outside known
    containers. None: the driver does not report the value."""

    uuid: str
    pod: str = ""
    """The pod's title."""
    container: str = ""
    memory_bytes: int | None = None
    sm_percent: int | None = None


def gpu_users(
    readings: Iterable[GpuReading], pods: Iterable[Pod], group_of: GroupOf
) -> tuple[GpuUse, ...]:
    """The sums over the processes of each container, sorted. A process may be in a cgroup below
    that of its container."""
    owners = {
        each.group: (pod.title, each.name)
        for pod in pods
        for each in pod.containers
        if each.group is not None
    }
    found: dict[tuple[str, str, str], GpuUse] = {}
    for reading in readings:
        for process in reading.processes or ():
            title, name = _owner(group_of(process.pid), owners)
            key = reading.uuid, title, name
            before = found.get(key, GpuUse(*key))
            found[key] = msgspec.structs.replace(
                before,
                memory_bytes=_sum(before.memory_bytes, process.memory_bytes),
                sm_percent=_sum(before.sm_percent, process.sm_percent),
            )
    return tuple(found[key] for key in sorted(found))


def _owner(group: str | None, owners: dict[str, tuple[str, str]]) -> tuple[str, str]:
    while group:
        if group in owners:
            return owners[group]
        group = group.rpartition("/")[0]
    return "", ""


def _sum(one: int | None, other: int | None) -> int | None:
    return one if other is None else other + (one or 0)


class HoldingSource(enum.StrEnum):
    """The source of a holding. If two sources report the same device and container, the first in
    this order counts."""

    ALLOCATION = "allocation"
    """The scheduler's annotation on the pod."""
    CHECKPOINT = "checkpoint"
    """The kubelet's file or API: devices that a device plugin allocated."""
    CLAIM = "claim"
    """The kubelet's API: devices that a driver of dynamic resource allocation (DRA) allocated."""
    ANSWER = "answer"
    """The kubelet's file: a device plugin's response, which describes how to create the
    container."""
    CONTAINER = "container"
    """The CDI names with which the kubelet asked the runtime for the container."""
    ENVIRONMENT = "environment"
    """The environment, mounts and annotations of the running container. The author of its pod
    writes them, so they are no proof of a holding; they only identify the part of a device that the
    container holds by another source."""
    NODE = "node"
    """The device nodes of the running container."""
    NETWORK = "network"
    """The network interfaces in the pod's network namespace."""


DeviceNodes = Mapping[tuple[str, str], tuple[CpuSet, ...]]
"""By pod uid and container name: for each of its devices, the NUMA nodes that it is near to. A
device without a known NUMA node has an empty set."""


class Form(enum.StrEnum):
    """Which part of a device is held."""

    WHOLE = "whole"
    SHARE = "share"
    """A part in percent or bytes, which a scheduler allocates."""
    REPLICA = "replica"
    """A share by time-slicing or MPS."""
    INSTANCE = "instance"
    """A MIG instance."""
    FUNCTION = "function"
    """A virtual function."""
    OPEN = "open"
    """The container can open the device, as many others can, and holds no part of it."""
    CPUS = "cpus"
    """CPUs that a DRA driver allocated, not a device."""


class ReportedDevices(msgspec.Struct, frozen=True):
    """The devices of a container, as their source names them."""

    uid: str
    container: str
    resource: str
    """The plugin's resource (`nvidia.com/gpu`) or the DRA driver (`gpu.nvidia.com`), "" if only the
    container shows the device."""
    names: tuple[str, ...]
    source: HoldingSource
    claim: str = ""
    """A ResourceClaim, which several pods may use, as `namespace/name`, or its uid if the container
    shows only that."""
    share: str = ""
    """The part of a device that several claims share."""
    cdi: tuple[str, ...] = ()
    """The CDI names in the request."""


class DeviceHolding(msgspec.Struct, frozen=True):
    """A device that a container holds."""

    uid: str
    container: str
    resource: str
    type: str
    """Its type in the Device object."""
    device: str
    """Its id in the Device object."""
    form: Form
    part: str = ""
    """The replica's number, the instance's UUID, the virtual function's address, or the CPUs as a
    list."""
    amounts: dict[str, int] = {}
    """The amounts of a share by resource."""
    source: HoldingSource = HoldingSource.CHECKPOINT
    claim: str = ""


DEVICES_CHECKPOINTS: Final = "node.koordinator.sh/devices-checkpoints"
GPU_CHECKPOINTS: Final = "node.koordinator.sh/gpu-checkpoints"


class CheckpointEntry(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """An entry of the kubelet's device checkpoint, as in the annotation."""

    pod_uid: str = msgspec.field(default="", name="podUID")
    container_name: str = ""
    resource_name: str = ""
    device_ids: tuple[str, ...] | None = msgspec.field(default=None, name="deviceIDs")
    answer: bytes | None = msgspec.field(default=None, name="allocResp")
    """The device plugin's ContainerAllocateResponse (protobuf), None without one."""


def encode(holdings: Iterable[DeviceHolding]) -> dict[str, str]:
    """The annotation, empty if no device is held. A device that any container may open is not
    held."""
    ids: dict[tuple[str, str, str], set[str]] = {}
    for each in holdings:
        if each.device and each.form is not Form.OPEN:
            ids.setdefault((each.uid, each.container, each.resource), set()).add(_name(each))
    entries = [CheckpointEntry(*key, tuple(sorted(names))) for key, names in sorted(ids.items())]
    return {DEVICES_CHECKPOINTS: msgspec.json.encode(entries).decode()} if entries else {}


def decode(annotations: Mapping[str, str], key: str) -> tuple[CheckpointEntry, ...]:
    """The annotation of a Device object with one of the two keys. Raises AnnotationError."""
    return decoded(annotations, key, _decoder, bounds.OBJECT_LIST_BYTES) or ()


def _name(holding: DeviceHolding) -> str:
    if holding.form is Form.FUNCTION:
        return holding.part
    return f"{holding.device}::{holding.part}" if holding.part else holding.device


_decoder: Final = msgspec.json.Decoder(
    Annotated[tuple[CheckpointEntry, ...], msgspec.Meta(max_length=bounds.MAX_PODS)] | None
)
