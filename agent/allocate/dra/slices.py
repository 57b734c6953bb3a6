"""ResourceSlices of the driver `cpu.topolet.io`: the devices of a node as the API has them.

All of a node's devices are one pool. kube-scheduler takes the first device that fits, in the order
of the slices (by name) and of the devices in them, so the order is part of what is published."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from agent.allocate.dra.groups import CpuGroup
from agent.model.cpu.layout import Layout
from agent.model.devices import resource_slice
from agent.model.devices.pci import Function
from agent.model.dra.names import DRIVER
from agent.model.dra.resource_claim import CPU, HUGE_PAGES, MEMORY
from agent.model.quantities import amount

API_VERSION: Final = "resource.k8s.io/v1"
MOST_DEVICES: Final = 128
MOST_WITH_LISTS: Final = 64
"""The API's limits for a slice, and for one with attributes that are lists (Kubernetes:
ResourceSliceMaxDevices and -WithAdvancedFeatures in resource/v1/types.go)."""
_MOST_VALUES: Final = 48
"""The most values of all attributes of a device (ResourceSliceMaxAttributeValuesPerDevice)."""
_MOST_NAME: Final = 253
"""The longest name of an object (apimachinery: DNS1123SubdomainMaxLength)."""
_MOST_TEXT: Final = 64
"""The longest text of an attribute (DeviceAttributeMaxValueLength)."""

Device = dict[str, Any]


_PARTS: Final = "allowMultipleAllocations"
"""Whether many claims may have a part of a device each."""
_MAPPINGS: Final = "nodeAllocatableResourceMappings"
_RESOURCES: Final = "nodeAllocatableResources"
"""What a claim takes of the Node's allocatable resources (KEP-5517): the field of Kubernetes 1.36,
and that which replaced it in 1.37."""


def pcie_roots(functions: Iterable[Function]) -> Mapping[int, tuple[str, ...]]:
    """By NUMA node, the root buses of the PCI functions there."""
    by_node: dict[int, set[str]] = {}
    for function in functions:
        if function.root and function.node >= 0:
            by_node.setdefault(function.node, set()).add(function.root)
    return {node: tuple(sorted(roots)) for node, roots in by_node.items()}


def devices(
    groups: Sequence[CpuGroup],
    layout: Layout,
    *,
    whole_cores: bool,
    minor: int = 0,
    counted: bool = False,
    roots: Mapping[int, tuple[str, ...]] = MappingProxyType({}),
) -> list[Device]:
    """The devices of a slice, in the order of the groups, without those that have less CPU than a
    claim gets at least: cores with offline threads have fewer than a whole one.

    `whole_cores`: whether amounts of CPUs are rounded up to whole cores.
    `minor`: the minor version of Kubernetes that the API server has, 0 if it is unknown.
    `counted`: whether the kubelet declares that it counts claims as requests. From 1.37 on an API
    server refuses what a claim takes of another Node (plugin/pkg/admission/nodedeclaredfeatures).
    `roots`: by NUMA node, the PCIe roots; empty for an API server without lists."""
    step = layout.threads if whole_cores else 1
    return [
        _device(group, layout, step, roots.get(group.node, ()))
        | (_node_resources(group, minor) if counted or minor == 36 else {})
        for group in groups
        if group.whole or _amounts(group)[CPU] >= step
    ]


def is_stored(stored: Device, wanted: Device) -> bool:
    """Whether the API server has the device. A server drops the fields of feature gates that are
    off, and they are not compared: those of DRAConsumableCapacity and, in 1.36, of
    DRANodeAllocatableResources."""
    own = {field: value for field, value in wanted.items() if field != _MAPPINGS}
    return stored in (wanted, own) or (
        lacks_parts(stored) and stored in (_undivided(wanted), _undivided(own))
    )


def lacks_parts(stored: Device) -> bool:
    """Whether a claim gets the whole device, although the driver offers parts of it."""
    return "capacity" in stored and _PARTS not in stored


def _undivided(device: Device) -> Device:
    fields = {field: value for field, value in device.items() if field != _PARTS}
    if "capacity" in fields:
        fields["capacity"] = {
            name: {"value": capacity["value"]} for name, capacity in fields["capacity"].items()
        }
    return fields


def slices(
    node_name: str, node_uid: str, of_node: Sequence[Device], generation: int
) -> list[dict[str, Any]]:
    """The objects for these devices; none without devices. Their names sort as the devices do.

    `node_uid`: the uid of the Node, with which they are removed; "" if it is unknown.
    `generation`: that of the pool, which a scheduler reads only when all slices of the highest
        generation are there."""
    has_lists = any(resource_slice.PCIE_ROOT in device["attributes"] for device in of_node)
    most = MOST_WITH_LISTS if has_lists else MOST_DEVICES
    parts = [of_node[start : start + most] for start in range(0, len(of_node), most)]
    return [
        {
            "apiVersion": API_VERSION,
            "kind": resource_slice.KIND,
            "metadata": {
                "name": slice_name(node_name, index),
                **({"ownerReferences": [_owner(node_name, node_uid)]} if node_uid else {}),
            },
            "spec": {
                "driver": DRIVER,
                "nodeName": node_name,
                "pool": {
                    "name": node_name,
                    "generation": generation,
                    "resourceSliceCount": len(parts),
                },
                "devices": part,
            },
        }
        for index, part in enumerate(parts)
    ]


def slice_name(node_name: str, index: int) -> str:
    """The name of a node's slice. The name of a node may be as long as an object's: the end of a
    long one is replaced by a hash of it."""
    suffix = f"-{DRIVER}-{index:02}"
    if len(node_name) + len(suffix) > _MOST_NAME:
        digest = hashlib.sha256(node_name.encode()).hexdigest()[:16]
        node_name = (
            f"{node_name[: _MOST_NAME - len(suffix) - len(digest) - 1].rstrip('-.')}-{digest}"
        )
    return node_name + suffix


def _owner(node_name: str, uid: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Node", "name": node_name, "uid": uid}


def _device(group: CpuGroup, layout: Layout, step: int, roots: tuple[str, ...]) -> Device:
    attributes: dict[str, Any] = {
        resource_slice.NUMA_NODE: {"int": group.node},
        _named("grouping"): {"string": group.grouping.value},
        _named("socketID"): {"int": group.socket},
        _named("smt"): {"bool": layout.threads > 1},
        _named("threadsPerCore"): {"int": layout.threads},
        _named("l3Count"): {"int": group.caches},
        _named("freeCores"): {"int": layout.whole(group.free.mask).bit_count()},
    }
    if group.core_kind is not None:
        attributes[_named("coreType")] = {"string": group.core_kind[:_MOST_TEXT]}
    # An external allocator chooses among these. A list that is too long for the API is left out.
    if len(str(group.cpus)) <= _MOST_TEXT:
        attributes[_named("cpuIDs")] = {"string": str(group.cpus)}
    if 0 < len(roots) <= _MOST_VALUES - len(attributes):
        attributes[resource_slice.PCIE_ROOT] = {"strings": [*roots]}
    device: Device = {"name": group.name, "attributes": attributes}
    if not group.whole:
        device[_PARTS] = True
        device["capacity"] = _capacity(group, step)
    return device


def _node_resources(group: CpuGroup, minor: int) -> Device:
    """A scheduler that counts claims like requests takes them from the Node's amounts."""
    if minor < 36:
        return {}
    if group.whole:
        field = "allocationMultiplier" if minor == 36 else "deviceMultiplier"
        mappings: dict[str, Any] = {CPU: {field: str(len(group.cpus))}}
    else:
        # The server would add the former by itself.
        factor = "allocationMultiplier" if minor == 36 else "capacityMultiplier"
        mappings = {
            name.replace(HUGE_PAGES, "hugepages-"): {"capacityKey": _named(name), factor: "1"}
            for name in _amounts(group)
        }
    if minor == 36:
        return {_MAPPINGS: mappings}
    return {_RESOURCES: {name: {"mapping": mapping} for name, mapping in mappings.items()}}


