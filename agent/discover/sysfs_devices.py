"""The devices that sysfs shows: PCI functions, their network interfaces, and the RDMA devices and
FPGAs among them.

RDMA devices are the functions that have a folder `infiniband` (Mellanox/rdmamap: rdma_map.go). The
class of the function does not identify them: HCAs are Ethernet, InfiniBand, serial bus or other
controllers. A device without a PCI function (`scif0`, soft RoCE) is not allocated.

FPGAs have `fpga_region` of the kernel's DFL, `fpga` of Intel's OPAE driver
(intel-device-plugins-for-kubernetes: pkg/fpga/dfl_linux.go and pkg/fpga/intel_fpga_linux.go), or a
driver of AMD's XRT.

- `region0` of DFL has `dfl-port.0/{afu_id,dev}`, `dfl-fme.0/dev` and, for each region inside,
  `dfl-fme.0/dfl-fme-region.1/fpga_region/region1/compat_id`. `intel-fpga-dev.0` of OPAE has
  `intel-fpga-port.0/{afu_id,dev}` and `intel-fpga-fme.0/{dev,pr/interface_id}`.
- A card of XRT has a user function (driver `xocl`: `ready`, `xclbinuuid`, `interface_uuids`,
  `drm/renderD128/dev`) and, unless it was passed to a virtual machine without it, a management
  function in the same slot (`xclmgmt`: `instance`, `xrt_mgmt/xclmgmt15872/dev`). XRT:
  src/runtime_src/core/pcie/driver/linux/xocl, userpf/xocl_sysfs.c and mgmtpf/mgmt-core.c."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from agent.discover import pci
from agent.discover.pci import DEVICES
from agent.discover.sysfs import DiscoveryError, SysfsReader
from agent.host.files import Tree
from agent.model.cpu.topology import Topology
from agent.model.devices.pci import (
    AcceleratorPort,
    CharDevice,
    Fpga,
    FpgaDriver,
    Fpgas,
    Function,
    Rdma,
    RdmaDevice,
    RdmaFunction,
    RdmaLink,
    RdmaPort,
    address_key,
    is_address,
)

_FILES: Final = "/dev/infiniband/"
_FOLDERS: Final = ("infiniband_verbs", "infiniband_mad", "infiniband_cm")
_COMMON: Final = "rdma_cm"
_STATE: Final = re.compile(r"[0-9]+: *(\w+)")
_VIRTIO: Final = re.compile(r"virtio[0-9]+")
_RATE: Final = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?) *Gb/sec")


def interfaces(root: str, addresses: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The names of the functions' network interfaces, by address; none where they can't be read."""
    reader = SysfsReader(Tree(root))
    return {address: _interfaces(reader, address) for address in addresses}


_NETWORK: Final = 0x02
"""The base class of PCI functions for networks."""
_WITHOUT_INTERFACE: Final = frozenset(
    {"", "vfio-pci", "uio_pci_generic", "igb_uio", "pci-stub", "pciback", "xen-pciback"}
)
"""Drivers with which programs or virtual machines use a function."""


def with_network_driver(functions: Mapping[str, Function]) -> tuple[str, ...]:
    """The addresses of the functions for networks that have interfaces by their drivers."""
    return tuple(
        each.address
        for each in functions.values()
        if (each.class_code or 0) >> 16 == _NETWORK and each.driver not in _WITHOUT_INTERFACE
    )


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
    path = f"{DEVICES}/{address}"
    names = reader.names(f"{path}/net")
    if not names:
        # The interface of a virtio device is below it.
        inner = filter(_VIRTIO.fullmatch, reader.names(path))
        names = [name for each in inner for name in reader.names(f"{path}/{each}/net")]
    return tuple(names)


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


_ID: Final = re.compile(r"[0-9a-f]{32}")
_NO_ID: Final = "0" * 32
_RENDER: Final = re.compile(r"renderD[0-9]{1,9}")


class _Layout(msgspec.Struct, frozen=True):
    """The folders and files of a driver; the names of parts end with a number."""

    driver: FpgaDriver
    folder: str
    device: re.Pattern[str]
    port: re.Pattern[str]
    management: re.Pattern[str]


_LAYOUTS: Final = (
    _Layout(
        FpgaDriver.DFL,
        "sys/class/fpga_region",
        re.compile(r"region[0-9]+"),
        re.compile(r"dfl-port\.[0-9]+"),
        re.compile(r"dfl-fme\.[0-9]+"),
    ),
    _Layout(
        FpgaDriver.OPAE,
        "sys/class/fpga",
        re.compile(r"intel-fpga-dev\.[0-9]+"),
        re.compile(r"intel-fpga-port\.[0-9]+"),
        re.compile(r"intel-fpga-fme\.[0-9]+"),
    ),
)


def fpgas(root: str, functions: Mapping[str, Function]) -> Fpgas:
    """The FPGAs among `functions`. One whose PCI function is missing is reported as a problem: it
    has neither an address nor a NUMA node."""
    reader = SysfsReader(Tree(root))
    by_address: dict[str, Fpga] = {}
    for layout in _LAYOUTS:
        for name in filter(layout.device.fullmatch, reader.names(layout.folder)):
            path = f"{layout.folder}/{name}"
            parts = reader.names(path)
            ports = [each for each in parts if layout.port.fullmatch(each)]
            managements = [each for each in parts if layout.management.fullmatch(each)]
            if not ports and not managements:
                continue  # A region inside a card, listed in addition to the card's own.
            address = _address(reader, path)
            if address not in functions:
                where = f"PCI function {address!r} is missing" if address else "no PCI function"
                reader.problems.append(f"{reader.tree.path(path)}: {where}")
                continue
            before = by_address.get(address)
            fpga = _fpga(reader, layout, functions[address], path, ports, managements)
            by_address[address] = _merged(before, fpga) if before else fpga
    by_slot = {_slot(each.address): each for each in functions.values() if each.driver == "xclmgmt"}
    for function in functions.values():
        if function.driver == "xocl":
            fpga = _xrt(reader, function, by_slot.get(_slot(function.address)))
            by_address[function.address] = fpga
    return Fpgas(
        tuple(by_address[address] for address in sorted(by_address, key=address_key)),
        tuple(reader.problems),
    )


