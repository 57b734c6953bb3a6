"""NUMA nodes: `sys/devices/system/node`."""

from __future__ import annotations

import re

from agent.discover import hugepages
from agent.discover.facts import NODE, cpu_list, cpu_map, numbered, optional, unclear
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
        hugepages=_pools(tree, hugepages.MACHINE, meminfo, meminfo),
    )


def _memory_bytes(tree: Tree, path: str, meminfo: bytes) -> int:
    match = _MEM_TOTAL.search(meminfo)
    if match:
        return int(match[1]) << 10
    if meminfo.strip(b"\0 \n"):
        raise unclear(tree, path, meminfo.decode("utf-8", "replace"), "has no MemTotal in kB")
    return 0


def _pools(tree: Tree, folder: str, meminfo: bytes, machine: bytes) -> tuple[HugePages, ...]:
    found = hugepages.pools(tree, folder)
    return found or hugepages.pool_of_meminfo(meminfo, machine)


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
