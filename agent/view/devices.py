"""The devices of a machine: GPUs, network interfaces, FPGAs and other accelerators, as a table, and
as a tree of NUMA nodes, root buses and switches."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from agent.model.cpu.cpuset import CpuSet, union
from agent.model.devices.gpus import GpuReport
from agent.model.devices.pci import Fpgas, Function, Rdma, RdmaFunction, address_key
from agent.model.snapshot import Snapshot
from agent.view.format import printable, size, table

GPU: Final = "gpu"
_CLASSES: Final = {0x02: "nic", 0x12: "accelerator"}
"""By the upper 8 bits of PCI's class code."""
_INFINIBAND: Final = 0x0C06
"""An InfiniBand controller of the class of serial buses."""
_DISPLAY: Final = 0x03
_CONTROLLERS_3D: Final = (0x0302, 0x0380)
"""Display controllers that are not VGA adapters (PCI Code and ID Assignment, class 03h)."""
_NVIDIA: Final = 0x10DE
NONE: Final = "No GPUs, network interfaces, FPGAs or accelerators."
_HEAD: Final = ("DEVICE", "ADDRESS", "NUMA", "NAME", "PODS", "STATE")


class DevicePart(msgspec.Struct, frozen=True):
    """A MIG instance."""

    uuid: str
    memory_bytes: int | None = None
    holders: tuple[str, ...] = ()


class ShownDevice(msgspec.Struct, frozen=True):
    """A PCI function, and what is known of the device. None: the device has no such value, or it is
    unknown."""

    kind: str
    """gpu, nic, fpga, accelerator or display."""
    address: str
    name: str
    id: str = ""
    """The UUID of a GPU, "" for other devices."""
    index: int | None = None
    """The number that the driver gives a GPU."""
    node: int = -1
    """The kernel's id, -1 if unknown."""
    socket: int = -1
    """The kernel's id, -1 if unknown."""
    root: str = ""
    bridges: tuple[str, ...] = ()
    """The bridges above the function, outermost first."""
    driver: str = ""
    memory_bytes: int | None = None
    memory_used_bytes: int | None = None
    utilization_percent: int | None = None
    healthy: bool | None = None
    state: str = ""
    """Further facts as text."""
    links: tuple[str, ...] = ()
    """One text for each other GPU with a link."""
    parts: tuple[DevicePart, ...] = ()
    holders: tuple[str, ...] = ()
    """The titles of the pods that have the device."""

    @property
    def title(self) -> str:
        return self.kind if self.index is None else f"{self.kind} {self.index}"


class DeviceSources(msgspec.Struct, frozen=True):
    """What was read about the devices."""

    functions: Mapping[str, Function]
    """PCI functions by address."""
    interfaces: Mapping[str, tuple[str, ...]] = {}
    """The names of network interfaces by the address of their function."""
    rdma: Rdma = Rdma()
    fpgas: Fpgas = Fpgas()
    gpus: GpuReport | None = None
    """The driver's report, None if it was not requested."""
    holders: Mapping[str, tuple[str, ...]] = {}
    """Titles of pods by the UUID of a GPU or MIG instance, or the address of another device."""
    health: Mapping[str, bool] = {}
    """Whether the device works, by the same keys as `holders`."""
    numa_nodes: Mapping[str, CpuSet] = {}
    """By title of a pod with devices, the NUMA nodes that its containers with devices run on."""
    problems: tuple[str, ...] = ()
    """What could not be read."""


def shown(
    sources: DeviceSources, name_of: Callable[[Function], str] = lambda function: ""
) -> tuple[ShownDevice, ...]:
    """The devices by NUMA node and address, without virtual functions.

    `name_of`: returns vendor and model, "" if unknown."""
    rdma = {
        rdma_device.physical.address: rdma_device.physical for rdma_device in sources.rdma.devices
    }
    fpgas = {fpga.address for fpga in sources.fpgas.devices}
    devices = []
    for function in sources.functions.values():
        kind = "fpga" if function.address in fpgas else _kind(function)
        if kind and not function.physical:
            name = name_of(function) or _pci_ids(function)
            holders = sources.holders.get(function.address, ())
            states = [
                *sources.interfaces.get(function.address, ()),
                *_rdma_state(rdma.get(function.address)),
                *_virtual(function),
            ]
            device = ShownDevice(
                kind,
                function.address,
                name,
                node=function.node,
                socket=function.socket,
                root=function.root,
                bridges=function.bridges,
                driver=function.driver,
                healthy=sources.health.get(function.address),
                state=", ".join(states),
                holders=holders,
            )
            devices.append(_with_far_holders(_with_gpu(device, sources), sources.numa_nodes))
    return tuple(sorted(devices, key=lambda device: (device.node, address_key(device.address))))


