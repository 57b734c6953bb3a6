"""NUMA nodes from sysfs, with their CPUs, memory, huge pages and distances."""

from __future__ import annotations

import re
from collections.abc import Iterable

from agent.discover.sysfs import (
    CPU,
    NODE,
    DiscoveryError,
    cpu_list,
    cpu_map,
    invalid_text,
    numbered,
    optional,
    optional_integer,
)
from agent.host.files import Tree
from agent.model.cpu.cpuset import CpuSet
from agent.model.cpu.topology import HugePages, NumaNode

_MEM_TOTAL = re.compile(rb"MemTotal:\s*([0-9]{1,20})\s*kB")


def read(tree: Tree, online: CpuSet) -> tuple[tuple[NumaNode, ...], dict[int, int]]:
    """The online nodes, and the node of each of the `online` CPUs: by the nodes' lists, by the
    CPU's own link, or else the first node. Raises DiscoveryError, OSError."""
    nodes = _numa_nodes(tree, online)
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
    nodes = []
    rest = cpus
    for node in ids:
        path = f"{NODE}/node{node}"
        members = cpu_map(tree, f"{path}/cpumap")
        if members is None:
            members = cpu_list(tree, f"{path}/cpulist") or CpuSet()
        members &= rest
        rest -= members
        meminfo = tree.read(f"{path}/meminfo") or b""
        nodes.append(
            NumaNode(
                id=node,
                cpus=members,
                memory_bytes=_memory_bytes(tree, f"{path}/meminfo", meminfo),
                distances=_distances(tree, f"{path}/distance", online, ids),
                hugepages=_pools(tree, f"{path}/hugepages", meminfo, machine_meminfo),
            )
        )
    return tuple(nodes)


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
        raise invalid_text(tree, path, meminfo.decode("utf-8", "replace"), "has no MemTotal in kB")
    return 0


def huge_pages(root: str, nodes: Iterable[int]) -> dict[int, tuple[HugePages, ...]]:
    """The pools of these NUMA nodes now; none where they can't be read."""
    tree = Tree(root)
    pools = {}
    for node in nodes:
        try:
            pools[node] = _pools_of_folder(tree, f"{NODE}/node{node}/hugepages")
        except (DiscoveryError, OSError):
            continue
    return pools


def _pools(tree: Tree, folder: str, meminfo: bytes, machine: bytes) -> tuple[HugePages, ...]:
    of_folder = _pools_of_folder(tree, folder)
    return of_folder or _pool_of_meminfo(meminfo, machine)


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
    pools = []
    for name in tree.names(folder):
        match = _POOL.fullmatch(name)
        total = optional_integer(tree, f"{folder}/{name}/nr_hugepages") if match else None
        if match is None or total is None:
            continue
        free = optional_integer(tree, f"{folder}/{name}/free_hugepages") if total else 0
        pools.append(HugePages(int(match[1]) << 10, total, free or 0))
    return tuple(sorted(pools, key=lambda pool: pool.size_bytes))


def _pool_of_meminfo(meminfo: bytes, machine: bytes) -> tuple[HugePages, ...]:
    """The only pool of kernels before 2.6.31: the counts are in the node's `meminfo`, the page size
    in the machine's."""
    total = _TOTAL.search(meminfo)
    free = _FREE.search(meminfo)
    size = _SIZE.search(machine)
    if total is None or free is None or size is None:
        return ()
    return (HugePages(int(size[1]) << 10, int(total[1]), int(free[1])),)
