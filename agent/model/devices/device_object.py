"""The devices of a node as values, and Koordinator's Device object, which lists them for schedulers
(apis/scheduling/v1alpha1/device_types.go)."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final

import msgspec

from agent.model import bounds
from agent.model.objects import ObjectError, ObjectMetadata, converted
from agent.model.quantities import Quantity, QuantityError, whole

Object = dict[str, Any]

KIND: Final = "Device"
DOMAIN: Final = "koordinator.sh/"
GPU: Final = DOMAIN + "gpu"
GPU_CORE: Final = DOMAIN + "gpu-core"
GPU_MEMORY: Final = DOMAIN + "gpu-memory"
GPU_MEMORY_RATIO: Final = DOMAIN + "gpu-memory-ratio"
GPU_SHARED: Final = DOMAIN + "gpu.shared"
RDMA: Final = DOMAIN + "rdma"
FPGA: Final = DOMAIN + "fpga"

API_VERSION: Final = "scheduling.koordinator.sh/v1alpha1"
GPU_PARTITIONS: Final = "scheduling.koordinator.sh/gpu-partitions"


class DeviceType(enum.StrEnum):
    """The names in the scheduler's annotations and in the Device object."""

    GPU = "gpu"
    RDMA = "rdma"
    FPGA = "fpga"


RESOURCE_OF: Final = {DeviceType.RDMA.value: RDMA, DeviceType.FPGA.value: FPGA}
"""The resource of each device type except GPUs. A whole device has 100 of it."""


class DeviceTopology(msgspec.Struct, frozen=True):
    """The location of a device. Ids are the kernel's, -1 if unknown."""

    socket: int = -1
    node: int = -1
    pcie: str = ""
    """The PCIe switch above the device."""
    bus: str = ""
    """The PCI address, domain:bus:device.function."""


class VirtualFunction(msgspec.Struct, frozen=True, omit_defaults=True):
    minor: int
    """-1 if the function has no number of its own."""
    bus: str = msgspec.field(default="", name="busID")


class VfGroup(msgspec.Struct, frozen=True, omit_defaults=True):
    """Virtual functions with the same labels."""

    labels: dict[str, str] = {}
    vfs: tuple[VirtualFunction, ...] = ()


class Condition(msgspec.Struct, frozen=True, rename="camel"):
    """A Kubernetes condition."""

    type: str
    status: str
    reason: str
    message: str
    last_transition_time: str
    """In RFC 3339."""


class Device(msgspec.Struct, frozen=True):
    """One device."""

    type: str
    uuid: str
    """Its permanent name, for an RDMA device its PCI address."""
    minor: int
    """Its number among the devices of its type on this node."""
    resources: dict[str, int]
    """Its capacity by resource name: 100 of `gpu-core` are a whole card, memory is in bytes."""
    healthy: bool = True
    module: int | None = None
    """Its slot in the chassis, None if unknown."""
    topology: DeviceTopology | None = None
    conditions: tuple[Condition, ...] = ()
    vf_groups: tuple[VfGroup, ...] = ()
    labels: dict[str, str] = {}


class Portion(msgspec.Struct, frozen=True):
    """The amounts of one resource that one device adds to its NUMA node."""

    resource: str
    node: int
    capacity: int
    allocatable: int
    held: int = 0
    """How much of it pods have."""


def portions(
    devices: Iterable[Device], held: Mapping[tuple[str, int], Mapping[str, int]]
) -> tuple[Portion, ...]:
    """The portions of all devices. An unhealthy device has nothing allocatable; a device without a
    NUMA node is in no zone.

    `held`: the sum that pods have, by type and minor, then by resource."""
    return tuple(
        Portion(
            resource,
            device.topology.node,
            amount,
            amount if device.healthy else 0,
            held.get((device.type, device.minor), {}).get(resource, 0),
        )
        for device in sorted(devices, key=lambda device: (device.type, device.minor, device.uuid))
        if device.topology is not None and device.topology.node >= 0
        for resource, amount in sorted(device.resources.items())
    )


def encode(
    name: str,
    devices: Iterable[Device],
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
) -> Object:
    """The object, with its devices sorted by type and minor."""
    metadata: Object = {"name": name}
    if labels:
        metadata["labels"] = dict(sorted(labels.items()))
    if annotations:
        metadata["annotations"] = dict(sorted(annotations.items()))
    ordered = sorted(devices, key=lambda each: (each.type, each.minor, each.uuid))
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": metadata,
        "spec": {"devices": [_device(each) for each in ordered]},
    }


def with_others(wanted: Object, stored: object) -> Object:
    """The wanted object with the stored devices of types that Topolet does not report. The list of
    devices has one writer as a whole, so with such devices the object has the stored
    resourceVersion: then a concurrent write is a conflict."""
    spec = stored.get("spec") if isinstance(stored, dict) else None
    before = spec.get("devices") if isinstance(spec, dict) else None
    others = [
        each
        for each in (before if isinstance(before, list) else ())
        if isinstance(each, dict) and each.get("type") not in _REPORTED
    ]
    if not isinstance(stored, dict) or not others:
        return wanted
    devices = [*wanted["spec"]["devices"], *others]
    if isinstance(before, list) and len(before) == len(devices) and _all_in(devices, before):
        devices = before  # the order of another writer
    version = (stored.get("metadata") or {}).get("resourceVersion")
    metadata = {**wanted["metadata"], **({"resourceVersion": version} if version else {})}
    return {**wanted, "metadata": metadata, "spec": {**wanted["spec"], "devices": devices}}