def holders(snapshot: Snapshot) -> dict[str, tuple[str, ...]]:
    """By the UUID or address of a device, the titles of the pods that have it, as the agent
    decided."""
    held = snapshot.devices.held if snapshot.devices else ()
    pods = snapshot.pods
    return {
        each.uuid: tuple(pods[uid].title if uid in pods else uid for uid in each.holders)
        for each in held
        if each.holders
    }


def numa_nodes(snapshot: Snapshot) -> dict[str, CpuSet]:
    """By title, the NUMA nodes of pods with devices, as the agent decided."""
    nodes: dict[str, CpuSet] = {}
    for pod in snapshot.pods.values():
        of_pod = union(CpuSet.parse(each.numa_nodes) for each in pod.containers.values())
        if of_pod:
            nodes[pod.title] = of_pod
    return nodes


def _with_far_holders(device: ShownDevice, numa_nodes: Mapping[str, CpuSet]) -> ShownDevice:
    of_parts = (title for part in device.parts for title in part.holders)
    titles = dict.fromkeys((*device.holders, *of_parts))
    far = [
        f"far: {title} runs on NUMA nodes {nodes}"
        for title in titles
        if device.node >= 0 and (nodes := numa_nodes.get(title)) and device.node not in nodes
    ]
    state = ", ".join(filter(None, (device.state, *far)))
    return msgspec.structs.replace(device, state=state) if far else device


def _kind(function: Function) -> str:
    code = function.class_code or 0
    if code >> 16 == _DISPLAY:
        is_gpu = function.vendor == _NVIDIA or code >> 8 in _CONTROLLERS_3D
        return GPU if is_gpu else "display"
    return "nic" if code >> 8 == _INFINIBAND else _CLASSES.get(code >> 16, "")


def _pci_ids(function: Function) -> str:
    vendor, device = (
        "????" if each is None else f"{each:04x}" for each in (function.vendor, function.device)
    )
    return f"{vendor}:{device}"


def _virtual(function: Function) -> Iterable[str]:
    if function.virtual_limit:
        yield f"{len(function.virtual)} of {function.virtual_limit} virtual functions"


def _rdma_state(function: RdmaFunction | None) -> Iterable[str]:
    if function is None:
        return
    for link in function.links:
        for port in link.ports:
            rate = f" {port.rate_gbps:g} Gb/s" if port.rate_gbps else ""
            yield f"{link.name}/{port.number} {port.state.lower() or 'unknown'}{rate}"


def _with_gpu(device: ShownDevice, sources: DeviceSources) -> ShownDevice:
    report = sources.gpus
    if device.kind != GPU or report is None:
        return device
    if report.inventory is None:
        return msgspec.structs.replace(device, state=f"the driver does not answer: {report.fault}")
    for silent in report.inventory.silent:
        if silent.bus == device.address:
            return msgspec.structs.replace(device, healthy=False, state=silent.fault)
    card = next((gpu for gpu in report.inventory.gpus if gpu.bus == device.address), None)
    if card is None:
        return msgspec.structs.replace(device, state="the driver does not list it")
    reading = next((reading for reading in report.readings if reading.uuid == card.uuid), None)
    parts = tuple(
        DevicePart(instance.uuid, instance.memory_bytes, sources.holders.get(instance.uuid, ()))
        for instance in card.instances
    )
    return msgspec.structs.replace(
        device,
        id=card.uuid,
        index=card.index,
        name=card.product or device.name,
        memory_bytes=card.memory_bytes,
        memory_used_bytes=reading.memory_used_bytes if reading else None,
        utilization_percent=reading.gpu_percent if reading else None,
        healthy=sources.health.get(card.uuid),
        state="MIG" if card.mig else "",
        links=tuple(_links(card.uuid, report)),
        parts=parts,
        holders=sources.holders.get(card.uuid, ()),
    )


