"""Which CPUs interrupts may use when owners want none on theirs."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from agent.model.cpu.cpuset import EMPTY, CpuSet, union
from agent.model.cpu.topology import Topology


class InterruptRules(msgspec.Struct, frozen=True):
    """Where interrupts may be at one moment."""

    online: CpuSet = EMPTY
    quiet: CpuSet = EMPTY
    """The CPUs that interrupts leave."""
    left: CpuSet = EMPTY
    """Where they go; empty if owners who want no interrupts have all CPUs."""
    housekeeping: tuple[tuple[CpuSet, CpuSet], ...] = ()
    """The CPUs of a pod, and those of them that keep interrupts."""

    @property
    def confined(self) -> bool:
        """Whether interrupts stay where they are, because no other CPU is left for them."""
        return not self.left and not self.housekeeping


def interrupt_rules(
    topology: Topology, owners: Iterable[tuple[CpuSet, bool]], left: CpuSet
) -> InterruptRules:
    """The rules for these owners.

    `owners`: have the CPUs of each owner that asks, and whether its first core keeps interrupts.
    `left`: has the CPUs of nobody who asks."""
    owners = tuple(owners)
    silent = union(cpus for cpus, housekeeping in owners if not housekeeping)
    pairs = (
        (cpus, housekeeping_cpus(topology, cpus) - silent)
        for cpus, housekeeping in owners
        if housekeeping
    )
    kept = tuple((cpus, first) for cpus, first in pairs if first)
    quiet = union(cpus for cpus, _ in owners) - union(first for _, first in kept)
    return InterruptRules(topology.online, quiet, left, kept)


def housekeeping_cpus(topology: Topology, cpus: CpuSet) -> CpuSet:
    """The first online CPU of these, and those of them on the same core (cri-o:
    docs/crio.8.md, `irq-load-balancing.crio.io`)."""
    first = (cpus & topology.online).first()
    if first is None:
        return EMPTY
    core = next(cpu.core for cpu in topology.cpus if cpu.id == first)
    return CpuSet(cpu.id for cpu in topology.cpus if cpu.core == core) & cpus


def wanted_affinity(original: CpuSet, rules: InterruptRules, near: CpuSet = EMPTY) -> CpuSet:
    """The CPUs of an interrupt: what it has of others than those it leaves, else the CPUs that the
    pods on whose CPUs it is have for interrupts, else those that are left. The original, if there
    is none of these.

    `near`: has the CPUs of the device's NUMA node, which come first."""
    others = original - rules.quiet
    if others == original or others & rules.online:
        return others
    kept = union(first for cpus, first in rules.housekeeping if cpus & original)
    return kept or rules.left & near or rules.left or original
