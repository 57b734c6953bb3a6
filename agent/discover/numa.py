"""NUMA nodes, `sys/devices/system/node`, and their hugepage pools: a directory for each page size,
of a NUMA node or of the machine."""

from __future__ import annotations

import re

from agent.discover.facts import (
    NODE,
    cpu_list,
    cpu_map,
    numbered,
    optional,
    optional_integer,
    unclear,
)
from agent.host.files import Tree
from agent.model.cpuset import CpuSet
from agent.model.topology import HugePages, NumaNode

_MEM_TOTAL = re.compile(rb"MemTotal:\s*([0-9]+)\s*kB")


def nodes(tree: Tree, cpus: CpuSet) -> tuple[NumaNode, ...]:
    """The online nodes by id; a machine without node directories is node 0.

    `cpus` are the online CPUs, and the only ones that nodes get. Of two nodes that claim a CPU
    (broken firmware) the lower keeps it.
    """
    folders = numbered(tree, NODE, "node")
    if not folders:
        return (_machine(tree, cpus),)
    # Nodes without a directory are offline by now; a directory not in the list is on its way out.
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
        hugepages=_pools(tree, MACHINE, meminfo, meminfo),
    )


def _memory_bytes(tree: Tree, path: str, meminfo: bytes) -> int:
    match = _MEM_TOTAL.search(meminfo)
    if match:
        return int(match[1]) << 10
    if meminfo.strip(b"\0 \n"):
        raise unclear(tree, path, meminfo.decode("utf-8", "replace"), "has no MemTotal in kB")
    return 0


def _pools(tree: Tree, folder: str, meminfo: bytes, machine: bytes) -> tuple[HugePages, ...]:
    found = pools(tree, folder)
    return found or pool_of_meminfo(meminfo, machine)


def _distances(
    tree: Tree, path: str, online: tuple[int, ...], ids: tuple[int, ...]
) -> tuple[int, ...]:
    """The row of a node; the kernel prints one number per online node, in order of ids."""
    words = (tree.text(path) or "").split()
    if not all(word.isdecimal() and len(word) < 10 for word in words):
        return ()
    if len(words) == len(ids):
        return tuple(map(int, words))
    if len(words) == len(online):
        row = dict(zip(online, words, strict=True))
        return tuple(int(row[node]) for node in ids)
    return ()


MACHINE = "sys/kernel/mm/hugepages"

_POOL = re.compile(r"hugepages-([0-9]{1,12})kB")
_TOTAL = re.compile(rb"HugePages_Total:\s*([0-9]+)")
_FREE = re.compile(rb"HugePages_Free:\s*([0-9]+)")
_SIZE = re.compile(rb"Hugepagesize:\s*([0-9]+)\s*kB")


def pools(tree: Tree, folder: str) -> tuple[HugePages, ...]:
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


def pool_of_meminfo(meminfo: bytes, machine: bytes) -> tuple[HugePages, ...]:
    """The one pool of kernels before 2.6.31: counts of `meminfo`, page size of the machine's."""
    total = _TOTAL.search(meminfo)
    free = _FREE.search(meminfo)
    size = _SIZE.search(machine)
    if total is None or free is None or size is None:
        return ()
    return (HugePages(int(size[1]) << 10, int(total[1]), int(free[1])),)