def _links(uuid: str, report: GpuReport) -> Iterable[str]:
    if report.inventory is None:
        return
    indices = {each.uuid: each.index for each in report.inventory.gpus}
    for pair in report.inventory.pairs:
        if uuid not in (pair.one, pair.two) or not pair.links:
            continue
        other = pair.two if uuid == pair.one else pair.one
        rate = f", {pair.mb_per_second / 1000:g} GB/s" if pair.mb_per_second else ""
        through = " through switches" if pair.switched else ""
        yield f"gpu {indices.get(other, '?')}: {pair.links} NVLinks{through}{rate}"


def as_table(devices: Sequence[ShownDevice], width: int) -> list[str]:
    """One row for each device and MIG instance. If a row is wider than `width`, pods and state are
    on lines below each device."""
    if not devices:
        return [NONE]
    rows: list[Sequence[str]] = [_HEAD]
    for each in devices:
        node = str(each.node) if each.node >= 0 else "?"
        name, state = printable(each.name), printable(_state(each))
        rows.append((each.title, each.address, node, name, _pods(each.holders), state))
        for part in each.parts:
            rows.append(("  mig", "", "", part.uuid, _pods(part.holders), _memory(part)))
    lines = table(rows, sys.maxsize)
    return lines if max(map(len, lines)) <= width else _narrow_table(rows, width)


def _narrow_table(rows: Sequence[Sequence[str]], width: int) -> list[str]:
    with_address = [row for row in rows if row[1]]
    starts = iter(table([row[:4] for row in with_address], sys.maxsize))
    lines: list[str] = []
    for row in rows:
        device, address, _, name, pods, state = row
        if row is rows[0]:
            lines.append(next(starts)[:width])
        elif address:
            lines += _folded(next(starts), "", width)
            if pods or state:
                lines += _folded("  ".join(filter(None, (state, pods))), "    ", width)
        else:
            text = "  ".join(filter(None, (device.strip(), name, state, pods)))
            lines += _folded(text, "    ", width)
    return lines


def as_tree(devices: Sequence[ShownDevice], width: int) -> list[str]:
    """A line for each device, below lines for its NUMA node, root bus and switches."""
    lines: list[str] = [] if devices else [NONE]
    above: tuple[str, ...] = ()
    for each in sorted(devices, key=lambda one: (one.node, one.root, one.bridges, one.address)):
        place = f"NUMA node {each.node}" if each.node >= 0 else "NUMA node unknown"
        switches = tuple(f"switch {bridge}" for bridge in each.bridges[1::2])
        path = (place, each.root or "no PCI tree", *switches)
        same = 0
        while same < min(len(path), len(above)) and path[same] == above[same]:
            same += 1
        lines += [f"{'  ' * depth}{path[depth]}" for depth in range(same, len(path))]
        above = path
        indent = "  " * len(path)
        facts = (printable(each.name), printable(_state(each)), _pods(each.holders))
        text = "  ".join([f"{each.title} {each.address}", *filter(None, facts)])
        lines += _folded(text, indent, width)
        lines += [f"{indent}    {link}" for link in each.links]
        for part in each.parts:
            facts = (f"mig {part.uuid}", _memory(part), _pods(part.holders))
            lines += _folded("  ".join(filter(None, facts)), f"{indent}    ", width)
    return lines


def _folded(text: str, indent: str, width: int) -> list[str]:
    return textwrap.wrap(
        text,
        max(width, len(indent) + 40),
        initial_indent=indent,
        subsequent_indent=f"{indent}  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _memory(part: DevicePart) -> str:
    return size(part.memory_bytes) if part.memory_bytes else ""


def _state(device: ShownDevice) -> str:
    facts = []
    if device.memory_bytes is not None:
        used = f"{size(device.memory_used_bytes)} of " if device.memory_used_bytes else ""
        facts.append(f"{used}{size(device.memory_bytes)}")
    if device.utilization_percent is not None:
        facts.append(f"{device.utilization_percent} %")
    if device.healthy is not None:
        facts.append("healthy" if device.healthy else "unhealthy")
    return ", ".join([*facts, *([device.state] if device.state else [])])


def _pods(holders: Iterable[str]) -> str:
    return printable(", ".join(holders))
