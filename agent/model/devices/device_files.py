"""The names and files by which a container reaches each device of a node. A card of NVIDIA's has
/dev/nvidiaMINOR. A MIG instance has the node of its card and two capabilities; the driver lists
their minors in /proc/driver/nvidia-caps/mig-minors."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from itertools import chain
from typing import Final

import msgspec

from agent.model.devices.device_object import Device, DeviceType
from agent.model.devices.gpus import Gpu, MigInstance
from agent.model.devices.pci import CharDevice, Fpga, Fpgas, Rdma
from agent.model.devices.visibility import DeviceNode, VisibleGpu


class CardFiles(msgspec.Struct, frozen=True):
    """A GPU. A MIG instance needs the device nodes of its card too."""

    gpu: VisibleGpu
    minor: int | None = None
    """Its minor in the Device object."""
    divided: bool = False
    """MIG is on, so only the instances can be used."""
    instances: tuple[VisibleGpu, ...] = ()


class OtherFiles(msgspec.Struct, frozen=True):
    """A device of another type."""

    type: str
    uuid: str
    """For an RDMA device or FPGA its PCI address."""
    minor: int
    nodes: tuple[DeviceNode, ...] = ()
    functions: dict[str, tuple[DeviceNode, ...]] = {}
    """The nodes of its virtual functions by PCI address."""


class DeviceFiles(msgspec.Struct, frozen=True):
    """All devices of a node."""

    cards: tuple[CardFiles, ...] | None = ()
    """None if the node has cards, and the driver has not listed them yet."""
    others: tuple[OtherFiles, ...] = ()
    common: dict[str, tuple[DeviceNode, ...]] = {}
    """By type, the nodes that every user needs in addition to those of the device
    (/dev/infiniband/rdma_cm)."""


NO_FILES: Final = DeviceFiles()


NVIDIA_MAJOR: Final = 195
_CAPABILITY: Final = re.compile(
    r"(gpu[0-9]{1,9}/gi[0-9]{1,9}(?:/ci[0-9]{1,9})?)/access ([0-9]{1,9})\b"
)
_CAPABILITIES_MAJOR: Final = re.compile(r"^\s*([0-9]{1,9}) nvidia-caps$", re.MULTILINE)


def capabilities(mig_minors: str, proc_devices: str) -> dict[str, DeviceNode]:
    """The nodes of MIG capabilities by name, `gpu0/gi1` and `gpu0/gi1/ci0` (the first number is the
    card's minor), from the texts of /proc/driver/nvidia-caps/mig-minors and /proc/devices."""
    major = _CAPABILITIES_MAJOR.search(proc_devices)
    return {
        name: DeviceNode(
            f"/dev/nvidia-caps/nvidia-cap{minor}", int(major[1]) if major else -1, int(minor)
        )
        for name, minor in _CAPABILITY.findall(mig_minors)
    }


def device_files(
    devices: Iterable[Device],
    gpus: Iterable[Gpu] | None,
    rdma: Rdma,
    fpgas: Fpgas,
    capability_nodes: Mapping[str, DeviceNode] | None = None,
    before: DeviceFiles = NO_FILES,
) -> DeviceFiles:
    """The files of `devices`. A device whose files are not visible now keeps its files in `before`,
    unless another device has them now: an RDMA device or virtual function is not visible while it
    is in the network namespace of its pod.

    `gpus`: None if the driver has not listed them yet."""
    listed = list(devices)
    minors = {device.uuid: device.minor for device in listed if device.type == DeviceType.GPU}
    now = {(other.type, other.uuid): other for other in (*_rdma(rdma), *_fpgas(fpgas))}
    earlier = {(other.type, other.uuid): other for other in before.others}
    seen = frozenset(
        node.path
        for other in now.values()
        for node in chain(other.nodes, *other.functions.values())
    )
    others = []
    for device in listed:
        key = device.type, device.uuid
        files = _with_hidden(now.get(key), earlier.get(key), seen)
        if files is not None:
            others.append(msgspec.structs.replace(files, minor=device.minor))
    return DeviceFiles(
        None
        if gpus is None
        else tuple(
            _card(gpu, minors.get(gpu.uuid), capability_nodes or {})
            for gpu in sorted(gpus, key=lambda gpu: (gpu.index, gpu.uuid))
        ),
        tuple(sorted(others, key=lambda other: (other.type, other.minor, other.uuid))),
        {DeviceType.RDMA.value: tuple(map(_node, rdma.common))} if rdma.common else before.common,
    )


def _with_hidden(
    now: OtherFiles | None, before: OtherFiles | None, seen: Collection[str]
) -> OtherFiles | None:
    """The visible files of a device, if it has any; otherwise its files in `before`, without those
    that another device has now (their paths are in `seen`)."""
    if before is None:
        return now
    functions = {bus: _without(nodes, seen) for bus, nodes in before.functions.items()}
    if now is None:
        return msgspec.structs.replace(
            before, nodes=_without(before.nodes, seen), functions=functions
        )
    return msgspec.structs.replace(
        now,
        nodes=now.nodes or _without(before.nodes, seen),
        functions={bus: own or functions.get(bus, ()) for bus, own in now.functions.items()},
    )


def _without(nodes: Iterable[DeviceNode], seen: Collection[str]) -> tuple[DeviceNode, ...]:
    return tuple(each for each in nodes if each.path not in seen)


def _card(gpu: Gpu, minor: int | None, capability_nodes: Mapping[str, DeviceNode]) -> CardFiles:
    """The files of a card. If `minor`, its minor in the Device object, differs from the driver's,
    the latter is unknown or belongs to another card."""
    nodes = (
        ()
        if gpu.minor is None or gpu.minor != minor
        else (DeviceNode(f"/dev/nvidia{gpu.minor}", NVIDIA_MAJOR, gpu.minor),)
    )
    index = str(gpu.index) if gpu.index >= 0 else ""

    def instance(it: MigInstance) -> VisibleGpu:
        name = f"gpu{gpu.minor}/gi{it.gpu_instance}"
        wanted = (name, f"{name}/ci{it.compute_instance}")
        own = [capability_nodes[path] for path in wanted if path in capability_nodes]
        complete = len(own) == len(wanted) and nodes
        number = f"{index}:{it.index}" if index and it.index is not None else ""
        return VisibleGpu(it.uuid, number, (*nodes, *own) if complete else ())

    return CardFiles(
        VisibleGpu(gpu.uuid, index, nodes),
        minor,
        bool(gpu.mig),
        tuple(map(instance, gpu.instances)),
    )


def _rdma(rdma: Rdma) -> Iterable[OtherFiles]:
    for each in rdma.devices:
        yield OtherFiles(
            DeviceType.RDMA,
            each.physical.address,
            -1,
            tuple(map(_node, each.physical.char_devices)),
            {virtual.address: tuple(map(_node, virtual.char_devices)) for virtual in each.virtual},
        )


def _fpgas(fpgas: Fpgas) -> Iterable[OtherFiles]:
    """The nodes of the ports. A container never gets the node that loads another bitstream."""
    by_address = {fpga.address: fpga for fpga in fpgas.devices}
    for fpga in fpgas.devices:
        virtual = [by_address[place] for _, place in fpga.function.virtual if place in by_address]
        yield OtherFiles(
            DeviceType.FPGA,
            fpga.address,
            -1,
            _ports(fpga),
            {it.address: _ports(it) for it in virtual},
        )


def _ports(fpga: Fpga) -> tuple[DeviceNode, ...]:
    return tuple(_node(port.char_device) for port in fpga.ports if port.char_device is not None)


def _node(device: CharDevice) -> DeviceNode:
    return DeviceNode(device.path, *(device.number or ()))
