"""Resolves the names of devices that plugins, drivers and containers use, by one table.

A name resolves to a device by a key: its UUID, its PCI address, the path of its file, or a number,
either `index` (NVML's) or `minor` (of /dev/nvidiaN).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from agent.model.cpu.cpuset import CpuSet, CpuSetError
from agent.model.devices.device_object import Device, DeviceType
from agent.model.devices.gpus import Gpu, pci_address
from agent.model.devices.holding import DeviceHolding, Form, ReportedDevices
from agent.model.devices.pci import Fpga, RdmaDevice
from agent.model.devices.visibility import is_uuid


class Target(msgspec.Struct, frozen=True):
    """The device, or part of one, that a key identifies."""

    type: str
    device: str
    form: Form = Form.WHOLE
    part: str = ""


Keys = Mapping[str, Target]


class Row(msgspec.Struct, frozen=True):
    """Names of a resource that match a pattern; the first row that matches applies."""

    resource: str
    pattern: str
    key: str = ""
    """A template of the key, filled from the groups of the pattern; empty if the name stands for no
    device."""
    form: Form | None = None
    """The form of the holding, None for the form of the target."""
    part: str = ""
    why: str = ""
    """Why the name stands for no device."""


_NVIDIA: Final = r"((.+\.)?nvidia\.com/(gpu|mig-[^/]+)(\.shared)?)?"
"""The source of a name: a plugin, a CDI kind, or a container (without a resource name)."""

_CLAIM: Final = r"gpu\.nvidia\.com|k8s\.gpu\.nvidia\.com/(device|claim)"
"""NVIDIA's DRA driver, and its CDI kinds; their names begin with the uid of a claim."""

_NUMBER: Final = re.compile(r"(?:gpu|mig)?\d+(?::\d+)?(?:::.*)?")

_NOT_COUNTED: Final = "is not a device that is counted here"

ROWS: Final = (
    Row(r".*", r"(GPU-[^:]+)::(.+)", r"\1", Form.REPLICA, r"\2"),
    Row(r".*", r"(MIG-[^:]+)::(.+)", r"\1", Form.INSTANCE, r"\1::\2"),
    Row(r".*", r"(MIG-(GPU-[^/:]+)/\d+/\d+)", r"\2", Form.INSTANCE, r"\1"),
    Row(r".*", r"((GPU|MIG)-[^:]+)", r"\1"),
    Row(_NVIDIA, r"((?i:gpu|mig)-[^:]+)", r"\1"),
    # A match takes linear time in the length of the name, which a container chooses.
    Row(_NVIDIA, r"(?:gpu|mig)?0*((?:[1-9]\d*|0)(?::\d+)?)", r"index:\1"),
    Row(_NVIDIA, r"(\d+)::(.+)", r"index:\1", Form.REPLICA, r"\2"),
    Row(_NVIDIA, r"all", why="sees every GPU, and none is reserved for it"),
    Row(_CLAIM, r"(?:.+-)?gpu-(\d+)", r"minor:\1"),
    Row(_CLAIM, r"(?:.+-)?(gpu-(\d+)-mig-.+)", r"minor:\2", Form.INSTANCE, r"\1"),
    Row(r"dra\.cpu", r"[\d,-]+", form=Form.CPUS),
    Row(r"dra\.cpu", r".*", why="does not name the CPUs"),
    Row(r".*", r"([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])", r"\1"),
    Row(r"rdma/.*", r".*", why="opens a shared RDMA device, which others may use too"),
    Row(r".*", r"((dfl|intel-fpga)-port\.\d+)", r"/dev/\1"),
    Row(r".*", r"(index|minor):.*", why=_NOT_COUNTED),
    Row(r".*", r"(.*)", r"\1", why=_NOT_COUNTED),
)
"""The last row matches every name. Resources can be renamed, so a UUID means its card under every
resource name."""


class Meaning(msgspec.Struct, frozen=True):
    """The meaning of reported names."""

    holdings: tuple[DeviceHolding, ...] = ()
    left: tuple[tuple[str, str], ...] = ()
    """Names that do not stand for a device, each with the reason."""
    unknown: tuple[str, ...] = ()
    """Names of devices that are not on this node."""


