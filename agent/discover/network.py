"""The network interfaces of PCI functions, and RDMA devices, which are the functions that have a
folder `infiniband` (Mellanox/rdmamap: rdma_map.go).

The class of the function does not identify them: HCAs are Ethernet, InfiniBand, serial bus or other
controllers. A device without a PCI function (`scif0`, soft RoCE) is not allocated."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from agent.discover.pci import DEVICES
from agent.discover.sysfs import SysfsReader
from agent.host.files import Tree
from agent.model.devices.pci import (
    CharDevice,
    Function,
    Rdma,
    RdmaDevice,
    RdmaFunction,
    RdmaLink,
    RdmaPort,
    address_key,
)

_FILES: Final = "/dev/infiniband/"
_FOLDERS: Final = ("infiniband_verbs", "infiniband_mad", "infiniband_cm")
_COMMON: Final = "rdma_cm"
_STATE: Final = re.compile(r"[0-9]+: *(\w+)")
_RATE: Final = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?) *Gb/sec")


def interfaces(root: str, addresses: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The names of the functions' network interfaces, by address; none where they can't be read."""
    reader = SysfsReader(Tree(root))
    return {address: _interfaces(reader, address) for address in addresses}


def rdma(root: str, functions: Mapping[str, Function]) -> Rdma:
    """The RDMA devices among `functions`. A virtual function is a separate device only if its
    physical function is missing (in a virtual machine) or does not have RDMA."""
    reader = SysfsReader(Tree(root))
    with_rdma = {
        address: RdmaFunction(function, links, _interfaces(reader, address))
        for address, function in functions.items()
        if (links := _links(reader, address))
    }
    devices = []
    for address in sorted(with_rdma, key=address_key):
        if with_rdma[address].function.physical not in with_rdma:
            virtual = _virtual(reader, with_rdma[address], with_rdma, functions)
            devices.append(RdmaDevice(with_rdma[address], virtual))
    common = f"sys/class/misc/{_COMMON}"
    return Rdma(
        tuple(devices),
        (reader.char_device(common, _FILES + _COMMON),) if reader.tree.exists(common) else (),
        tuple(reader.problems),
    )


def _virtual(
    reader: SysfsReader,
    physical: RdmaFunction,
    with_rdma: Mapping[str, RdmaFunction],
    functions: Mapping[str, Function],
) -> tuple[RdmaFunction, ...]:
    return tuple(
        RdmaFunction(
            functions[address],
            with_rdma[address].links if address in with_rdma else (),
            _interfaces(reader, address),
            number,
        )
        for number, address in physical.function.virtual
        if address in functions and functions[address].physical == physical.address
    )


def _interfaces(reader: SysfsReader, address: str) -> tuple[str, ...]:
    return tuple(reader.names(f"{DEVICES}/{address}/net"))


def _links(reader: SysfsReader, address: str) -> tuple[RdmaLink, ...]:
    folder = f"{DEVICES}/{address}/infiniband"
    names = reader.names(folder)
    files = _char_devices(reader, f"{DEVICES}/{address}", names) if names else {}
    return tuple(
        RdmaLink(
            name=name,
            node_guid=reader.text(f"{folder}/{name}/node_guid") or "",
            system_guid=reader.text(f"{folder}/{name}/sys_image_guid") or "",
            firmware=reader.text(f"{folder}/{name}/fw_ver") or "",
            board=reader.text(f"{folder}/{name}/board_id") or "",
            ports=_ports(reader, f"{folder}/{name}/ports"),
            char_devices=tuple(sorted(files.get(name, ()), key=lambda file: file.path)),
        )
        for name in names
    )


def _char_devices(reader: SysfsReader, path: str, names: list[str]) -> dict[str, list[CharDevice]]:
    """The character devices of a function, by link. The file `ibdev` of each has the name of its
    link; if that can't be read, a device belongs to the only link."""
    by_link: dict[str, list[CharDevice]] = {}
    for folder in _FOLDERS:
        for name in reader.names(f"{path}/{folder}"):
            link = reader.text(f"{path}/{folder}/{name}/ibdev")
            if link is None and len(names) == 1:
                link = names[0]
            if link is not None:
                device = reader.char_device(f"{path}/{folder}/{name}", _FILES + name)
                by_link.setdefault(link, []).append(device)
    return by_link


def _ports(reader: SysfsReader, folder: str) -> tuple[RdmaPort, ...]:
    numbers = sorted(int(name) for name in reader.names(folder) if re.fullmatch("[0-9]{1,3}", name))
    return tuple(_port(reader, f"{folder}/{number}", number) for number in numbers)


def _port(reader: SysfsReader, path: str, number: int) -> RdmaPort:
    rate = reader.text(f"{path}/rate")
    gbps = _RATE.match(rate) if rate else None
    if rate and not gbps:
        reader.problems.append(f"{reader.tree.path(path)}/rate: {rate[:80]!r}: not a Gb/sec rate")
    return RdmaPort(
        number=number,
        state=_state(reader, f"{path}/state"),
        physical=_state(reader, f"{path}/phys_state"),
        link_layer=reader.text(f"{path}/link_layer") or "",
        rate_gbps=float(gbps[1]) if gbps else None,
    )


def _state(reader: SysfsReader, path: str) -> str:
    """The name in the kernel's text: `ACTIVE` in `4: ACTIVE`."""
    text = reader.text(path)
    match = _STATE.fullmatch(text) if text else None
    if text and not match:
        reader.problems.append(f"{reader.tree.path(path)}: {text[:80]!r}: not a state")
    return match[1] if match else ""
