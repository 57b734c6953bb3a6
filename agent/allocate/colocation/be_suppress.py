"""How much CPU BE pods get: what all others leave below a share of the node (Koordinator:
pkg/koordlet/qosmanager/plugins/cpusuppress).

The amount becomes the cpuset of BE pods, a part of their pool, or a quota of all of them together.
They lose CPU at once and get it back in steps of a tenth of the node, so that a service whose load
rises again does not meet them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import Final

import msgspec

from agent.model.cpu.cpuset import EMPTY, CpuSet
from agent.model.cpu.policies import BeOnOwned
from agent.model.cpu.topology import Cpu
from agent.model.linux_resources import NO_QUOTA, PERIOD_MICROSECONDS, CpuQuota
from agent.model.node_slo import ResourceThreshold

LEAST_CPUS: Final = 2
LEAST_QUOTA_MICROSECONDS: Final = 2_000
"""BE pods keep this much, so that they never stop; `cpu_suppress_min_percent` raises it."""
_STEPS: Final = 10
"""The steps in which BE pods get the whole node back."""
_UNCHANGED: Final = 100
"""A quota stays while it is less than this part of the node from the wanted one."""
_QUOTA_OF_MILLI: Final = PERIOD_MICROSECONDS // 1000
_LEAST_MILLI: Final = 1000 * LEAST_CPUS


class NodeUse(msgspec.Struct, frozen=True):
    """The CPU of a node and its newest use. A pod without a measurement uses nothing."""

    capacity_milli: int
    reserved_milli: int
    """For the machine itself: what is not allocatable, or what an annotation reserves."""
    node_cores: float
    pods_cores: float
    other_pods_cores: float
    """What the pods that are not BE use."""
    applications_cores: float
    """What programs of the host that are not in pods use."""
    other_applications_cores: float
    """What those of them use that are not in the cgroup of BE pods."""


class BeAmount(msgspec.Struct, frozen=True):
    """The CPU of BE pods by its terms, in milli-CPU."""

    usable: int
    """The share of the node that may be in use."""
    other_pods: int
    applications: int
    machine: int
    """What the machine itself uses, or what is reserved for it if that is more."""
    least: int | None
    """None: the floors of cpuset and quota alone."""

    @property
    def left(self) -> int:
        """What all others leave; it may be negative."""
        return self.usable - self.other_pods - self.applications - self.machine

    @property
    def milli(self) -> int:
        """It may be negative: cpuset and quota have floors."""
        return self.left if self.least is None else max(self.left, self.least)


class BePool(msgspec.Struct, frozen=True):
    """The CPUs that BE pods may have."""

    machine: tuple[Cpu, ...]
    """All online CPUs."""
    cpus: CpuSet
    """The BE pool. It has no CPU that is reserved, a static kubelet's, or an LSE pod's."""
    owned: CpuSet = EMPTY
    """LSR pods own these."""
    on_owned: BeOnOwned = BeOnOwned.IN_PROPORTION

    def usable(self) -> CpuSet:
        return self.cpus - self.owned if self.on_owned is BeOnOwned.NEVER else self.cpus


class Suppression(msgspec.Struct, frozen=True):
    """What BE pods get. Without any value they have their pool, and no quota in common."""

    cpus: CpuSet | None = None
    """It is empty only if BE pods may have no CPU at all: then they stay where they are."""
    quota: CpuQuota | None = None
    """All BE pods together have it."""
    amount: BeAmount | None = None
    """The last one that was measured; None before the first."""

    @property
    def at_minimum(self) -> bool:
        """Whether others leave to BE pods no more than they keep in any case."""
        if self.amount is None:
            return False
        floor = LEAST_QUOTA_MICROSECONDS // _QUOTA_OF_MILLI if self.cpus is None else _LEAST_MILLI
        return self.amount.left <= max(floor, self.amount.least or 0)


def suppression(
    strategy: ResourceThreshold, use: NodeUse | None, pool: BePool, before: Suppression
) -> Suppression:
    """What BE pods get in this round, a second after the one before. Their cpuset is always within
    the present pool.

    `use`: None if it was not measured. Then BE pods keep as many CPUs as they have, or their
    quota."""
    if not strategy.enable:
        return Suppression()
    if use is None:
        if before.cpus is None:
            return before
        count = max(LEAST_CPUS, len(before.cpus))
        return msgspec.structs.replace(before, cpus=chosen(pool, count))
    measured = amount(strategy, use)
    if strategy.cpu_suppress_policy == "cpuset":
        had = len(pool.usable() if before.cpus is None else before.cpus)
        count = cpu_count(measured.milli, had, len(pool.machine))
        return Suppression(cpus=chosen(pool, count), amount=measured)
    limit = quota(measured.milli, use.capacity_milli, before.quota)
    return Suppression(quota=limit, amount=measured)


def amount(strategy: ResourceThreshold, use: NodeUse) -> BeAmount:
    system = max(0.0, use.node_cores - use.pods_cores - use.applications_cores)
    least = strategy.cpu_suppress_min_percent
    return BeAmount(
        use.capacity_milli * strategy.cpu_suppress_threshold_percent // 100,
        _milli(use.other_pods_cores),
        _milli(use.other_applications_cores),
        max(_milli(system), use.reserved_milli),
        None if least is None else use.capacity_milli * least // 100,
    )


def _milli(cores: float) -> int:
    return int(cores * 1000)


def cpu_count(milli: int, had: int, of_machine: int) -> int:
    """The number of CPUs for an amount.

    `had`: so many CPUs BE pods had before.
    `of_machine`: so many CPUs the machine has."""
    step = -(-of_machine // _STEPS)
    return max(LEAST_CPUS, min(-(-milli // 1000), had + step))


def chosen(pool: BePool, count: int) -> CpuSet:
    """The CPUs of BE pods, at most `count`: all that they may use if there are fewer."""
    usable = pool.usable()
    owned = usable & pool.owned
    count = min(count, len(usable))
    if not count:
        return EMPTY
    if pool.on_owned is BeOnOwned.LAST:
        of_owned = max(0, count - len(usable - owned))
    else:
        of_owned = count * len(owned) // len(usable)
    parts = ((owned, of_owned), (usable - owned, count - of_owned))
    return CpuSet(
        cpu
        for part, need in parts
        for cpu in picked((each for each in pool.machine if each.id in part), need)
    )


def picked(cpus: Iterable[Cpu], need: int) -> list[int]:
    """The CPUs of BE pods in the order in which they are chosen, all if there are fewer than
    `need`. NUMA nodes give in turn, the one with the most CPUs first: first pairs of threads of a
    core, so that BE pods disturb few cores, then single CPUs."""
    by_node: dict[tuple[int, int], list[Cpu]] = {}
    for cpu in sorted(cpus, key=lambda each: (each.core, each.id)):
        by_node.setdefault((cpu.socket, cpu.node), []).append(cpu)
    ordered = sorted(by_node.values(), key=lambda each: (-len(each), each[0].id))
    nodes = [_NodeCpus(each) for each in ordered]
    need = min(need, sum(map(len, ordered)))
    order: list[int] = []
    turn = 0
    while need - len(order) > 1 and (turn or any(node.pairs for node in nodes)):
        order += nodes[turn].pair()
        turn = (turn + 1) % len(nodes)
    while len(order) < need:
        order += nodes[turn].single()
        turn = (turn + 1) % len(nodes)
    return order


class _NodeCpus:
    """The CPUs of a NUMA node that are not chosen yet, by core."""

    def __init__(self, cpus: list[Cpu]) -> None:
        self._free = dict.fromkeys(cpu.id for cpu in cpus)
        self.pairs: deque[tuple[int, int]] = deque()
        first: Cpu | None = None
        for cpu in cpus:
            if first is not None and first.core == cpu.core:
                self.pairs.append((first.id, cpu.id))
                first = None
            else:
                first = cpu

    def pair(self) -> tuple[int, ...]:
        """Two threads of a core, nothing if there are none left."""
        return self._taken(self.pairs.popleft() if self.pairs else ())

    def single(self) -> tuple[int, ...]:
        return self._taken(tuple(islice(self._free, 1)))

    def _taken(self, cpus: tuple[int, ...]) -> tuple[int, ...]:
        for cpu in cpus:
            del self._free[cpu]
        return cpus


def quota(milli: int, capacity_milli: int, before: CpuQuota | None) -> CpuQuota:
    """The quota of all BE pods together. A small change is none, so that not every round writes.

    `before`: None if they had none."""
    wanted = max(milli * _QUOTA_OF_MILLI, LEAST_QUOTA_MICROSECONDS)
    if before is None or before == NO_QUOTA:
        return CpuQuota(wanted)
    had, of_node = before.microseconds, capacity_milli * _QUOTA_OF_MILLI
    if wanted > LEAST_QUOTA_MICROSECONDS and abs(wanted - had) < of_node // _UNCHANGED:
        return before
    return CpuQuota(min(wanted, had + of_node // _STEPS))


def within(own: CpuQuota, of_all: CpuQuota) -> CpuQuota:
    """The quota of one BE pod or container where all together have one: cgroup v1 refuses a larger
    one below it. None at all is allowed there."""
    if own == NO_QUOTA:
        return own
    part = own.microseconds * of_all.period_microseconds
    return own if part <= of_all.microseconds * own.period_microseconds else of_all
