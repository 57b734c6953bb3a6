"""The PCI functions of a machine, and the RDMA devices and FPGAs that they are."""

from __future__ import annotations

import enum
import re
from collections.abc import Collection
from typing import Final

import msgspec

_ADDRESS: Final = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])")


ACTIVE = "ACTIVE"


class CharDevice(msgspec.Struct, frozen=True):
    """A file below /dev; `number`: major and minor, None when the kernel does not report them."""

    path: str
    number: tuple[int, int] | None = None


class Function(msgspec.Struct, frozen=True):
    """One PCI function, by its address `domain:bus:device.function` as the kernel writes it.
    `root`: its root bus (`pci0000:17`); `bridges`: those between them, outermost first. Both are
    empty when the kernel shows no tree. `class_code` has 24 bits. `node`, `socket`: the kernel's
    ids, -1 when unknown. `physical`: the physical function of a virtual one. `virtual`: number and
    address of its virtual functions, by number."""

    address: str
    root: str = ""
    bridges: tuple[str, ...] = ()
    vendor: int | None = None
    device: int | None = None
    class_code: int | None = None
    driver: str = ""
    node: int = -1
    socket: int = -1
    physical: str = ""
    virtual: tuple[tuple[int, str], ...] = ()
    virtual_limit: int = 0

    @property
    def switches(self) -> tuple[str, ...]:
        """The upstream ports on the way, outermost first: below a root port, bridges alternate
        between a switch's upstream and downstream port (kernel:
        Documentation/PCI/pciebus-howto.rst)."""
        return self.bridges[1::2]

    @property
    def pcie(self) -> str:
        """What it shares with its neighbours: the outermost switch, else the root port, else the
        bus; a function of unknown place has no neighbours but itself."""
        return next(iter(self.switches or self.bridges), self.root or self.address)


def is_address(text: str) -> bool:
    return _ADDRESS.fullmatch(text) is not None


def address_key(text: str) -> tuple[int, ...]:
    """Sorts addresses as numbers; invalid ones come last, all equal."""
    match = _ADDRESS.fullmatch(text)
    return tuple(int(part, 16) for part in match.groups()) if match else (1 << 33,)


class FpgaDriver(enum.StrEnum):
    """The driver that describes it: the kernel's Device Feature List, or Intel's older driver."""

    DFL = "dfl"
    OPAE = "opae"


class AcceleratorPort(msgspec.Struct, frozen=True):
    """Where a program reaches the accelerator function; `function_id`: which one is loaded, as 32
    hexadecimal digits, "" where that can't be read."""

    name: str
    function_id: str = ""
    char_device: CharDevice | None = None


class Fpga(msgspec.Struct, frozen=True):
    """One PCI function with its ports. `interface_id`: bitstreams must be made for it;
    `management`: the file that loads one; a virtual function has neither."""

    function: Function
    driver: FpgaDriver
    ports: tuple[AcceleratorPort, ...] = ()
    interface_id: str = ""
    management: CharDevice | None = None

    @property
    def address(self) -> str:
        return self.function.address


class Fpgas(msgspec.Struct, frozen=True):
    """By address."""

    devices: tuple[Fpga, ...] = ()
    problems: tuple[str, ...] = ()


class RdmaPort(msgspec.Struct, frozen=True):
    """`state` and `physical` in the kernel's terms (`ACTIVE`, `LinkUp`), "" when unknown;
    `rate_gbps`: the current rate."""

    number: int
    state: str = ""
    physical: str = ""
    link_layer: str = ""
    rate_gbps: float | None = None


class RdmaLink(msgspec.Struct, frozen=True):
    """A device of verbs. Its name does not last: udev renames it."""

    name: str
    node_guid: str = ""
    system_guid: str = ""
    firmware: str = ""
    board: str = ""
    ports: tuple[RdmaPort, ...] = ()
    char_devices: tuple[CharDevice, ...] = ()


class RdmaFunction(msgspec.Struct, frozen=True):
    """A PCI function with RDMA. `number`: of a virtual function, counted by the physical one. A
    virtual function that was given away whole (exclusive network namespace, or a driver for
    virtual machines) has no links here. `interfaces`: those of the network, by name."""

    function: Function
    links: tuple[RdmaLink, ...] = ()
    interfaces: tuple[str, ...] = ()
    number: int | None = None

    @property
    def address(self) -> str:
        return self.function.address

    @property
    def char_devices(self) -> tuple[CharDevice, ...]:
        return tuple(each for link in self.links for each in link.char_devices)

    @property
    def active(self) -> bool:
        """Whether each link has an active port; others may have no cable."""
        return all(any(port.state == ACTIVE for port in link.ports) for link in self.links)

    @property
    def down(self) -> tuple[str, ...]:
        """Ports without an active link, as `name/port`; a link without any port is down itself."""
        return tuple(
            f"{link.name}/{port.number}" if port else link.name
            for link in self.links
            for port in link.ports or (None,)
            if port is None or port.state != ACTIVE
        )


class RdmaDevice(msgspec.Struct, frozen=True):
    """What is shared out: a physical function with its virtual ones, by their numbers."""

    physical: RdmaFunction
    virtual: tuple[RdmaFunction, ...] = ()

    def char_devices(self, addresses: Collection[str] = ()) -> tuple[CharDevice, ...]:
        """Of the virtual functions at these addresses, without any of the physical one."""
        if not addresses:
            return self.physical.char_devices
        chosen = (each for each in self.virtual if each.address in addresses)
        return tuple(file for each in chosen for file in each.char_devices)


class Rdma(msgspec.Struct, frozen=True):
    """By address. `common`: the files that every user of RDMA needs besides its device's own."""

    devices: tuple[RdmaDevice, ...] = ()
    common: tuple[CharDevice, ...] = ()
    problems: tuple[str, ...] = ()
