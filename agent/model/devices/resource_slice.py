"""ResourceSlices (resource.k8s.io/v1): where the devices of DRA drivers are, by the standard
attributes of a device (Kubernetes: k8s.io/dynamic-resource-allocation/deviceattribute).
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from agent.model.bounds import MAX_NODE_ID
from agent.model.cpu.cpuset import EMPTY, CpuSet
from agent.model.devices.gpus import pci_address
from agent.model.objects import ObjectMetadata, decoded

KIND: Final = "ResourceSlice"
NUMA_NODE: Final = "resource.kubernetes.io/numaNode"
"""An integer, or integers if several NUMA nodes are equally near (KEP-6072, KEP-5491)."""
PCIE_ROOT: Final = "resource.kubernetes.io/pcieRoot"
"""A root bus as the kernel writes it (`pci0000:17`), or several of a device that is near to all of
them (KEP-5491)."""
PCI_BUS_ID: Final = "resource.kubernetes.io/pciBusID"


class DraDevice(NamedTuple):
    """The name of a device in ResourceSlices."""

    driver: str
    pool: str
    device: str


class DraLocation(msgspec.Struct, frozen=True):
    """Where a device is, as far as its attributes say."""

    nodes: CpuSet = EMPTY
    """Its NUMA nodes; empty if unknown."""
    bus: str = ""
    """Its PCI address, "" if unknown."""


class _Attribute(msgspec.Struct, frozen=True):
    integer: int | None = msgspec.field(default=None, name="int")
    integers: tuple[int, ...] | None = msgspec.field(default=None, name="ints")
    string: str | None = None


class _Device(msgspec.Struct, frozen=True):
    name: str
    attributes: dict[str, _Attribute] | None = None


class _Pool(msgspec.Struct, frozen=True):
    name: str


class _Spec(msgspec.Struct, frozen=True):
    driver: str
    pool: _Pool
    devices: tuple[_Device, ...] | None = None


class _Slice(msgspec.Struct, frozen=True):
    metadata: ObjectMetadata
    spec: _Spec


_decoder: Final = msgspec.json.Decoder(_Slice)


def decode(text: bytes) -> dict[DraDevice, DraLocation]:
    """The devices of one slice. Raises ObjectError."""
    spec = decoded(text, KIND, _decoder).spec
    return {
        DraDevice(spec.driver, spec.pool.name, device.name): _location(device.attributes or {})
        for device in spec.devices or ()
    }


def _location(attributes: dict[str, _Attribute]) -> DraLocation:
    numa_node = attributes.get(NUMA_NODE, _Attribute())
    nodes = numa_node.integers or (() if numa_node.integer is None else (numa_node.integer,))
    bus = attributes.get(PCI_BUS_ID, _Attribute()).string or ""
    return DraLocation(CpuSet(node for node in nodes if 0 <= node <= MAX_NODE_ID), pci_address(bus))
