"""PCI functions: `sys/bus/pci/devices` (kernel: Documentation/ABI/testing/sysfs-bus-pci).

An entry there is a link into the tree of buses, and its text is the function's path:
`../../../devices/pci0000:17/0000:17:00.0/0000:18:00.0`. Bridges are read from the path, because
they may be missing from the listing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import msgspec

from agent.allocate.locality import Distances
from agent.discover.sysfs import DiscoveryError, SysfsReader
from agent.host.files import Tree
from agent.model.cpu.cpuset import CpuSet
from agent.model.cpu.topology import Topology
from agent.model.devices.pci import Function, address_key, is_address

DEVICES: Final = "sys/bus/pci/devices"
_ROOT_BUS: Final = re.compile(r"pci([0-9a-f]{4,8}:[0-9a-f]{2})")
_VIRTUAL: Final = re.compile(r"virtfn([0-9]{1,5})")


class Functions(msgspec.Struct, frozen=True):
    """All PCI functions."""

    by_address: dict[str, Function] = {}
    """Ordered as numbers."""
    problems: tuple[str, ...] = ()
    """Invalid or unreadable files."""


def read(root: str, topology: Topology) -> Functions:
    """The functions of the machine whose /sys is below `root`, placed on `topology`. Raises
    DiscoveryError when they can't be listed; a machine without PCI has none."""
    tree = Tree(root)
    try:
        entries = tree.names(DEVICES)
    except OSError as error:
        raise DiscoveryError(f"{tree.path(DEVICES)}: {error.strerror}") from error
    reader = SysfsReader(tree)
    places = PciLocality(reader, topology)
    by_address = {
        address: function
        for address in sorted(filter(is_address, entries), key=address_key)
        if (function := _function(reader, places, address)) is not None
    }
    return Functions(by_address, tuple(reader.problems))


class PciLocality:
    """NUMA node and socket of a function, by the first source that has them:

    1. `numa_node`; it is -1 if the firmware does not report it;
    2. the function's local CPUs, if they are in one node and are not the whole machine;
    3. the same of each bridge above it, then the CPUs of the root bus;
    4. the only node, if the machine has only one with CPUs.

    A node without CPUs is memory (HBM, CXL, a GPU's own): its nearest node with CPUs is used.
    """

    def __init__(self, reader: SysfsReader, topology: Topology) -> None:
        self._reader = reader
        self._cpus = {node.id: node.cpus for node in topology.numa_nodes}
        self._socket_of = {cpu.id: cpu.socket for cpu in topology.cpus}
        self._online = topology.online
        distances = Distances(topology)
        self._nearest = {
            node.id: min(distances.nearest(node.id), default=-1) for node in topology.numa_nodes
        }
        with_cpus = [node for node, cpus in self._cpus.items() if cpus]
        self._only = with_cpus[0] if len(with_cpus) == 1 else -1
        self._of_bridge: dict[str, tuple[int, CpuSet]] = {}

    def of(self, path: str, folders: tuple[str, ...]) -> tuple[int, int]:
        """NUMA node and socket of a function, each -1 if unknown.

        `path`: the function's folder.
        `folders`: the folders from its root bus to its parent, outermost first."""
        node, local = self._read(path)
        for bridge in reversed(folders):
            if node >= 0:
                break
            if bridge not in self._of_bridge:
                self._of_bridge[bridge] = self._read(bridge)
            node, around = self._of_bridge[bridge]
            local = local or around
        node = self._only if node < 0 else node
        return node, self._socket(self._cpus.get(node, CpuSet()), local)

    def _read(self, path: str) -> tuple[int, CpuSet]:
        """The NUMA node of a folder, -1 if unknown, and its local CPUs, none if they are the whole
        machine."""
        bus = _ROOT_BUS.fullmatch(path.rpartition("/")[2])
        if bus:
            folder = f"{path}/pci_bus/{bus[1]}"
            local = self._reader.cpus(f"{folder}/cpulistaffinity", f"{folder}/cpuaffinity")
        else:
            local = self._reader.cpus(f"{path}/local_cpulist", f"{path}/local_cpus")
        local = (local or CpuSet()) & self._online
        if local == self._online:
            local = CpuSet()
        node = self._reader.integer(f"{path}/numa_node")
        if node is not None and node in self._cpus:
            return self._nearest[node], local
        around = [node for node, cpus in self._cpus.items() if local and local <= cpus]
        return (around[0] if around else -1), local

    def _socket(self, of_node: CpuSet, local: CpuSet) -> int:
        """The socket of the CPUs, -1 if they are in several."""
        for cpus in (of_node, local):
            sockets = {self._socket_of[cpu] for cpu in cpus}
            if len(sockets) == 1:
                return sockets.pop()
        return -1


def root_and_bridges(parts: Iterable[str]) -> tuple[str, tuple[str, ...]]:
    """The innermost root bus of the folders above a function, and the bridges below it. A bus may
    be below a function of another domain (VMD: `pci0000:64/0000:64:00.5/pci10000:00/...`)."""
    root = ""
    bridges: list[str] = []
    for part in parts:
        if _ROOT_BUS.fullmatch(part):
            root, bridges = part, []
        elif is_address(part):
            bridges.append(part)
    return root, tuple(bridges)


def _function(reader: SysfsReader, places: PciLocality, address: str) -> Function | None:
    path = f"{DEVICES}/{address}"
    if not reader.tree.exists(path):
        return None  # It was removed after the listing.
    *above, last = reader.link(path).split("/") or [""]
    if last != address:
        above = []
    root, bridges = root_and_bridges(above)
    virtual = []
    for name in reader.names(path):
        match = _VIRTUAL.fullmatch(name)
        if match and is_address(target := reader.link(f"{path}/{name}").rpartition("/")[2]):
            virtual.append((int(match[1]), target))
    physical = reader.link(f"{path}/physfn").rpartition("/")[2]
    node, socket = places.of(path, _folders_above(above))
    return Function(
        address=address,
        root=root,
        bridges=bridges,
        vendor=reader.hexadecimal(f"{path}/vendor"),
        device=reader.hexadecimal(f"{path}/device"),
        class_code=reader.hexadecimal(f"{path}/class"),
        driver=reader.link(f"{path}/driver").rpartition("/")[2],
        node=node,
        socket=socket,
        physical=physical if is_address(physical) and physical != address else "",
        virtual=tuple(sorted(virtual)),
        virtual_limit=reader.integer(f"{path}/sriov_totalvfs") or 0,
    )


def _folders_above(above: list[str]) -> tuple[str, ...]:
    """The folders of buses and bridges above, as paths below the root."""
    start = next((at for at, part in enumerate(above) if _ROOT_BUS.fullmatch(part)), len(above))
    return tuple(
        "sys/devices/" + "/".join(above[start : end + 1]) for end in range(start, len(above))
    )
