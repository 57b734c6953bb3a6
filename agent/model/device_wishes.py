"""How a pod's annotations ask for its devices to be chosen (Koordinator:
apis/extension/device_share.go)."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

import msgspec

from agent.model.annotations import AnnotationError, decoded
from agent.model.objects import LabelSelector
from agent.model.quantities import Quantity, QuantityError, whole

DEVICE_ALLOCATE_HINT: Final = "scheduling.koordinator.sh/device-allocate-hint"
DEVICE_JOINT_ALLOCATE: Final = "scheduling.koordinator.sh/device-joint-allocate"
GPU_PARTITION_SPEC: Final = "scheduling.koordinator.sh/gpu-partition-spec"


class DeviceAllocateStrategy(enum.StrEnum):
    """How many devices a request that fits one device is for."""

    ONE = ""
    APPLY_FOR_ALL = "ApplyForAll"
    REQUESTS_AS_COUNT = "RequestsAsCount"


class DeviceTopologyScope(enum.StrEnum):
    """Within what all devices have to be."""

    ANYWHERE = ""
    NODE = "Node"
    NUMA_NODE = "NUMANode"
    PCIE = "PCIe"
    DEVICE = "Device"


class Exclusion(enum.StrEnum):
    """With whom nothing is shared: the device, or all devices of its type under its PCIe switch."""

    NONE = ""
    DEVICE_LEVEL = "DeviceLevel"
    PCIE_LEVEL = "PCIeLevel"


class DeviceHint(msgspec.Struct, frozen=True):
    """Of one device type. `vf_selector`: a virtual function of such a group is wanted."""

    selector: LabelSelector | None = None
    vf_selector: LabelSelector | None = msgspec.field(default=None, name="vfSelector")
    strategy: DeviceAllocateStrategy = msgspec.field(
        default=DeviceAllocateStrategy.ONE, name="allocateStrategy"
    )
    scope: DeviceTopologyScope = msgspec.field(
        default=DeviceTopologyScope.ANYWHERE, name="requiredTopologyScope"
    )
    exclusion: Exclusion = msgspec.field(default=Exclusion.NONE, name="exclusivePolicy")


class JointScope(enum.StrEnum):
    """`PREFERRED`: under the same PCIe switches as far as possible. Koordinator has all but
    `SAME_NUMA_NODE`."""

    PREFERRED = ""
    SAME_PCIE = "SamePCIe"
    SAME_NUMA_NODE = "SameNUMANode"


class Joint(msgspec.Struct, frozen=True):
    """Device types that belong together, the leading one first."""

    types: tuple[str, ...] = msgspec.field(default=(), name="deviceTypes")
    scope: JointScope = msgspec.field(default=JointScope.PREFERRED, name="requiredScope")


class PartitionPolicy(enum.StrEnum):
    RESTRICTED = "Restricted"
    BEST_EFFORT = "BestEffort"


class PartitionSpec(msgspec.Struct, frozen=True):
    """`restricted`: no partition but of the best score; `bandwidth`: at least so much around the
    ring, in the unit of the table."""

    restricted: bool = False
    bandwidth: int | None = None


class DeviceWishes(msgspec.Struct, frozen=True):
    """By device type; without an entry there is no preference."""

    hints: dict[str, DeviceHint] = {}
    joint: Joint | None = None
    partition: PartitionSpec | None = None


def wishes(annotations: Mapping[str, str]) -> DeviceWishes:
    """Raises AnnotationError."""
    hints = decoded(annotations, DEVICE_ALLOCATE_HINT, _hints) or {}
    joint = decoded(annotations, DEVICE_JOINT_ALLOCATE, _joint)
    spec = decoded(annotations, GPU_PARTITION_SPEC, _spec)
    return DeviceWishes(
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
