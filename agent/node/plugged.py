"""What sysfs shows of devices, read when something was plugged, and now and then."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from agent.discover import fpga, pci, rdma
from agent.discover.facts import DiscoveryError
from agent.model.fpga import Fpgas
from agent.model.pci import Function
from agent.model.rdma import Rdma
from agent.model.topology import Topology

RESCAN_SECONDS: Final = 60.0
"""Nobody tells when the port of a network card goes up or down."""


class Plugged:
    """`functions` of PCI by address, `known` once they could be listed; `problems`: what of it all
    could not be made out."""

    def __init__(self, root: str) -> None:
        """`root` is where the host's /sys is."""
        self._root = root
        self._scanned: tuple[Topology, float] | None = None
        self.known = False
        self.functions: Mapping[str, Function] = {}
        self.rdma = Rdma()
        self.fpgas = Fpgas()
        self.problems: tuple[str, ...] = ()

    def look_again(self) -> None:
        """Something was plugged in or out."""
        self._scanned = None

    def look(self, topology: Topology) -> None:
        """Reads where that is due; what can't even be listed leaves what was known."""
        now = time.monotonic()
        if self._scanned is not None:
            of, at = self._scanned
            if of == topology and now - at < RESCAN_SECONDS:
                return
        try:
            found = pci.read(self._root, topology)
        except DiscoveryError as error:
            self.problems = (str(error),)
            return
        self._scanned, self.known = (topology, now), True
        self.functions = found.by_address
        self.rdma = rdma.read(self._root, self.functions)
        self.fpgas = fpga.read(self._root, self.functions)
        self.problems = found.problems + self.rdma.problems + self.fpgas.problems
