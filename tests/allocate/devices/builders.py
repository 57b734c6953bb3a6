"""Small nodes with devices, and the devices that pods hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from agent.allocate.devices.allocation import Allocation, allocate
from agent.allocate.devices.inventory import LinkTable, NodeDevices, inventory, node_devices
from agent.allocate.devices.partitions import Partitions
from agent.allocate.refusal import Refusal
from agent.model.cpu.policies import Strategy
from agent.model.devices.device_allocation import VirtualFunctions
from agent.model.devices.device_object import Device, DeviceTopology, VfGroup, VirtualFunction
from agent.model.devices.device_request import device_request

CORE = "koordinator.sh/gpu-core"
RATIO = "koordinator.sh/gpu-memory-ratio"
MEMORY = "koordinator.sh/gpu-memory"
GPU = "koordinator.sh/gpu"
SHARED = "koordinator.sh/gpu.shared"
RDMA = "koordinator.sh/rdma"
CARDS = "nvidia.com/gpu"

HINT = "scheduling.koordinator.sh/device-allocate-hint"
JOINT = "scheduling.koordinator.sh/device-joint-allocate"
PARTITION = "scheduling.koordinator.sh/gpu-partition-spec"

BYTES = 1_000
"""The memory of a card."""


def gpu(minor: int, node: int | None = 0, pcie: str = "p0", **other: Any) -> Device:
    topology = None if node is None else DeviceTopology(0, node, pcie)
    return Device(
        "gpu",
        f"GPU-{minor}",
        minor,
        {CORE: 100, RATIO: 100, MEMORY: BYTES},
        topology=topology,
        **other,
    )


def nic(
    minor: int, node: int | None = 0, pcie: str = "p0", functions: Iterable[str] = (), **other: Any
) -> Device:
    topology = None if node is None else DeviceTopology(0, node, pcie)
    vfs = tuple(VirtualFunction(-1, bus) for bus in functions)
    groups = (VfGroup({"type": "fast"}, vfs),) if vfs else ()
    return Device(
        "rdma",
        f"0000:4{minor}:00.0",
        minor,
        {RDMA: 100},
        topology=topology,
        vf_groups=groups,
        **other,
    )


def part(percent: int) -> dict[str, int]:
    """A share of a card."""
    return {CORE: percent, RATIO: percent, MEMORY: BYTES * percent // 100}


def node(
    devices: Iterable[Device],
    used: Mapping[int, int] | None = None,
    nics: Mapping[int, int] | None = None,
    partitions: Partitions | None = None,
    links: LinkTable | None = None,
    taken: VirtualFunctions | None = None,
) -> NodeDevices:
    """`used`: by minor of a GPU, the percentage that pods hold; `nics` likewise."""
    held = {("gpu", minor): part(percent) for minor, percent in (used or {}).items()}
    held |= {("rdma", minor): {RDMA: percent} for minor, percent in (nics or {}).items()}
    return node_devices(inventory(devices, partitions, links), held, taken)


def allocation(
    devices_of_node: NodeDevices,
    amounts: Mapping[str, int],
    annotations: Mapping[str, object] | None = None,
    numa: int | None = None,
    strategy: Strategy | None = None,
) -> Allocation | Refusal:
    """`annotations`: their contents."""
    texts = {key: msgspec.json.encode(value).decode() for key, value in (annotations or {}).items()}
    request = device_request(amounts, texts)
    assert request is not None
    return allocate(devices_of_node, request, numa=numa, strategy=strategy)


def minors(found: Allocation | Refusal, kind: str = "gpu") -> list[int]:
    assert isinstance(found, Allocation), found
    return [each.minor for each in found.devices[kind]]