def keys(
    devices: Iterable[Device],
    gpus: Iterable[Gpu] = (),
    rdma: Iterable[RdmaDevice] = (),
    fpgas: Iterable[Fpga] = (),
) -> dict[str, Target]:
    """The targets by key. Devices of a Device object have only UUID, address and minor; the other
    keys need the node's discovered GPUs, NICs and FPGAs."""
    found: dict[str, Target] = {}
    for device in devices:
        whole = Target(device.type, device.uuid)
        found[device.uuid] = whole
        if device.topology and device.topology.bus:
            found[device.topology.bus] = whole
        for group in device.vf_groups:
            for function in group.vfs:
                target = Target(device.type, device.uuid, Form.FUNCTION, function.bus)
                found[function.bus] = target
        if device.type == DeviceType.GPU:
            found[f"minor:{device.minor}"] = found[f"/dev/nvidia{device.minor}"] = whole
    for gpu in gpus:
        listed = gpu.index >= 0
        if listed:
            found[f"index:{gpu.index}"] = Target(DeviceType.GPU, gpu.uuid)
        for instance in gpu.instances:
            part = Target(DeviceType.GPU, gpu.uuid, Form.INSTANCE, instance.uuid)
            found[instance.uuid] = part
            if listed and instance.index is not None:
                found[f"index:{gpu.index}:{instance.index}"] = part
    for adapter in rdma:
        physical = adapter.physical
        for file in physical.char_devices:
            found[file.path] = Target(DeviceType.RDMA, physical.address, Form.OPEN)
        for virtual in adapter.virtual:
            part = Target(DeviceType.RDMA, physical.address, Form.FUNCTION, virtual.address)
            found |= {file.path: part for file in virtual.char_devices}
    for fpga in fpgas:
        target = found.get(fpga.address, Target(DeviceType.FPGA, fpga.address))
        found |= {port.char_device.path: target for port in fpga.ports if port.char_device}
    return found


def is_number(name: str) -> bool:
    """Whether the name is NVML's number of a card or of an instance, or of a replica of one."""
    return _NUMBER.fullmatch(name) is not None


def meaning(reported: ReportedDevices, keys: Keys) -> Meaning:
    """Resolves every name by its row."""
    holdings: list[DeviceHolding] = []
    left: list[tuple[str, str]] = []
    unknown: list[str] = []
    for name in dict.fromkeys(reported.names):
        row, match = _row(reported.resource, name)
        if row.form is Form.CPUS:
            target = _cpus(name)
        else:
            target = _target(match.expand(row.key), keys) if row.key else None
        if target is None:
            if row.why:
                left.append((name, row.why))
            else:
                unknown.append(name)
            continue
        part = match.expand(row.part) if row.part else target.part
        holdings.append(
            DeviceHolding(
                reported.uid,
                reported.container,
                reported.resource,
                target.type,
                target.device,
                Form.REPLICA if reported.share else row.form or target.form,
                reported.share or part,
                source=reported.source,
                claim=reported.claim,
            )
        )
    return Meaning(tuple(holdings), tuple(left), tuple(unknown))


def _row(resource: str, name: str) -> tuple[Row, re.Match[str]]:
    for row in ROWS:
        if re.fullmatch(row.resource, resource, re.DOTALL):
            match = re.fullmatch(row.pattern, name, re.DOTALL)
            if match:
                return row, match
    raise AssertionError("the last row fits all")


def _target(key: str, keys: Keys) -> Target | None:
    """The device of a key. A unique prefix of a UUID is enough, in upper or lower case, as for
    NVIDIA's runtime."""
    address = pci_address(key)
    if address:
        return keys.get(address)
    beginning = key.upper()
    if key in keys or not is_uuid(beginning):
        return keys.get(key)
    targets = {target for uuid, target in keys.items() if uuid.upper().startswith(beginning)}
    return targets.pop() if len(targets) == 1 else None


def _cpus(name: str) -> Target | None:
    try:
        cpus = CpuSet.parse(name)
    except CpuSetError:
        return None
    return Target("", "", Form.CPUS, str(cpus)) if cpus else None