def _address(reader: SysfsReader, path: str) -> str:
    """The innermost PCI function on the folder's path, else on that of the device to which it
    links; "" for none."""
    for target in (reader.link(path), reader.link(f"{path}/device")):
        address = next(filter(is_address, reversed(target.split("/"))), "")
        if address:
            return address
    return ""


def _fpga(
    reader: SysfsReader,
    layout: _Layout,
    function: Function,
    path: str,
    ports: list[str],
    managements: list[str],
) -> Fpga:
    management = f"{path}/{managements[0]}" if managements else ""
    return Fpga(
        function,
        layout.driver,
        tuple(
            AcceleratorPort(
                name,
                _id(reader, f"{path}/{name}/afu_id"),
                reader.char_device(f"{path}/{name}", f"/dev/{name}"),
            )
            for name in ports
        ),
        _interface_id(reader, management) if management else "",
        reader.char_device(management, f"/dev/{managements[0]}") if management else None,
    )


def _slot(address: str) -> str:
    return address.rpartition(".")[0]


def _xrt(reader: SysfsReader, function: Function, management: Function | None) -> Fpga:
    """The FPGA of a user function and its management function, None without one. It has no port
    while the driver does not report the card as ready, because XRT does not use it then."""
    path = f"{DEVICES}/{function.address}"
    ports = []
    if reader.hexadecimal(f"{path}/ready"):
        loaded = _only_id(reader, f"{path}/xclbinuuid")
        ports = [
            AcceleratorPort(
                name, loaded, reader.char_device(f"{path}/drm/{name}", f"/dev/dri/{name}")
            )
            for name in filter(_RENDER.fullmatch, reader.names(f"{path}/drm"))
        ]
    interface = _only_id(reader, f"{path}/interface_uuids")
    file = _xrt_management(reader, f"{DEVICES}/{management.address}") if management else None
    return Fpga(function, FpgaDriver.XRT, tuple(ports), interface, file)


def _xrt_management(reader: SysfsReader, path: str) -> CharDevice | None:
    instance = reader.integer(f"{path}/instance")
    if instance is None:
        return None
    name = f"xclmgmt{instance}"
    return reader.char_device(f"{path}/xrt_mgmt/{name}", f"/dev/{name}")


def _interface_id(reader: SysfsReader, management: str) -> str:
    if reader.tree.exists(f"{management}/pr/interface_id"):
        return _id(reader, f"{management}/pr/interface_id")
    for part in reader.names(management):
        if part.startswith("dfl-fme-region."):
            for region in reader.names(f"{management}/{part}/fpga_region"):
                compat_id = _id(reader, f"{management}/{part}/fpga_region/{region}/compat_id")
                if compat_id:
                    return compat_id
    return ""


def _id(reader: SysfsReader, path: str) -> str:
    return _checked_id(reader, path, reader.text(path) or "")


def _only_id(reader: SysfsReader, path: str) -> str:
    """The id in a file that has one for each slot or partition: "" if it has several or only zeros,
    or can't be read, as on a card without a device tree."""
    try:
        ids = (reader.tree.text(path) or "").split()
    except OSError:
        return ""
    return _checked_id(reader, path, ids[0]).replace(_NO_ID, "") if len(ids) == 1 else ""


def _checked_id(reader: SysfsReader, path: str, text: str) -> str:
    digits = text.lower().removeprefix("0x").replace("-", "")
    if text and not _ID.fullmatch(digits):
        reader.problems.append(f"{reader.tree.path(path)}: {text[:80]!r}: not an id of 32 digits")
        return ""
    return digits


def _merged(one: Fpga, other: Fpga) -> Fpga:
    return msgspec.structs.replace(
        one,
        ports=tuple(sorted({*one.ports, *other.ports}, key=lambda port: port.name)),
        interface_id=one.interface_id or other.interface_id,
        management=one.management or other.management,
    )


RESCAN_SECONDS: Final = 60.0
"""No event reports that the port of a network card goes up or down."""


class SysfsDevices:
    """The devices in sysfs.

    `root`: the folder with the host's /sys."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._scanned: tuple[Topology, float] | None = None
        self.known = False
        """Whether PCI could be listed."""
        self.functions: Mapping[str, Function] = {}
        """PCI functions by address."""
        self.rdma = Rdma()
        self.fpgas = Fpgas()
        self.problems: tuple[str, ...] = ()
        """What could not be read."""

    def rescan(self) -> None:
        """Makes the next `update` read sysfs: a device was plugged in or removed."""
        self._scanned = None

    def update(self, topology: Topology) -> None:
        """Reads sysfs when it is due. When PCI can't be listed, the last list stays in force."""
        now = time.monotonic()
        if self._scanned is not None:
            of, at = self._scanned
            if of == topology and now - at < RESCAN_SECONDS:
                return
        try:
            functions = pci.read(self._root, topology)
        except DiscoveryError as error:
            self.problems = (str(error),)
            return
        self._scanned, self.known = (topology, now), True
        self.functions = functions.by_address
        self.rdma = rdma(self._root, self.functions)
        self.fpgas = fpgas(self._root, self.functions)
        self.problems = functions.problems + self.rdma.problems + self.fpgas.problems
