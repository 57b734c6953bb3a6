"""RDMA devices of a machine."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from agent.model.pci import CharDevice, Function

ACTIVE = "ACTIVE"


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
