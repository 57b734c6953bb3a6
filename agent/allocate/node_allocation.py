"""What is allocated on a node: the sum of its pods' allocations, independent of their order
(Koordinator: NodeAllocation in pkg/scheduler/plugins/nodenumaresource/node_allocation.go)."""

from __future__ import annotations

import copy
from collections import Counter

from agent.allocate.layout import NOTHING_HELD, CpuRefCounts
from agent.allocate.numa.koordinator_merge import NodeStatus
from agent.allocate.pod_allocation import PodAllocation
from agent.allocate.topology_options import Amounts, TopologyOptions


class NodeAllocation:
    """Two accounts of the same claims are equal. Not safe for threads: its ledger is."""

    def __init__(self, facts: TopologyOptions) -> None:
        self._facts = facts
        self._areas = facts.layout.nodes if facts.layout else ()
        self.node_ids = frozenset(area.id for area in self._areas) | facts.zones.keys()
        self.holdings: CpuRefCounts = NOTHING_HELD
        self.cpu_milli = 0
        self._used: Counter[tuple[int, str]] = Counter()
        self._unrecorded: Counter[int] = Counter()
        self._owned: Counter[int] = Counter()
        self._records: Counter[int] = Counter()
        self._inside: Counter[int] = Counter()
        self._spanning: Counter[int] = Counter()
        self._totals = facts.totals()
        self._remembered: tuple[Amounts, Amounts] | None = None

    def copy(self) -> NodeAllocation:
        """An independent copy."""
        other = copy.copy(self)
        for name in ("_used", "_unrecorded", "_owned", "_records", "_inside", "_spanning"):
            setattr(other, name, getattr(self, name).copy())
        return other

    def add(self, claim: PodAllocation) -> None:
        """Counts one pod in."""
        self.holdings = self.holdings.adding(claim.cpus.mask, claim.exclusive)
        self._count(claim, 1)

    def remove(self, claim: PodAllocation) -> None:
        """Counts out a pod that was counted in."""
        self.holdings = self.holdings.removing(claim.cpus.mask, claim.exclusive)
        self._count(claim, -1)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NodeAllocation) and self._state() == other._state()

    __hash__ = None  # type: ignore[assignment]

    def free_cpus(self) -> int:
        """Mask of the CPUs that a pod may still own."""
        layout = self._facts.layout
        if layout is None:
            return 0
        return layout.cpus & ~self._facts.kept.mask & ~self.holdings.full(self._facts.max_ref)

    def overcommitted(self) -> int:
        """Mask of the CPUs that more pods hold than may share one."""
        return self.holdings.full(self._facts.max_ref + 1)

    def totals(self) -> Amounts:
        """What the NUMA nodes have to give."""
        return self._totals

    def recorded(self) -> Amounts:
        """What is left by the amounts that pods were given of NUMA nodes, never below 0: what
        Koordinator scores NUMA nodes by. The caller's own."""
        return _copied(self._left()[0])

    def available(self) -> Amounts:
        """What is left, without the CPUs that pods own, even where a pod owns more than its
        amounts. The caller may change the result."""
        return _copied(self._left()[1])

    def _left(self) -> tuple[Amounts, Amounts]:
        """By records and really; many pods are offered places between two that get one."""
        if self._remembered is None:
            recorded = {
                node: {
                    name: max(0, total - self.recorded_used(node, name))
                    for name, total in amounts.items()
                }
                for node, amounts in self._totals.items()
            }
            left = _copied(recorded)
            for node, cpu_milli in self._owned.items():
                if cpu_milli and "cpu" in left.get(node, ()):
                    left[node]["cpu"] = max(0, self._totals[node]["cpu"] - self.used(node, "cpu"))
            self._remembered = recorded, left
        return self._remembered

    def used(self, node: int, name: str) -> int:
        """What pods hold of a NUMA node: a CPU that a pod owns counts, even where its amounts are
        smaller."""
        amount = self._used[node, name]
        if name != "cpu":
            return amount
        return amount + self._unrecorded[node] + self._more(node)

    def recorded_used(self, node: int, name: str) -> int:
        """The same by the amounts that pods were given. Where there are any, what amplification
        adds to the CPUs that pods own counts too (Koordinator:
        pkg/scheduler/plugins/nodenumaresource/node_allocation.go,
        getAvailableNUMANodeResources)."""
        amount = self._used[node, name]
        return amount + self._more(node) if name == "cpu" and self._records[node] else amount

    def busy_nodes(self) -> set[int]:
        """The NUMA nodes where a pod holds something."""
        return {node for node, _ in self._used} | self._inside.keys() | self._spanning.keys()

    def numa_status(self) -> dict[int, NodeStatus]:
        """Of every NUMA node."""
        return {
            node: NodeStatus.SHARED
            if self._spanning[node]
            else NodeStatus.SINGLE
            if self._inside[node]
            else NodeStatus.IDLE
            for node in sorted(self.node_ids)
        }

    def paid(self, claim: PodAllocation) -> int:
        """Milli-CPU that a pod costs the whole node, CPUs of its own amplified."""
        bound = 1000 * len(claim.cpus)
        return max(claim.cpu_milli, bound) - bound + self._facts.amplified(bound)

    def _count(self, claim: PodAllocation, sign: int) -> None:
        self._remembered = None
        self.cpu_milli += sign * self.paid(claim)
        own = {
            area.id: count
            for area in self._areas
            if (count := (area.cpus & claim.cpus.mask).bit_count())
        }
        for node, amounts in claim.amounts.items():
            self._add(self._records, node, sign)
            for name, amount in amounts.items():
                self._add(self._used, (node, name), sign * amount)
        for node, count in own.items():
            bound = 1000 * count
            self._add(self._owned, node, sign * bound)
            missing = max(0, bound - claim.amounts.get(node, {}).get("cpu", 0))
            self._add(self._unrecorded, node, sign * missing)
        for node in own:
            self._add(self._spanning if len(own) > 1 else self._inside, node, sign)

    def _more(self, node: int) -> int:
        """What amplification adds to the CPUs that pods own there."""
        owned = self._owned[node]
        return self._facts.amplified(owned) - owned

    def _add(self, counter: Counter, key: object, amount: int) -> None:  # type: ignore[type-arg]
        counter[key] += amount
        if not counter[key]:
            del counter[key]

    def _state(self) -> tuple[object, ...]:
        return (
            self.holdings,
            self.cpu_milli,
            self._used,
            self._unrecorded,
            self._owned,
            self._records,
            self._inside,
            self._spanning,
        )


def _copied(amounts: Amounts) -> Amounts:
    return {node: dict(of_node) for node, of_node in amounts.items()}
