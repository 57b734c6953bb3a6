"""The machine's topology, discovered again when CPUs or NUMA nodes come and go."""

from __future__ import annotations

import os

from agent.discover import cpus
from agent.model.topology import Topology

_WATCHED = ("sys/devices/system/cpu/online", "sys/devices/system/node/online")


class Machine:
    """`root` is where the host's /sys is."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._topology: Topology | None = None
        self._online: tuple[bytes, ...] = ()

    def topology(self) -> Topology:
        """Raises DiscoveryError."""
        online = tuple(self._read(path) for path in _WATCHED)
        if self._topology is None or online != self._online:
            self._topology = cpus.read(self._root)
            self._online = online
        return self._topology

    def _read(self, path: str) -> bytes:
        try:
            with open(os.path.join(self._root, path), "rb") as file:
                return file.read()
        except OSError:
            return b""
