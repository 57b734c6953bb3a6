"""The devices that sysfs shows: PCI functions, and the RDMA devices and FPGAs among them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from agent.discover import fpga, network, pci
from agent.discover.sysfs import DiscoveryError
from agent.model.cpu.topology import Topology
from agent.model.devices.pci import Fpgas, Function, Rdma

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
        self.rdma = network.rdma(self._root, self.functions)
        self.fpgas = fpga.read(self._root, self.functions)
        self.problems = functions.problems + self.rdma.problems + self.fpgas.problems
