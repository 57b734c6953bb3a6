"""Which CPUs share an L3: `cpuN/cache/indexM`.

An index is only a number: what the cache is, `level` and `type` say.
"""

from __future__ import annotations

from agent.discover.facts import CPU, cpu_list, cpu_map, optional, optional_integer
from agent.host.files import Tree
from agent.model.cpuset import CpuSet


def l3_groups(tree: Tree, cpus: CpuSet, cores: dict[int, CpuSet]) -> dict[int, int]:
    """The lowest CPU that shares the L3, for each CPU that has one."""
    first: dict[int, int] = {}
    unclaimed = rest = cpus.mask
    index = "index3"
    while rest:
        low = rest & -rest
        cpu = low.bit_length() - 1
        threads = cores[cpu].mask if cpu in cores else low
        found = _l3(tree, cpu, index)
        if found is None:
            rest &= ~(threads | low)
            continue
        index, sharers = found
        # Some ia64 kernels give empty maps: then the cache is the core's.
        members = CpuSet.from_int((sharers.mask if sharers else threads) & unclaimed | low)
        unclaimed &= ~members.mask
        rest &= unclaimed
        first.update(dict.fromkeys(members, members.first() or 0))
    return first


def _l3(tree: Tree, cpu: int, likely: str) -> tuple[str, CpuSet] | None:
    """Index name and sharers of the CPU's L3; `likely` is tried first."""
    folder = f"{CPU}/cpu{cpu}/cache"
    if (sharers := _sharers(tree, f"{folder}/{likely}")) is not None:
        return likely, sharers
    for name in sorted(tree.names(folder)):
        if name.startswith("index") and name != likely:
            sharers = _sharers(tree, f"{folder}/{name}")
            if sharers is not None:
                return name, sharers
    return None


def _sharers(tree: Tree, cache: str) -> CpuSet | None:
    if optional_integer(tree, f"{cache}/level") != 3:
        return None
    if tree.text(f"{cache}/type") == "Instruction":
        return None
    found = optional(cpu_map, tree, f"{cache}/shared_cpu_map")
    return found if found is not None else optional(cpu_list, tree, f"{cache}/shared_cpu_list")
