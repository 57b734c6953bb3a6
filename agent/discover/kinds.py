"""Core kinds of a hybrid machine.

Intel's kernels register one PMU per kind, each with the CPUs it counts; ARM's give each CPU a
capacity relative to the strongest (1024).
"""

from __future__ import annotations

from agent.discover.facts import CPU, cpu_list, optional, optional_integer
from agent.host.files import Tree
from agent.model.cpuset import CpuSet

_PMU_KINDS = ("core", "atom", "lowpower")


def core_kinds(tree: Tree, cpus: CpuSet, cores: dict[int, CpuSet]) -> dict[int, str]:
    """The kind of each CPU (`core`, `atom`, `capacity-446`); empty where all are alike."""
    kinds: dict[int, str] = {}
    for kind in _PMU_KINDS:
        members = optional(cpu_list, tree, f"sys/devices/cpu_{kind}/cpus")
        if members is not None:
            kinds.update(dict.fromkeys(members & cpus, kind))
    if not kinds and _capacity(tree, min(cores)) is not None:
        for first, threads in cores.items():
            capacity = _capacity(tree, first)
            if capacity is not None:
                kinds.update(dict.fromkeys(threads, f"capacity-{capacity}"))
    return kinds if len(set(kinds.values())) > 1 else {}


def _capacity(tree: Tree, cpu: int) -> int | None:
    return optional_integer(tree, f"{CPU}/cpu{cpu}/cpu_capacity")
