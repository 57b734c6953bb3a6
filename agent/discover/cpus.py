"""The machine from sysfs: CPUs with their cores and caches, NUMA nodes with their memory and huge
pages. A file that a group of CPUs shares is read once per group, for the group's lowest CPU."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from agent.discover import sockets
from agent.discover.sysfs import (
    CPU,
    NODE,
    DiscoveryError,
    cpu_list,
    cpu_map,
    numbered,
    optional,
    optional_integer,
    unclear,
)
from agent.host.files import Tree
from agent.model.cpu.cpuset import CpuSet, CpuSetError
from agent.model.cpu.topology import Cpu, HugePages, NumaNode, Topology

_ISOLCPUS = re.compile(rb"(?:^|\s)isolcpus=(?:[a-z_]+,)*([0-9][0-9,:/-]*)")


def read(root: str) -> Topology:
    """The machine whose /sys and /proc are below `root` (`/` is this one).

    Raises DiscoveryError where the files do not describe a machine.
    """
    tree = Tree(root)
    try:
        return _topology(tree)
    except OSError as error:
        raise DiscoveryError(f"{error.filename or root}: {error.strerror}") from error


def _topology(tree: Tree) -> Topology:
    folders = numbered(tree, CPU, "cpu")
    online = _online(tree, folders)
    if not online:
        raise DiscoveryError(f"{tree.path(CPU)}: no online CPU")
    cores = sockets.cores(tree, online)
    core_of = {cpu: core for core, threads in cores.items() for cpu in threads}
    socket_of: dict[int, int] = {}
    die_of: dict[int, int] = {}
    for socket, members in sockets.sockets(tree, cores).items():
        socket_of.update(dict.fromkeys(members, socket))
        die_of.update(sockets.dies(tree, members))
    l3_of = sockets.l3_groups(tree, online, cores)
    kind_of = sockets.core_kinds(tree, online, cores)
    nodes, node_of = _node_of(tree, _numa_nodes(tree, online), online)
    present = optional(cpu_list, tree, f"{CPU}/present") or folders
    return Topology(
        cpus=tuple(
            Cpu(
                cpu,
                core_of[cpu],
                l3_of.get(cpu),
                die_of.get(cpu),
                socket_of[cpu],
                node_of[cpu],
                kind_of.get(cpu),
            )
            for cpu in online
        ),
        numa_nodes=nodes,
        offline=present - online,
        isolated=_isolated(tree) & (present | online),
        smt=len(cores) < len(online),
        smt_control=tree.text(f"{CPU}/smt/control"),
    )


def _online(tree: Tree, folders: CpuSet) -> CpuSet:
    """The online CPUs. The kernel describes only those: if some CPUs have a `topology` folder, CPUs
    without one are offline, even if the list names them. Kernels before 2.6.26 have no list."""
    listed = cpu_list(tree, f"{CPU}/online")
    if listed is None:
        listed = CpuSet(cpu for cpu in folders if tree.text(f"{CPU}/cpu{cpu}/online") != "0")
    running = listed & folders
    described = CpuSet(cpu for cpu in running if tree.exists(f"{CPU}/cpu{cpu}/topology"))
    return described or running


def _node_of(
    tree: Tree, nodes: tuple[NumaNode, ...], online: CpuSet
) -> tuple[tuple[NumaNode, ...], dict[int, int]]:
    """The node of each CPU: by the nodes' lists, by the CPU's own link, or else the first node."""
    node_of = {cpu: node.id for node in nodes for cpu in node.cpus}
    strays = [cpu for cpu in online if cpu not in node_of]
    for cpu in strays:
        node = numbered(tree, f"{CPU}/cpu{cpu}", "node").first()
        node_of[cpu] = nodes[0].id if node is None else node
    if strays:
        nodes = tuple(
            NumaNode(
                node.id,
                CpuSet(cpu for cpu in online if node_of[cpu] == node.id),
                node.memory_bytes,
                node.distances,
                node.hugepages,
            )
            for node in nodes
        )
    return nodes, node_of


def _isolated(tree: Tree) -> CpuSet:
    """The CPUs of `isolcpus`; before Linux 4.2 only the kernel's command line has them."""
    if tree.exists(f"{CPU}/isolated"):
        return optional(cpu_list, tree, f"{CPU}/isolated") or CpuSet()
    match = _ISOLCPUS.search(tree.read("proc/cmdline") or b"")
    try:
        return CpuSet.parse(match[1].decode().rstrip(",")) if match else CpuSet()
    except CpuSetError:
        return CpuSet()


_WATCHED = ("sys/devices/system/cpu/online", "sys/devices/system/node/online")


