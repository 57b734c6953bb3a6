"""A pod's device annotations: how to choose its devices, and the devices that a scheduler allocated
(Koordinator: apis/extension/device_share.go)."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Annotated, Final

import msgspec

from agent.model import bounds
from agent.model.devices.device_object import Device
from agent.model.objects import LabelSelector
from agent.model.pod.annotations import DEVICE_ALLOCATED, AnnotationError, decoded
from agent.model.quantities import Quantity, QuantityError, whole

DEVICE_ALLOCATE_HINT: Final = "scheduling.koordinator.sh/device-allocate-hint"
DEVICE_JOINT_ALLOCATE: Final = "scheduling.koordinator.sh/device-joint-allocate"
GPU_PARTITION_SPEC: Final = "scheduling.koordinator.sh/gpu-partition-spec"


class DeviceAllocateStrategy(enum.StrEnum):
    """How many devices a request that fits one device gets."""

    ONE = ""
    APPLY_FOR_ALL = "ApplyForAll"
    REQUESTS_AS_COUNT = "RequestsAsCount"


class DeviceTopologyScope(enum.StrEnum):
    """The scope within which all devices must be."""

    ANYWHERE = ""
    NODE = "Node"
    NUMA_NODE = "NUMANode"
    PCIE = "PCIe"
    DEVICE = "Device"


class Exclusion(enum.StrEnum):
    """What the pod does not share with other pods: the device, or all devices of its type under its
    PCIe switch."""

    NONE = ""
    DEVICE_LEVEL = "DeviceLevel"
    PCIE_LEVEL = "PCIeLevel"


class DeviceHint(msgspec.Struct, frozen=True):
    """The hint for one device type."""

    selector: LabelSelector | None = None
    vf_selector: LabelSelector | None = msgspec.field(default=None, name="vfSelector")
    """If it is set, the pod requests a virtual function of a group with these labels."""
    strategy: DeviceAllocateStrategy = msgspec.field(
        default=DeviceAllocateStrategy.ONE, name="allocateStrategy"
    )
    scope: DeviceTopologyScope = msgspec.field(
        default=DeviceTopologyScope.ANYWHERE, name="requiredTopologyScope"
    )
    exclusion: Exclusion = msgspec.field(default=Exclusion.NONE, name="exclusivePolicy")


class JointScope(enum.StrEnum):
    """Where the devices of a joint allocation are. Koordinator has all but `SAME_NUMA_NODE`."""

    PREFERRED = ""
    """Under the same PCIe switches as far as possible."""
    SAME_PCIE = "SamePCIe"
    SAME_NUMA_NODE = "SameNUMANode"


class Joint(msgspec.Struct, frozen=True):
    """Device types that are allocated together, the leading one first."""

    types: tuple[str, ...] = msgspec.field(default=(), name="deviceTypes")
    scope: JointScope = msgspec.field(default=JointScope.PREFERRED, name="requiredScope")


class PartitionPolicy(enum.StrEnum):
    RESTRICTED = "Restricted"
    BEST_EFFORT = "BestEffort"


class PartitionSpec(msgspec.Struct, frozen=True):
    """The requirements on the partition of GPUs."""

    restricted: bool = False
    """Only partitions with the best score."""
    bandwidth: int | None = None
    """The least bandwidth of the ring, in the unit of the table; None for any."""


class DevicePreferences(msgspec.Struct, frozen=True):
    """A pod's preferences among devices."""

    hints: dict[str, DeviceHint] = {}
    """By device type; a type without an entry has no preference."""
    joint: Joint | None = None
    partition: PartitionSpec | None = None


def device_preferences(annotations: Mapping[str, str]) -> DevicePreferences:
    """Raises AnnotationError."""
    hints = decoded(annotations, DEVICE_ALLOCATE_HINT, _hints) or {}
    joint = decoded(annotations, DEVICE_JOINT_ALLOCATE, _joint)
    spec = decoded(annotations, GPU_PARTITION_SPEC, _spec)
    return DevicePreferences(
        {kind: hint for kind, hint in hints.items() if hint is not None},
        joint,
        None if spec is None else _partition(spec),
    )


class _RawSpec(msgspec.Struct, frozen=True, rename="camel"):
    allocate_policy: PartitionPolicy = PartitionPolicy.BEST_EFFORT
    ring_bus_bandwidth: Quantity | None = None


_hints: Final = msgspec.json.Decoder(dict[str, DeviceHint | None] | None)
_joint: Final = msgspec.json.Decoder(Joint | None)
_spec: Final = msgspec.json.Decoder(_RawSpec | None)


def _partition(raw: _RawSpec) -> PartitionSpec:
    try:
        bandwidth = None if raw.ring_bus_bandwidth is None else whole(raw.ring_bus_bandwidth)
    except QuantityError as error:
        raise AnnotationError(GPU_PARTITION_SPEC, f"ringBusBandwidth: {error}") from None
    return PartitionSpec(raw.allocate_policy is PartitionPolicy.RESTRICTED, bandwidth)


DeviceAmounts = dict[tuple[str, int], dict[str, int]]
"""The allocated amounts, by type and minor of a device, then by resource, in units."""


class AllocatedDevice(msgspec.Struct, frozen=True):
    """A device of a pod, or a part of one."""

    minor: int
    id: str = ""
    """Its permanent name, "" if the annotation has only the minor."""
    resources: dict[str, int] = {}
    functions: tuple[str, ...] = ()
    """The bus ids of its virtual functions, if these are allocated instead."""


