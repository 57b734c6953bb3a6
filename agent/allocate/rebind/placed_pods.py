"""The input of a plan: the pods that are bound to CPUs or NUMA nodes of one node, and what the plan
has to improve.

A place is an int: the mask of the CPUs of a pod that owns CPUs, or the mask of the ids of the NUMA
nodes of a pod that shares CPUs."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from agent.allocate.layout import Layout
from agent.model.cpu.policies import ExclusivePolicy


class PlacedPod(msgspec.Struct, frozen=True):
    """`place`: see the module. `cpu_milli`: for a pod that shares CPUs, the amount that it has on
    each of its NUMA nodes, by id; None: it owns CPUs. `spread`: its policy is SpreadByPCPUs.
    `memory`: the amounts of a pod whose memory follows its place, by NUMA node and resource.
    `near`: the ids of the NUMA nodes that it may not leave, None: any. `fixed`: why it is never
    moved, "" if it may be."""

    uid: str
    title: str
    place: int
    cpu_milli: Mapping[int, int] | None = None
    spread: bool = False
    exclusive: ExclusivePolicy = ExclusivePolicy.NONE
    memory: Mapping[int, Mapping[str, int]] = {}
    near: frozenset[int] | None = None
    fixed: str = ""

    @property
    def owner(self) -> bool:
        return self.cpu_milli is None

    @property
    def memory_total(self) -> dict[str, int]:
        """The memory of the whole pod, by resource."""
        total: dict[str, int] = {}
        for amounts in self.memory.values():
            for name, amount in amounts.items():
                total[name] = total.get(name, 0) + amount
        return total


class PlacedNode(msgspec.Struct, frozen=True):
    """`assignable`: mask of the CPUs that a pod may own. `rooms`: by NUMA node and resource, the
    most that all bound pods together may have; an absent resource has no limit. `cpu_cost_milli`:
    the milli-CPU of a room that an owned CPU uses, more than 1000 on an amplified node.
    `most_owned`: by NUMA node whose pool must not shrink, the most CPUs that pods may own."""

    layout: Layout
    assignable: int
    pods: tuple[PlacedPod, ...]
    rooms: Mapping[int, Mapping[str, int]] = {}
    cpu_cost_milli: int = 1000
    most_owned: Mapping[int, int] = {}


class Measures(msgspec.Struct, frozen=True, order=True):
    """How well pods are placed; smaller is better, the first field counts first.

    `numa_crossings`: the NUMA nodes of pods in excess of the fewest that could hold each pod.
    `broken_cores`: the cores of pods in excess of the fewest; under SpreadByPCPUs, the CPUs on a
    core with another CPU of the same pod. `used_cores`: the cores that no new pod can have as a
    whole. `used_numa_nodes`: the NUMA nodes with a bound pod."""

    numa_crossings: int
    broken_cores: int
    used_cores: int
    used_numa_nodes: int

    def no_worse_than(self, other: Measures) -> bool:
        """Whether no measure is worse."""
        pairs = zip(msgspec.structs.astuple(self), msgspec.structs.astuple(other), strict=True)
        return all(ours <= theirs for ours, theirs in pairs)