def _amounts(group: CpuGroup) -> Mapping[str, int]:
    """By the name of a capacity, its amount; memory and huge pages in bytes."""
    # A scheduler subtracts all CPUs that claims have, also the offline ones.
    amounts = {CPU: len(group.cpus) + group.lost}
    if group.memory_bytes:
        amounts[MEMORY] = group.memory_bytes
    for size_bytes, pool_bytes in sorted(group.hugepages.items()):
        if pool_bytes:
            amounts[f"{HUGE_PAGES}{amount(MEMORY, size_bytes)}"] = pool_bytes
    return amounts


def _capacity(group: CpuGroup, step: int) -> Mapping[str, Any]:
    """A claim that does not say how much it wants gets the least CPU, and no memory."""
    capacity = {}
    for name, value in _amounts(group).items():
        if name == CPU:
            policy = _amount(value // step * step, str(step), str(step), str(step))
        else:
            # Huge pages are taken one by one.
            _, _, size = name.partition(HUGE_PAGES)
            policy = _amount(amount(MEMORY, value), "0", "0", size)
        capacity[_named(name)] = policy
    return capacity


def _amount(value: object, default: str, least: str, step: str = "") -> dict[str, Any]:
    valid: dict[str, Any] = {"validRange": {"min": least}}
    if step and str(value) == least:
        # The API wants room for a step above the least amount.
        valid = {"validValues": [least]}
    elif step:
        valid["validRange"]["step"] = step
    return {"value": str(value), "requestPolicy": {"default": default, **valid}}


def _named(name: str) -> str:
    return f"{DRIVER}/{name}"
