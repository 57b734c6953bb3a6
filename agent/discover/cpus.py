"""The machine from sysfs: CPUs, and what they share.

A file that a group of CPUs shares is read once per group, through the group's lowest CPU.
"""

from __future__ import annotations

import os
import re

from agent.discover import numa, sockets
from agent.discover.facts import CPU, DiscoveryError, cpu_list, numbered, optional
from agent.host.files import Tree
from agent.model.cpuset import CpuSet, CpuSetError
from agent.model.topology import Cpu, NumaNode, Topology

_ISOLCPUS = re.compile(rb"(?:^|\s)isolcpus=(?:[a-z_]+,)*([0-9][0-9,:/-]*)")


def read(root: str) -> Topology:
    """The machine whose /sys and /proc lie below `root` (`/` is this one).

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
        raise DiscoveryError(f"{tree.path(CPU)}: no online CPU here")
    cores = sockets.cores(tree, online)
    core_of = {cpu: core for core, threads in cores.items() for cpu in threads}
    socket_of: dict[int, int] = {}
    die_of: dict[int, int] = {}
    for socket, members in sockets.sockets(tree, cores).items():
        socket_of.update(dict.fromkeys(members, socket))
        die_of.update(sockets.dies(tree, members))
    l3_of = sockets.l3_groups(tree, online, cores)
    kind_of = sockets.core_kinds(tree, online, cores)
    nodes, node_of = _node_of(tree, numa.nodes(tree, online), online)
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
    """The CPUs that run. The kernel describes only those, so when some CPUs have a `topology`
    folder and others have none, the others do not run, also where the list names them. Kernels
    before 2.6.26 have no list."""
    listed = cpu_list(tree, f"{CPU}/online")
    if listed is None:
        listed = CpuSet(cpu for cpu in folders if tree.text(f"{CPU}/cpu{cpu}/online") != "0")
    running = listed & folders
    described = CpuSet(cpu for cpu in running if tree.exists(f"{CPU}/cpu{cpu}/topology"))
    return described or running


def _node_of(
    tree: Tree, nodes: tuple[NumaNode, ...], online: CpuSet
) -> tuple[tuple[NumaNode, ...], dict[int, int]]:
    """Each CPU's node; those in no node's list go by their own link, else to the first node."""
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
    """CPUs kept away from the scheduler; before 4.2 only the command line has them."""
    if tree.exists(f"{CPU}/isolated"):
        return optional(cpu_list, tree, f"{CPU}/isolated") or CpuSet()
    match = _ISOLCPUS.search(tree.read("proc/cmdline") or b"")
    try:
        return CpuSet.parse(match[1].decode().rstrip(",")) if match else CpuSet()
    except CpuSetError:
        return CpuSet()


_WATCHED = ("sys/devices/system/cpu/online", "sys/devices/system/node/online")


class TopologyView:
    """`root` is where the host's /sys is."""

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
