"""PCI functions of a machine."""

from __future__ import annotations

import re
from typing import Final

import msgspec

_ADDRESS: Final = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])")


class CharDevice(msgspec.Struct, frozen=True):
    """A file below /dev; `number`: major and minor, None where the kernel does not tell them."""

    path: str
    number: tuple[int, int] | None = None


class Function(msgspec.Struct, frozen=True):
    """One PCI function, by its address `domain:bus:device.function` as the kernel writes it.

    `root`: the bus that it hangs from (`pci0000:17`); `bridges`: those on the way from there to
    it, outermost first. Both are empty where the kernel shows no tree. `class_code` has 24 bits.
    `node`, `socket`: the kernel's ids, -1 where they can't be told. `physical`: the function that
    this one is a virtual function of. `virtual`: number and address of its own, by number.
    """

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
        between a switch's upstream and downstream port (devices.md §5.2)."""
        return self.bridges[1::2]

    @property
    def pcie(self) -> str:
        """What it shares with its neighbours: the outermost switch, else the root port, else the
        bus; a function of unknown place has no neighbours but itself."""
        return next(iter(self.switches or self.bridges), self.root or self.address)


def is_address(text: str) -> bool:
    return _ADDRESS.fullmatch(text) is not None


def address_key(text: str) -> tuple[int, ...]:
    """Sorts addresses as numbers; what is no address comes last, all alike."""
    match = _ADDRESS.fullmatch(text)
    return tuple(int(part, 16) for part in match.groups()) if match else (1 << 33,)
