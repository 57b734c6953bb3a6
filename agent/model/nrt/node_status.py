"""The fields that Topolet adds to a Node: labels that describe its machine and devices, and
extended resources in its status."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from agent.model.cpu.topology import Topology
from agent.model.devices.device_object import (
    GPU,
    GPU_CORE,
    GPU_MEMORY,
    GPU_MEMORY_RATIO,
    GPU_SHARED,
    RESOURCE_OF,
    Device,
    DeviceType,
)
from agent.model.devices.gpus import GpuInfo
from agent.model.objects import label_value
from agent.model.pod import apiobjects
from agent.model.quantities import QuantityError, whole

Object = dict[str, Any]

GPU_VENDOR: Final = "node.koordinator.sh/gpu-vendor"
GPU_MODEL: Final = apiobjects.GPU_MODEL
GPU_DRIVER: Final = "node.koordinator.sh/gpu-driver-version"

LABEL_PREFIX = "topology.topolet.io/"


_BY_TYPE: Final = {
    DeviceType.GPU.value: (GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO),
    **{kind: (name,) for kind, name in RESOURCE_OF.items()},
}
_NVIDIA: Final = "nvidia"
_DISCOVERY: Final = "nvidia.com/"
"""The domain of the labels of NVIDIA's GPU feature discovery."""


def extended_resources(devices: Iterable[Device], gpus: GpuInfo | None = None) -> dict[str, int]:
    """By name, the sum over healthy devices; 0 if all devices of a type are unhealthy, absent if
    there are none. `koordinator.sh/gpu` counts cards of NVIDIA's and of unknown vendors.
    `gpu.shared` is listed because a pod that requests it fits only nodes that have it."""
    sums: dict[str, int] = {}

    def add(name: str, amount: int, device: Device) -> None:
        sums[name] = sums.get(name, 0) + (amount if device.healthy else 0)

    for device in devices:
        for name in _BY_TYPE.get(device.type, ()):
            if name in device.resources:
                add(name, device.resources[name], device)
        if device.type == DeviceType.GPU and GPU_CORE in device.resources:
            if gpus is None or gpus.vendor in ("", _NVIDIA):
                add(GPU, device.resources[GPU_CORE], device)
            add(GPU_SHARED, device.resources[GPU_CORE], device)
    return dict(sorted(sums.items()))


def node_labels(topology: Topology) -> dict[str, str]:
    """Labels of the Node that describe its machine."""
    kinds = sorted({cpu.kind for cpu in topology.cpus if cpu.kind is not None})
    values = {
        "cpus": str(len(topology.cpus)),
        "cores": str(len({cpu.core for cpu in topology.cpus})),
        "sockets": str(len({cpu.socket for cpu in topology.cpus})),
        "numa-nodes": str(len(topology.numa_nodes)),
        "l3-caches": str(len({cpu.l3 for cpu in topology.cpus if cpu.l3 is not None})),
        "smt": "true" if topology.smt else "false",
        **({"core-kinds": "_".join(kinds)} if kinds else {}),
    }
    return {f"{LABEL_PREFIX}{key}": value for key, value in values.items()}


def node(name: str, labels: dict[str, str], annotations: Mapping[str, str] | None = None) -> Object:
    """The fields of the Node that Topolet writes, without the status."""
    metadata: Object = {"name": name, "labels": labels}
    if annotations:
        metadata["annotations"] = dict(annotations)
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata}


def status(name: str, resources: Mapping[str, int]) -> Object:
    """The fields of the Node's status that Topolet writes. Capacity and allocatable are equal: for
    extended resources, a kubelet copies capacity to allocatable whenever it writes."""
    amounts = {each: str(amount) for each, amount in sorted(resources.items())}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name},
        "status": {"capacity": amounts, "allocatable": dict(amounts)},
    }


def with_stored_amounts(wanted: Object, stored: object) -> Object:
    """The wanted status, with the stored text of each amount that is equal: an API server rewrites
    quantities (`1000` as `1k`)."""
    found = stored.get("status") if isinstance(stored, dict) else None
    if not isinstance(found, dict):
        return wanted
    before_of = {field: each for field, each in found.items() if isinstance(each, dict)}
    status = {
        field: {
            name: before
            if (before := before_of.get(field, {}).get(name)) is not None and _same(before, amount)
            else amount
            for name, amount in amounts.items()
        }
        for field, amounts in wanted["status"].items()
    }
    return {**wanted, "status": status}


def gpu_labels(
    gpus: GpuInfo, devices: Iterable[Device], *, discovery: bool = False
) -> dict[str, str]:
    """Koordinator's labels of Device and Node; with `discovery` also those labels of NVIDIA's GPU
    feature discovery whose values are known, for the Node. Empty without a GPU."""
    cards = [each for each in devices if each.type == DeviceType.GPU]
    if not cards:
        return {}
    model = gpus.product
    if gpus.vendor == _NVIDIA:
        model = re.sub(r"(?i)^nvidia\s+", "", model)
    labels = {
        GPU_VENDOR: gpus.vendor,
        GPU_MODEL: label_value(model),
        GPU_DRIVER: label_value(gpus.driver_version),
    }
    if discovery and gpus.vendor == _NVIDIA:
        labels |= _discovered(gpus, cards)
    return {key: value for key, value in sorted(labels.items()) if value}


def without_labels_of_others(wanted: Object, stored: Object, own: Collection[str]) -> Object:
    """The wanted Node without the labels of NVIDIA's feature discovery that the stored one has from
    another writer, such as the discovery itself.

    `own`: the stored labels that are Topolet's."""
    before = stored["metadata"].get("labels") or {}
    labels = {
        key: value
        for key, value in wanted["metadata"].get("labels", {}).items()
        if not key.startswith(_DISCOVERY) or key not in before or key in own
    }
    return {**wanted, "metadata": {**wanted["metadata"], "labels": labels}}


def from_labels(labels: Mapping[str, str]) -> GpuInfo:
    return GpuInfo(
        labels.get(GPU_VENDOR, ""), labels.get(GPU_MODEL, ""), labels.get(GPU_DRIVER, "")
    )


def _discovered(gpus: GpuInfo, cards: list[Device]) -> dict[str, str]:
    """Labels of NVIDIA's feature discovery, which has the memory of one card in MiB."""
    memory = {card.resources.get(GPU_MEMORY, 0) for card in cards}
    version = gpus.driver_version.split(".")
    parts = dict(zip(("major", "minor", "revision"), version, strict=False))
    return {
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.count": str(len(cards)),
        "nvidia.com/gpu.product": label_value(gpus.product),
        "nvidia.com/gpu.memory": str(memory.pop() >> 20) if len(memory) == 1 else "",
        "nvidia.com/cuda.driver-version.full": label_value(gpus.driver_version),
        **{
            f"nvidia.com/cuda.driver-version.{part}": label_value(parts.get(part, ""))
            for part in parts
        },
    }


def _same(stored: object, amount: str) -> bool:
    try:
        return isinstance(stored, str | int) and whole(stored) == int(amount)
    except QuantityError:
        return False
