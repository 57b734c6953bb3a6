"""Devices of a node as values, of every source."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping

import msgspec


class DeviceType(enum.StrEnum):
    """As the scheduler's annotations and the Device object call them."""

    GPU = "gpu"
    RDMA = "rdma"
    FPGA = "fpga"


class DeviceTopology(msgspec.Struct, frozen=True):
    """The place of a device; `socket` and `node` are the kernel's ids, -1 when unknown. `pcie`: the
    switch that it shares with its neighbours; `bus`: domain:bus:device.function."""

    socket: int = -1
    node: int = -1
    pcie: str = ""
    bus: str = ""


class VirtualFunction(msgspec.Struct, frozen=True, omit_defaults=True):
    """`minor` -1: it has no number of its own."""

    minor: int
    bus: str = msgspec.field(default="", name="busID")


class VfGroup(msgspec.Struct, frozen=True, omit_defaults=True):
    """Virtual functions that are alike."""

    labels: dict[str, str] = {}
    vfs: tuple[VirtualFunction, ...] = ()


class Condition(msgspec.Struct, frozen=True, rename="camel"):
    """A condition of Kubernetes; `last_transition_time` in RFC 3339."""

    type: str
    status: str
    reason: str
    message: str
    last_transition_time: str


class Device(msgspec.Struct, frozen=True):
    """One device. `uuid`: its name for life (of an RDMA device its PCI address); `minor`: its
    number among its type on this node; `module`: its place in the chassis. `resources`: what
    it gives by resource name, in units (100 of `gpu-core` are a whole card, memory in bytes)."""

    type: str
    uuid: str
    minor: int
    resources: dict[str, int]
    healthy: bool = True
    module: int | None = None
    topology: DeviceTopology | None = None
    conditions: tuple[Condition, ...] = ()
    vf_groups: tuple[VfGroup, ...] = ()
    labels: dict[str, str] = {}


class Portion(msgspec.Struct, frozen=True):
    """What one device gives of one resource to its NUMA node, and how much of it pods hold."""

    resource: str
    node: int
    capacity: int
    allocatable: int
    held: int = 0


def portions(
    devices: Iterable[Device], held: Mapping[tuple[str, int], Mapping[str, int]]
) -> tuple[Portion, ...]:
    """`held`: by type and minor, and resource, the sum that pods hold. An unhealthy device gives
    nothing; a device without a NUMA node is in no zone."""
    return tuple(
        Portion(
            resource,
            device.topology.node,
            amount,
            amount if device.healthy else 0,
            held.get((device.type, device.minor), {}).get(resource, 0),
        )
        for device in sorted(devices, key=lambda each: (each.type, each.minor, each.uuid))
        if device.topology is not None and device.topology.node >= 0
        for resource, amount in sorted(device.resources.items())
    )