AllocatedDevices = Mapping[str, tuple[AllocatedDevice, ...]]
"""The devices that are allocated to one pod, by type."""


def allocated_devices(annotations: Mapping[str, str]) -> dict[str, tuple[AllocatedDevice, ...]]:
    """The devices of one pod by type, in the annotation's order; negative amounts count as 0.
    Raises AnnotationError."""
    found = {}
    for kind, devices in _by_type(annotations).items():
        found[kind] = tuple(
            AllocatedDevice(
                device.minor,
                device.id,
                _amounts(kind, place, device.resources) if device.resources else {},
                _buses(device.extension) if device.extension else (),
            )
            for place, device in enumerate(devices or ())
        )
    return found


def allocated(annotations: Mapping[str, str]) -> DeviceAmounts:
    """The amounts that one pod has, empty without an allocation; negative amounts count as 0.
    Raises AnnotationError."""
    return amounts(allocated_devices(annotations))


def amounts(allocation: AllocatedDevices) -> DeviceAmounts:
    found: DeviceAmounts = {}
    for kind, devices in allocation.items():
        for device in devices:
            of_device = found.setdefault((kind, device.minor), {})
            for name, amount in device.resources.items():
                of_device[name] = of_device.get(name, 0) + amount
    return found


def renumbered(allocation: AllocatedDevices, devices: Iterable[Device]) -> AllocatedDevices:
    """The same allocation with the current minors: a GPU may have another minor after a boot, and
    the annotation names the device by its id."""
    now = {(each.type, each.uuid): each.minor for each in devices}
    return {
        kind: tuple(
            msgspec.structs.replace(each, minor=now.get((kind, each.id), each.minor))
            for each in of_kind
        )
        for kind, of_kind in allocation.items()
    }


def names(allocation: AllocatedDevices, devices: Iterable[Device]) -> dict[str, frozenset[str]]:
    """By type, the ids of the allocated devices, or the bus ids of their virtual functions. A
    device that is not on this node has no name unless the annotation has its id."""
    ids = {(each.type, each.minor): each.uuid for each in devices}
    return {
        kind: frozenset(
            name
            for each in of_kind
            for name in each.functions or (each.id or ids.get((kind, each.minor), ""),)
            if name
        )
        for kind, of_kind in allocation.items()
    }


VirtualFunctions = dict[tuple[str, int], frozenset[str]]
"""By type and minor of a device, the bus ids of its allocated virtual functions."""


def virtual_functions(annotations: Mapping[str, str]) -> VirtualFunctions:
    """The virtual functions of one pod. Raises AnnotationError."""
    found: VirtualFunctions = {}
    for kind, devices in _by_type(annotations).items():
        for device in devices or ():
            if device.extension and device.extension.vfs:
                key = kind, device.minor
                buses = frozenset(each.bus for each in device.extension.vfs)
                found[key] = found.get(key, frozenset()) | buses
    return found


def sum_amounts(allocated: Iterable[DeviceAmounts]) -> DeviceAmounts:
    """The sum over several pods."""
    sums: DeviceAmounts = {}
    for each in allocated:
        for device, amounts in each.items():
            of_device = sums.setdefault(device, {})
            for name, amount in amounts.items():
                of_device[name] = of_device.get(name, 0) + amount
    return sums


def sum_functions(allocated: Iterable[VirtualFunctions]) -> VirtualFunctions:
    """The sum over several pods."""
    sets: VirtualFunctions = {}
    for each in allocated:
        for device, buses in each.items():
            sets[device] = sets.get(device, frozenset()) | buses
    return sets


_MAX_DEVICES: Final = msgspec.Meta(max_length=bounds.MAX_DEVICES)


class _Function(msgspec.Struct, frozen=True):
    bus: str = msgspec.field(default="", name="busID")


class _Extension(msgspec.Struct, frozen=True):
    vfs: Annotated[tuple[_Function, ...], _MAX_DEVICES] | None = None


class _Allocation(msgspec.Struct, frozen=True):
    minor: int
    id: str = ""
    resources: (
        Annotated[dict[str, Quantity], msgspec.Meta(max_length=bounds.MAX_RESOURCES)] | None
    ) = None
    extension: _Extension | None = None


_ByType = Annotated[
    dict[str, Annotated[tuple[_Allocation, ...], _MAX_DEVICES] | None],
    msgspec.Meta(max_length=bounds.MAX_RESOURCES),
]
_decoder: Final = msgspec.json.Decoder(_ByType | None)


def _by_type(annotations: Mapping[str, str]) -> _ByType:
    return decoded(annotations, DEVICE_ALLOCATED, _decoder, bounds.POD_LIST_BYTES) or {}


def _buses(extension: _Extension) -> tuple[str, ...]:
    return tuple(each.bus for each in extension.vfs or ())


def _amounts(kind: str, place: int, resources: Mapping[str, Quantity]) -> dict[str, int]:
    amounts = {}
    for name, quantity in resources.items():
        try:
            amounts[name] = max(0, whole(quantity))
        except QuantityError as error:
            field = f"{kind[:40]}[{place}].resources[{name[:60]!r}]"
            raise AnnotationError(DEVICE_ALLOCATED, f"{field}: {error}") from None
    return amounts
