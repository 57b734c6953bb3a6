"""Which of the kernel's uevents mean that devices are to be looked at again."""

from __future__ import annotations

from typing import Final

SUBSYSTEMS: Final = frozenset({"pci", "infiniband", "fpga_region", "fpga", "dfl"})
"""For agent.host.uevents. Of `pci` come functions that are plugged in and out, virtual functions
that are made, drivers that take and leave them, and errors of the bus; of `infiniband` links that
are renamed or go into another network namespace. Nobody tells of a port whose link goes up or
down: that is for the look at the end of every period."""
