"""The input of a plan: the pods that are bound to CPUs or NUMA nodes of one node, and what the plan
has to improve.

A place is an int: the mask of the CPUs of a pod that owns CPUs, or the mask of the ids of the NUMA
nodes of a pod that shares CPUs."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from agent.model.cpu.layout import Layout
from agent.model.cpu.policies import ExclusivePolicy


class PlacedPod(msgspec.Struct, frozen=True):
    """A bound pod and its place."""

    uid: str
    title: str
    place: int
    """See the module."""
    cpu_milli: Mapping[int, int] | None = None
    """The amount that a pod that shares CPUs has on each of its NUMA nodes, by id; None for a pod
    that owns CPUs."""
    spread: bool = False
    """Its policy is SpreadByPCPUs."""
    exclusive: ExclusivePolicy = ExclusivePolicy.NONE
    memory: Mapping[int, Mapping[str, int]] = {}
    """The amounts of a pod whose memory follows its place, by NUMA node and resource."""
    near: frozenset[int] | None = None
    """The ids of the NUMA nodes that it may not leave, None for any."""
    fixed: str = ""
    """Why it is never moved, empty if it may be."""

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
    """A node with its bound pods."""

    layout: Layout
    assignable: int
    """A mask of the CPUs that a pod may own."""
    pods: tuple[PlacedPod, ...]
    rooms: Mapping[int, Mapping[str, int]] = {}
    """By NUMA node and resource, the most that all bound pods together may have; an absent resource
    has no limit."""
    cpu_cost_milli: int = 1000
    """The milli-CPU of a room that an owned CPU uses, more than 1000 on an amplified node."""
    most_owned: Mapping[int, int] = {}
    """By NUMA node whose pool must not shrink, the most CPUs that pods may own."""


class Measures(msgspec.Struct, frozen=True, order=True):
    """How well pods are placed; smaller is better, the first field counts first."""

    numa_crossings: int
    """The NUMA nodes of pods in excess of the fewest that could hold each pod."""
    broken_cores: int
    """The cores of pods in excess of the fewest; under SpreadByPCPUs, the CPUs on a core with
    another CPU of the same pod."""
    used_cores: int
    """The cores that no new pod can have as a whole."""
    used_numa_nodes: int
    """The NUMA nodes with a bound pod."""

    def no_worse_than(self, other: Measures) -> bool:
        """Whether no measure is worse."""
        pairs = zip(msgspec.structs.astuple(self), msgspec.structs.astuple(other), strict=True)
        return all(value <= of_other for value, of_other in pairs)
