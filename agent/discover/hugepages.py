"""Hugepage pools: a directory per page size, per NUMA node or for the machine."""

from __future__ import annotations

import re

from agent.discover.facts import optional_integer
from agent.host.files import Tree
from agent.model.topology import HugePages

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
