"""Trees of /sys and /proc for machines that do not exist: a dict of path to text, then a folder.

A test changes the dict before it writes the tree, so an oddity is one line.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from agent.model.cpuset import CpuSet

CPU = "sys/devices/system/cpu"
NODE = "sys/devices/system/node"

Files = dict[str, str]


def machine(
    sockets: int = 1,
    nodes: int = 1,
    caches: int = 1,
    cores: int = 2,
    threads: int = 1,
    *,
    memory_kb: int = 8 << 20,
    masks: bool = False,
    hugepages: int = 0,
    numbers: Sequence[int] = (),
) -> Files:
    """A regular machine: `nodes` per socket, L3 `caches` per node, `cores` per L3.

    CPU numbers as Linux gives them on x86: first threads of all cores, then second threads; or,
    in that order, `numbers`.
    `masks` makes the files of a kernel near 2.6.20: no lists, no `online`, no cache or die ids.
    `hugepages` is the number of 2 MiB pages per node.
    """
    per_thread = sockets * nodes * caches * cores
    numbered = numbers or range(per_thread * threads)
    files: Files = {}

    def shared(path: str, name: str, mask_name: str, cpus: CpuSet) -> None:
        if not masks:
            files[f"{path}/{name}"] = str(cpus)
        files[f"{path}/{mask_name}"] = cpus.to_mask()

    def span(index: int, width: int) -> CpuSet:
        return CpuSet(
            numbered[thread * per_thread + core]
            for thread in range(threads)
            for core in range(index * width, (index + 1) * width)
        )

    for position, cpu in enumerate(numbered):
        core = position % per_thread
        topology = f"{CPU}/cpu{cpu}/topology"
        package = span(core // (nodes * caches * cores), nodes * caches * cores)
        files[f"{topology}/physical_package_id"] = str(core // (nodes * caches * cores))
        files[f"{topology}/core_id"] = str(core % (nodes * caches * cores))
        shared(topology, "thread_siblings_list", "thread_siblings", span(core, 1))
        shared(topology, "core_siblings_list", "core_siblings", package)
        if not masks:
            files[f"{topology}/die_id"] = "0"
            shared(topology, "die_cpus_list", "die_cpus", package)
            shared(topology, "core_cpus_list", "core_cpus", span(core, 1))
            shared(topology, "package_cpus_list", "package_cpus", package)
        levels = (("1", "Data"), ("1", "Instruction"), ("2", "Unified"), ("3", "Unified"))
        for index, (level, kind) in enumerate(levels):
            cache = f"{CPU}/cpu{cpu}/cache/index{index}"
            sharers = span(core // cores, cores) if level == "3" else span(core, 1)
            files[f"{cache}/level"] = level
            files[f"{cache}/type"] = kind
            files[f"{cache}/size"] = "32768K" if level == "3" else "512K"
            shared(cache, "shared_cpu_list", "shared_cpu_map", sharers)

    everyone = str(CpuSet(numbered))
    if not masks:
        files |= {f"{CPU}/{name}": everyone for name in ("online", "possible", "present")}
        files[f"{CPU}/offline"] = files[f"{CPU}/isolated"] = ""
        files[f"{CPU}/smt/control"] = "on" if threads > 1 else "notsupported"
        files[f"{NODE}/online"] = str(CpuSet(range(sockets * nodes)))
    for node in range(sockets * nodes):
        path = f"{NODE}/node{node}"
        shared(path, "cpulist", "cpumap", span(node, caches * cores))
        files[f"{path}/meminfo"] = meminfo(node, memory_kb)
        files[f"{path}/distance"] = " ".join(
            "10" if other == node else "12" if other // nodes == node // nodes else "21"
            for other in range(sockets * nodes)
        )
        if not masks:
            pages = f"{path}/hugepages/hugepages-2048kB"
            files[f"{pages}/nr_hugepages"] = files[f"{pages}/free_hugepages"] = str(hugepages)
    files["proc/meminfo"] = f"MemTotal: {memory_kb * sockets * nodes} kB"
    files["proc/cpuinfo"] = "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 106"
    return files


def meminfo(node: int, memory_kb: int) -> str:
    """The `meminfo` of a NUMA node."""
    return f"\nNode {node} MemTotal:  {memory_kb} kB\nNode {node} MemFree:  {memory_kb // 2} kB"


def without(files: Mapping[str, str], *parts: str) -> Files:
    """The files whose path holds none of `parts`."""
    return {path: text for path, text in files.items() if not any(part in path for part in parts)}


def offline(files: Mapping[str, str], cpus: CpuSet) -> Files:
    """The machine after `cpus` were taken offline: they keep their folder alone."""
    gone = without(files, *(f"/cpu{cpu}/{part}/" for cpu in cpus for part in ("topology", "cache")))
    for path, text in gone.items():
        if path.endswith(("_list", "/cpulist")):
            gone[path] = str(CpuSet.parse(text) - cpus)
        elif path.endswith(("_cpus", "_siblings", "_map", "/cpumap")):
            gone[path] = (CpuSet.parse_mask(text) - cpus).to_mask()
    if f"{CPU}/online" in gone:
        gone[f"{CPU}/online"] = str(CpuSet.parse(gone[f"{CPU}/online"]) - cpus)
        gone[f"{CPU}/offline"] = str(cpus)
    return gone | {f"{CPU}/cpu{cpu}/online": "0" for cpu in cpus}


def write(root: str, files: Mapping[str, str], links: Sequence[tuple[str, str]] = ()) -> str:
    """Writes the tree below `root`, a line end after every text; returns `root`."""
    folders = {os.path.dirname(path) for path in files} | {
        os.path.dirname(path) for path, _ in links
    }
    for folder in folders:
        os.makedirs(os.path.join(root, folder), exist_ok=True)
    for path, text in files.items():
        with open(os.path.join(root, path), "w") as file:
            file.write(text + "\n")
    for path, target in links:
        os.symlink(target, os.path.join(root, path))
    return root
