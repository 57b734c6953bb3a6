"""The PCI functions of a machine, and the RDMA devices and FPGAs among them."""

from __future__ import annotations

import enum
import re
from collections.abc import Collection
from typing import Final

import msgspec

_ADDRESS: Final = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])")


ACTIVE = "ACTIVE"


class CharDevice(msgspec.Struct, frozen=True):
    """A character device below /dev."""

    path: str
    number: tuple[int, int] | None = None
    """Major and minor, None if the kernel does not report them."""


class Function(msgspec.Struct, frozen=True):
    """One PCI function. Numbers are None if unknown."""

    address: str
    """`domain:bus:device.function` as the kernel writes it."""
    root: str = ""
    """Its root bus (`pci0000:17`), "" if the kernel shows no tree."""
    bridges: tuple[str, ...] = ()
    """The bridges between root bus and function, outermost first."""
    vendor: int | None = None
    device: int | None = None
    class_code: int | None = None
    """PCI's class code of 24 bits."""
    driver: str = ""
    node: int = -1
    """The kernel's id, -1 if unknown."""
    socket: int = -1
    """The kernel's id, -1 if unknown."""
    physical: str = ""
    """The address of a virtual function's physical function."""
    virtual: tuple[tuple[int, str], ...] = ()
    """Number and address of its virtual functions, by number."""
    virtual_limit: int = 0

    @property
    def switches(self) -> tuple[str, ...]:
        """The upstream ports of the switches above the function, outermost first. Below a root
        port, bridges alternate between the upstream and the downstream port of a switch (kernel:
        Documentation/PCI/pciebus-howto.rst)."""
        return self.bridges[1::2]

    @property
    def pcie(self) -> str:
        """The outermost switch above the function, else the root port, else the root bus, else the
        function itself. Functions with the same value are near each other."""
        return next(iter(self.switches or self.bridges), self.root or self.address)


def is_address(text: str) -> bool:
    return _ADDRESS.fullmatch(text) is not None


def address_key(text: str) -> tuple[int, ...]:
    """A sort key: addresses in numerical order, invalid ones last."""
    match = _ADDRESS.fullmatch(text)
    return tuple(int(part, 16) for part in match.groups()) if match else (1 << 33,)


class FpgaDriver(enum.StrEnum):
    """The driver of an FPGA: the kernel's Device Feature List, Intel's older driver, or AMD's
    (Xilinx's) runtime."""

    DFL = "dfl"
    OPAE = "opae"
    XRT = "xrt"


class AcceleratorPort(msgspec.Struct, frozen=True):
    """The port by which a program reaches the accelerator function."""

    name: str
    function_id: str = ""
    """The loaded function as 32 hexadecimal digits, "" if it can't be read."""
    char_device: CharDevice | None = None


class Fpga(msgspec.Struct, frozen=True):
    """An FPGA's PCI function with its ports. A virtual function has no interface and no
    management."""

    function: Function
    driver: FpgaDriver
    ports: tuple[AcceleratorPort, ...] = ()
    interface_id: str = ""
    """The interface for which bitstreams must be built."""
    management: CharDevice | None = None
    """The file that loads a bitstream, or XRT's shell."""

    @property
    def address(self) -> str:
        return self.function.address


class Fpgas(msgspec.Struct, frozen=True):
    """The FPGAs of the machine, by address."""

    devices: tuple[Fpga, ...] = ()
    problems: tuple[str, ...] = ()


class RdmaPort(msgspec.Struct, frozen=True):
    """A port of an RDMA link. States are the kernel's values (`ACTIVE`, `LinkUp`), "" if
    unknown."""

    number: int
    state: str = ""
    physical: str = ""
    link_layer: str = ""
    rate_gbps: float | None = None
    """The current rate, None if unknown."""


class RdmaLink(msgspec.Struct, frozen=True):
    """A verbs device. Its name can change: udev renames it."""

    name: str
    node_guid: str = ""
    system_guid: str = ""
    firmware: str = ""
    board: str = ""
    ports: tuple[RdmaPort, ...] = ()
    char_devices: tuple[CharDevice, ...] = ()


class RdmaFunction(msgspec.Struct, frozen=True):
    """A PCI function with RDMA."""

    function: Function
    links: tuple[RdmaLink, ...] = ()
    """Empty for a virtual function in another network namespace (exclusive mode), or with a driver
    for virtual machines."""
    interfaces: tuple[str, ...] = ()
    """The names of its network interfaces."""
    number: int | None = None
    """The number that the physical function gave to a virtual one, None for others."""

    @property
    def address(self) -> str:
        return self.function.address

    @property
    def char_devices(self) -> tuple[CharDevice, ...]:
        return tuple(each for link in self.links for each in link.char_devices)

    @property
    def active(self) -> bool:
        """Whether each link has an active port; its other ports may have no cable."""
        return all(any(port.state == ACTIVE for port in link.ports) for link in self.links)

    @property
    def down(self) -> tuple[str, ...]:
        """The ports that are not active, as `name/port`; the name of the link if it has no
        ports."""
        return tuple(
            f"{link.name}/{port.number}" if port else link.name
            for link in self.links
            for port in link.ports or (None,)
            if port is None or port.state != ACTIVE
        )


class RdmaDevice(msgspec.Struct, frozen=True):
    """A physical function with its virtual functions, in order of their numbers."""

    physical: RdmaFunction
    virtual: tuple[RdmaFunction, ...] = ()

    def char_devices(self, addresses: Collection[str] = ()) -> tuple[CharDevice, ...]:
        """The files of the virtual functions at these addresses; without addresses, those of the
        physical function."""
        if not addresses:
            return self.physical.char_devices
        chosen = (each for each in self.virtual if each.address in addresses)
        return tuple(file for each in chosen for file in each.char_devices)


class Rdma(msgspec.Struct, frozen=True):
    """The RDMA devices of the machine, by address."""

    devices: tuple[RdmaDevice, ...] = ()
    common: tuple[CharDevice, ...] = ()
    """The files that every user of RDMA needs in addition to those of its device."""
    problems: tuple[str, ...] = ()
