"""The messages of the PodResources API as values; the error for an impossible value names its
field."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from agent.model.cpuset import MAX_ID, CpuSet
from agent.model.podresources import (
    Allocatable,
    ClaimedDevice,
    ContainerResources,
    GivenDevice,
    MemoryBlock,
    PodResources,
    ResourceClaim,
)
from agent.proto import podresources_pb2 as pb

MAX_NODE: Final = 1_023
"""The kernel's highest NUMA node."""
MAX_SIZE_BYTES: Final = (1 << 63) - 1
"""The largest amount that Kubernetes can write."""

_NO_NODE: Final = -1
"""The number that the kernel gives for no NUMA node (Documentation/ABI/testing/sysfs-bus-pci,
numa_node), which some device plugins hand on."""


class FieldError(ValueError):
    """The message names pod, container and field."""


def pods(message: pb.ListPodResourcesResponse) -> tuple[PodResources, ...]:
    """By name: the kubelet has them in another order each time. Raises FieldError."""
    return tuple(sorted(map(pod, message.pod_resources), key=lambda each: each.key))


def pod(message: pb.PodResources) -> PodResources:
    """Raises FieldError."""
    if not message.name or not message.namespace:
        raise FieldError(f"pod {message.namespace!r}/{message.name!r}: has no name or namespace")
    with_name = f"pod {message.namespace}/{message.name}"
    return PodResources(
        message.namespace,
        message.name,
        tuple(_container(each, with_name) for each in message.containers),
        _cpus(message.cpu_ids, with_name),
        _memory(message.memory, with_name),
    )


def allocatable(message: pb.AllocatableResourcesResponse) -> Allocatable:
    """Raises FieldError."""
    return Allocatable(
        _cpus(message.cpu_ids, "node"),
        _memory(message.memory, "node"),
        _devices(message.devices, "node"),
    )


def _container(message: pb.ContainerResources, of: str) -> ContainerResources:
    if not message.name:
        raise FieldError(f"{of}: a container has no name")
    with_name = f"{of}, container {message.name}"
    return ContainerResources(
        message.name,
        _cpus(message.cpu_ids, with_name),
        _memory(message.memory, with_name),
        _devices(message.devices, with_name),
        tuple(_claim(each, with_name) for each in message.dynamic_resources),
    )


def _cpus(ids: Sequence[int], of: str) -> CpuSet:
    if len(ids) > MAX_ID + 1:
        raise FieldError(f"{of}: cpu_ids: {len(ids)} of them")
    for each in ids:
        if not 0 <= each <= MAX_ID:
            raise FieldError(f"{of}: cpu_ids: {each} is no CPU")
    return CpuSet(ids)


def _memory(messages: Iterable[pb.ContainerMemory], of: str) -> tuple[MemoryBlock, ...]:
    blocks = []
    for each in messages:
        if not each.memory_type:
            raise FieldError(f"{of}: memory: a block has no memory_type")
        field = f"{of}: memory {each.memory_type}"
        if each.size > MAX_SIZE_BYTES:
            raise FieldError(f"{field}: size: {each.size} bytes")
        nodes = tuple(sorted({_node(node.ID, field) for node in each.topology.nodes}))
        blocks.append(MemoryBlock(each.memory_type, each.size, nodes))
    return tuple(sorted(blocks, key=lambda block: (block.kind, block.nodes, block.size_bytes)))


def _devices(messages: Iterable[pb.ContainerDevices], of: str) -> tuple[GivenDevice, ...]:
    """The kubelet writes a device that is near to several NUMA nodes once for each of them."""
    nodes: dict[tuple[str, str], set[int]] = {}
    for each in messages:
        field = f"{of}: devices {each.resource_name}"
        if not each.resource_name or not all(each.device_ids):
            raise FieldError(f"{field}: resource_name or a device id is empty")
        near = {_node(node.ID, field) for node in each.topology.nodes if node.ID != _NO_NODE}
        for device in each.device_ids:
            nodes.setdefault((each.resource_name, device), set()).update(near)
    return tuple(
        GivenDevice(resource, device, tuple(sorted(near)))
        for (resource, device), near in sorted(nodes.items())
    )


def _claim(message: pb.DynamicResource, of: str) -> ResourceClaim:
    """Up to 1.36 at least the kubelet gives each device of a driver the CDI names of those before
    it, too (cm/container_manager_linux.go, GetDynamicResources): they are taken off again. The
    drivers have another order each time."""
    if not message.claim_name:
        raise FieldError(f"{of}: dynamic_resources: a claim has no claim_name")
    devices: list[ClaimedDevice] = []
    driver, before = "", list[str]()
    for each in message.claim_resources:
        if not each.driver_name:
            text = f"claim_resources of {message.claim_name}: driver_name is empty"
            raise FieldError(f"{of}: dynamic_resources: {text}")
        told = [device.name for device in each.cdi_devices]
        again = len(before) if each.driver_name == driver and len(told) > len(before) else 0
        own = told[again:] if told[:again] == before[:again] else told
        driver, before = each.driver_name, told
        devices.append(
            ClaimedDevice(
                each.driver_name,
                each.pool_name,
                each.device_name,
                tuple(own),
                each.share_id if each.HasField("share_id") else None,
            )
        )
    devices.sort(key=lambda each: (each.driver, each.pool, each.device, each.share or ""))
    return ResourceClaim(message.claim_namespace, message.claim_name, tuple(devices))


def _node(node: int, field: str) -> int:
    if not 0 <= node <= MAX_NODE:
        raise FieldError(f"{field}: topology: {node} is no NUMA node")
    return node