def _all_in(some: list[Any], all_of_them: list[Any]) -> bool:
    return all(each in all_of_them for each in some)


_REPORTED: Final = tuple(each.value for each in DeviceType)


class DeviceObject(msgspec.Struct, frozen=True):
    """A decoded Device object."""

    name: str
    """The name of its node."""
    devices: tuple[Device, ...] = ()
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


def read(body: object) -> DeviceObject:
    """Decodes an object of any writer. Raises ObjectError, also for more devices, types or virtual
    functions than a machine has, and for more resources of one device."""
    raw = converted(body, KIND, _Raw)
    metadata, listed = raw.metadata, raw.spec.devices or ()
    groups = (each for device in listed for each in device.vf_groups or ())
    for found, most, what in (
        (len(listed), bounds.MAX_DEVICES, "devices"),
        (len({each.type for each in listed}), bounds.MAX_DEVICE_TYPES, "types"),
        (sum(1 + len(each.vfs) for each in groups), bounds.MAX_FUNCTIONS, "virtual functions"),
        (
            len({name for each in listed for name in each.resources or ()}),
            bounds.MAX_RESOURCES,
            "resources",
        ),
    ):
        if found > most:
            reason = f"spec.devices: {found} {what} are more than {most}"
            raise ObjectError(KIND, metadata.name, reason)
    devices = tuple(_value(metadata.name, place, each) for place, each in enumerate(listed))
    return DeviceObject(metadata.name, devices, metadata.labels or {}, metadata.annotations or {})


def decode(body: object) -> tuple[Device, ...]:
    """The devices of an object. Raises ObjectError."""
    return read(body).devices


class _RawTopology(msgspec.Struct, frozen=True, rename="camel"):
    """The first three are required by the API."""

    socket: int = msgspec.field(default=-1, name="socketID")
    node: Annotated[int, msgspec.Meta(le=bounds.MAX_NODE_ID)] = msgspec.field(
        default=-1, name="nodeID"
    )
    pcie: str | int = msgspec.field(default="", name="pcieID")
    bus: str = msgspec.field(default="", name="busID")


class _RawDevice(msgspec.Struct, frozen=True, rename="camel"):
    type: str = ""
    id: str = ""
    minor: int = 0
    health: bool = False
    module: int | None = msgspec.field(default=None, name="moduleID")
    resources: dict[str, Quantity] | None = None
    topology: _RawTopology | None = None
    conditions: tuple[Condition, ...] | None = None
    vf_groups: tuple[VfGroup, ...] | None = None
    labels: dict[str, str] | None = None


class _RawSpec(msgspec.Struct, frozen=True):
    devices: tuple[_RawDevice, ...] | None = None


class _Raw(msgspec.Struct, frozen=True):
    metadata: ObjectMetadata
    spec: _RawSpec = _RawSpec()


def _device(device: Device) -> Object:
    body: Object = {
        "type": str(device.type),
        "id": device.uuid,
        "minor": device.minor,
        "health": device.healthy,
        "resources": {name: str(amount) for name, amount in sorted(device.resources.items())},
    }
    if device.module is not None:
        body["moduleID"] = device.module
    if device.topology is not None:
        place = device.topology
        body["topology"] = {
            "socketID": place.socket,
            "nodeID": place.node,
            "pcieID": place.pcie,
            **({"busID": place.bus} if place.bus else {}),
        }
    if device.labels:
        body["labels"] = dict(sorted(device.labels.items()))
    if device.vf_groups:
        body["vfGroups"] = [_plain(each) for each in device.vf_groups]
    if device.conditions:
        ordered = sorted(device.conditions, key=lambda each: each.type)
        body["conditions"] = [_plain(each) for each in ordered]
    return body


def _plain(value: msgspec.Struct) -> object:
    """Lists instead of tuples, as JSON decodes the value."""
    return msgspec.json.decode(msgspec.json.encode(value))


def _value(name: str, place: int, raw: _RawDevice) -> Device:
    resources = {}
    for resource, quantity in (raw.resources or {}).items():
        try:
            resources[resource] = whole(quantity)
        except QuantityError as error:
            where = f"spec.devices[{place}].resources[{resource!r}]"
            raise ObjectError(KIND, name, f"{where}: {error}") from None
    at = raw.topology
    return Device(
        raw.type,
        raw.id,
        raw.minor,
        resources,
        raw.health,
        raw.module,
        DeviceTopology(at.socket, at.node, str(at.pcie), at.bus) if at else None,
        raw.conditions or (),
        raw.vf_groups or (),
        raw.labels or {},
    )
