"""A direct translation of Koordinator's CPU accumulator, with lists of CPUs and without tables.

It is slow, and supports machines whose cores, NUMA nodes and sockets have equally many CPUs.
It stops between cores where the Go code takes one core too many.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from agent.model.cpu.policies import BindPolicy, ExclusivePolicy, Strategy
from agent.model.cpu.topology import Cpu

Lists = list[list[int]]


class Rule:
    """`refs`: how many pods hold a CPU; `policies`: the exclusive policy of its holder."""

    def __init__(
        self,
        cpus: Iterable[Cpu],
        available: Iterable[int],
        refs: Mapping[int, int],
        policies: Mapping[int, ExclusivePolicy],
        max_ref: int,
    ) -> None:
        self.cpu = {cpu.id: cpu for cpu in cpus}
        total = len(self.cpu)
        self.per_core = total // len({cpu.core for cpu in self.cpu.values()})
        self.per_node = total // len({cpu.node for cpu in self.cpu.values()})
        self.per_socket = total // len({cpu.socket for cpu in self.cpu.values()})
        self.available = sorted(available)
        self.refs = refs
        self.max_ref = max_ref
        self.exclusive_cores = {
            self.cpu[c].core for c, p in policies.items() if p == ExclusivePolicy.PCPU_LEVEL
        }
        self.exclusive_nodes = {
            self.cpu[c].node for c, p in policies.items() if p == ExclusivePolicy.NUMA_NODE_LEVEL
        }
        self.result: list[int] = []

    def take(
        self, need: int, bind: BindPolicy, own: ExclusivePolicy, strategy: Strategy
    ) -> list[int] | None:
        """None: not enough CPUs."""
        self.need, self.own = need, own
        self.direction = 1 if strategy is Strategy.MOST_ALLOCATED else -1
        if need > len(self.available):
            return None
        if need == 0:
            return []
        full = bind is BindPolicy.FULL_PCPUS
        if (full or self.per_core == 1) and self._whole_cores():
            return self.result
        if not full and self._cpus_of_one_area():
            return self.result
        for exclusive in (True, False):
            for cpu in self._spread(self._all_cpus(exclusive)):
                self._take([cpu])
                if not self.need:
                    return self.result
        raise AssertionError("there were enough CPUs")

    def _whole_cores(self) -> bool:
        if self.need <= self.per_node:
            for exclusive in (True, False):
                for entry in self._cores_in_node(exclusive):
                    if len(entry) >= self.need:
                        return self._take(entry[: self.need])
        if self.need <= self.per_socket:
            for entry in self._cores_in_socket():
                if len(entry) >= self.need:
                    return self._take(entry[: self.need])
        left: Lists = []
        for entry in sorted(self._cores_in_socket(), key=lambda entry: -len(entry)):
            if len(entry) <= self.need:
                self._take(entry)
            else:
                left.append(entry)
        for entry in sorted(left, key=len):
            for core in self._group(entry, "core").values():
                if self.need >= self.per_core:
                    self._take(core)
        return not self.need

    def _cpus_of_one_area(self) -> bool:
        areas = ((self.per_node, self._cpus_in_node), (self.per_socket, self._cpus_in_socket))
        for size, entries in areas:
            if self.need <= size:
                for exclusive in (True, False):
                    for entry in entries(exclusive):
                        if len(entry) >= self.need:
                            return self._take(self._spread(entry)[: self.need])
        return False

    def _cores_in_node(self, exclusive: bool) -> Lists:
        listed = [c for c in self.available if not (exclusive and self._node_blocked(c))]
        by_socket = self._group(listed, "socket")
        entries = []
        for node, cpus in self._group(listed, "node").items():
            entry = self._full_cores(cpus)
            if entry:
                around = len(by_socket[self.cpu[entry[0]].socket])
                entries.append((self._sign(len(entry)), self._sign(around), node, entry))
        return [entry for *_, entry in sorted(entries)]

    def _cores_in_socket(self) -> Lists:
        entries = []
        for socket, cpus in self._group(self.available, "socket").items():
            entry = self._full_cores(cpus)
            if entry:
                entries.append((self._sign(len(entry)), socket, entry))
        return [entry for *_, entry in sorted(entries)]

    def _cpus_in_node(self, exclusive: bool) -> Lists:
        listed = [c for c in self.available if not (exclusive and self._blocked(c))]
        by_socket = self._group(listed, "socket")
        entries = []
        for node, cpus in self._group(listed, "node").items():
            around = len(by_socket[self.cpu[cpus[0]].socket])
            entry = self._by_refs(cpus)
            if exclusive:
                entry = self._first_of_each_core(entry)
            entries.append((self._sign(len(cpus)), self._sign(around), node, entry))
        return [entry for *_, entry in sorted(entries)]

    def _cpus_in_socket(self, exclusive: bool) -> Lists:
        listed = [c for c in self.available if not (exclusive and self._core_blocked(c))]
        entries = []
        for socket, cpus in self._group(listed, "socket").items():
            entry = self._by_refs(cpus)
            if exclusive:
                entry = self._first_of_each_core(entry)
            entries.append((self._sign(len(entry)), socket, entry))
        return [entry for *_, entry in sorted(entries)]

    def _all_cpus(self, exclusive: bool) -> list[int]:
        listed = [c for c in self.available if not (exclusive and self._blocked(c))]
        in_socket = self._group(listed, "socket")
        in_node = self._group(listed, "node")
        taken = self._group(self.result, "socket")

        def rank(cpus: list[int]) -> tuple[int, ...]:
            cpu = self.cpu[cpus[0]]
            return (
                -len(taken.get(cpu.socket, [])),
                self._sign(len(in_socket[cpu.socket])),
                self._sign(len(in_node[cpu.node])),
                len(cpus),
                cpu.socket,
                sum(self._ref(c) for c in cpus),
                cpu.core,
            )

        cores = sorted(self._group(listed, "core").values(), key=rank)
        return [cpu for core in cores for cpu in self._by_refs(core)]

    def _full_cores(self, cpus: list[int]) -> list[int]:
        cores = [c for c in self._group(cpus, "core").values() if len(c) == self.per_core]
        cores.sort(key=lambda core: (sum(map(self._ref, core)), self.cpu[core[0]].core))
        return [cpu for core in cores for cpu in core]

    def _spread(self, cpus: list[int]) -> list[int]:
        if len(cpus) <= self.per_core:
            return cpus
        spread: list[int] = []
        left = cpus
        while left:
            spread += self._first_of_each_core(left)
            left = [cpu for cpu in left if cpu not in spread]
        return spread

    def _first_of_each_core(self, cpus: list[int]) -> list[int]:
        return [core[0] for core in self._group(cpus, "core").values()]

    def _group(self, cpus: Iterable[int], area: str) -> dict[Any, list[int]]:
        groups: dict[Any, list[int]] = {}
        for cpu in cpus:
            groups.setdefault(getattr(self.cpu[cpu], area), []).append(cpu)
        return groups

    def _by_refs(self, cpus: list[int]) -> list[int]:
        return sorted(cpus, key=lambda cpu: (self._ref(cpu), cpu))

    def _ref(self, cpu: int) -> int:
        return self.refs.get(cpu, 0) if self.max_ref > 1 else 0

    def _sign(self, count: int) -> int:
        return self.direction * count

    def _core_blocked(self, cpu: int) -> bool:
        pcpu = self.own is ExclusivePolicy.PCPU_LEVEL
        return pcpu and self.cpu[cpu].core in self.exclusive_cores

    def _node_blocked(self, cpu: int) -> bool:
        numa = self.own is ExclusivePolicy.NUMA_NODE_LEVEL
        return numa and self.cpu[cpu].node in self.exclusive_nodes

    def _blocked(self, cpu: int) -> bool:
        return self._core_blocked(cpu) or self._node_blocked(cpu)

    def _take(self, cpus: list[int]) -> bool:
        for cpu in cpus:
            self.available.remove(cpu)
            self.result.append(cpu)
            if self.own is ExclusivePolicy.PCPU_LEVEL:
                self.exclusive_cores.add(self.cpu[cpu].core)
            if self.own is ExclusivePolicy.NUMA_NODE_LEVEL:
                self.exclusive_nodes.add(self.cpu[cpu].node)
        self.need -= len(cpus)
        return True