class TopologyView:
    """The topology, read again after CPUs or NUMA nodes went online or offline. `root`: the folder
    with the host's /sys."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._topology: Topology | None = None
        self._online: tuple[bytes, ...] = ()

    def topology(self) -> Topology:
        """Raises DiscoveryError."""
        online = tuple(self._read(path) for path in _WATCHED)
        if self._topology is None or online != self._online:
            self._topology = read(self._root)
            self._online = online
        return self._topology

    def _read(self, path: str) -> bytes:
        try:
            with open(os.path.join(self._root, path), "rb") as file:
                return file.read()
        except OSError:
            return b""


_MEM_TOTAL = re.compile(rb"MemTotal:\s*([0-9]{1,20})\s*kB")


def _numa_nodes(tree: Tree, cpus: CpuSet) -> tuple[NumaNode, ...]:
    """The online nodes by id; a machine without node directories is node 0.

    `cpus` are the online CPUs; nodes get no others. If two nodes list a CPU (broken firmware), the
    lower one gets it.
    """
    folders = numbered(tree, NODE, "node")
    if not folders:
        return (_machine(tree, cpus),)
    # A node without a directory is offline; a directory that is not in the list is being removed.
    listed = optional(cpu_list, tree, f"{NODE}/online") or folders
    online = tuple(listed)
    ids = tuple(listed & folders or folders)
    machine_meminfo = tree.read("proc/meminfo") or b""
    found = []
    rest = cpus
    for node in ids:
        path = f"{NODE}/node{node}"
        members = cpu_map(tree, f"{path}/cpumap")
        if members is None:
            members = cpu_list(tree, f"{path}/cpulist") or CpuSet()
        members &= rest
        rest -= members
        meminfo = tree.read(f"{path}/meminfo") or b""
        found.append(
            NumaNode(
                id=node,
                cpus=members,
                memory_bytes=_memory_bytes(tree, f"{path}/meminfo", meminfo),
                distances=_distances(tree, f"{path}/distance", online, ids),
                hugepages=_pools(tree, f"{path}/hugepages", meminfo, machine_meminfo),
            )
        )
    return tuple(found)


def _machine(tree: Tree, cpus: CpuSet) -> NumaNode:
    meminfo = tree.read("proc/meminfo") or b""
    return NumaNode(
        id=0,
        cpus=cpus,
        memory_bytes=_memory_bytes(tree, "proc/meminfo", meminfo),
        hugepages=_pools(tree, _MACHINE_POOLS, meminfo, meminfo),
    )


def _memory_bytes(tree: Tree, path: str, meminfo: bytes) -> int:
    match = _MEM_TOTAL.search(meminfo)
    if match:
        return int(match[1]) << 10
    if meminfo.strip(b"\0 \n"):
        raise unclear(tree, path, meminfo.decode("utf-8", "replace"), "has no MemTotal in kB")
    return 0


def huge_pages(root: str, nodes: Iterable[int]) -> dict[int, tuple[HugePages, ...]]:
    """The pools of these NUMA nodes now; none where they can't be read."""
    tree = Tree(root)
    found = {}
    for node in nodes:
        try:
            found[node] = _pools_of_folder(tree, f"{NODE}/node{node}/hugepages")
        except (DiscoveryError, OSError):
            continue
    return found


def _pools(tree: Tree, folder: str, meminfo: bytes, machine: bytes) -> tuple[HugePages, ...]:
    found = _pools_of_folder(tree, folder)
    return found or _pool_of_meminfo(meminfo, machine)


def _distances(
    tree: Tree, path: str, online: tuple[int, ...], ids: tuple[int, ...]
) -> tuple[int, ...]:
    """The distances from a node; the kernel prints one number per online node, in order of ids."""
    words = (tree.text(path) or "").split()
    if not all(word.isdecimal() and len(word) < 10 for word in words):
        return ()
    if len(words) == len(ids):
        return tuple(map(int, words))
    if len(words) == len(online):
        row = dict(zip(online, words, strict=True))
        return tuple(int(row[node]) for node in ids)
    return ()


_MACHINE_POOLS = "sys/kernel/mm/hugepages"

_POOL = re.compile(r"hugepages-([0-9]{1,12})kB")
_TOTAL = re.compile(rb"HugePages_Total:\s*([0-9]{1,20})\b")
_FREE = re.compile(rb"HugePages_Free:\s*([0-9]{1,20})\b")
_SIZE = re.compile(rb"Hugepagesize:\s*([0-9]{1,20})\s*kB")


def _pools_of_folder(tree: Tree, folder: str) -> tuple[HugePages, ...]:
    """The pools of a `hugepages` directory, smallest pages first."""
    found = []
    for name in tree.names(folder):
        match = _POOL.fullmatch(name)
        total = optional_integer(tree, f"{folder}/{name}/nr_hugepages") if match else None
        if match is None or total is None:
            continue
        free = optional_integer(tree, f"{folder}/{name}/free_hugepages") if total else 0
        found.append(HugePages(int(match[1]) << 10, total, free or 0))
    return tuple(sorted(found, key=lambda pool: pool.size_bytes))


def _pool_of_meminfo(meminfo: bytes, machine: bytes) -> tuple[HugePages, ...]:
    """The only pool of kernels before 2.6.31: the counts are in the node's `meminfo`, the page size
    in the machine's."""
    total = _TOTAL.search(meminfo)
    free = _FREE.search(meminfo)
    size = _SIZE.search(machine)
    if total is None or free is None or size is None:
        return ()
    return (HugePages(int(size[1]) << 10, int(total[1]), int(free[1])),)
