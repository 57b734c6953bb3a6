"""The devices of a node: groups of CPUs with memory, in the order in which a scheduler shall take
them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from agent.model.cpu.cpuset import EMPTY, CpuSet
from agent.model.cpu.layout import Layout
from agent.model.cpu.policies import CpuGrouping, GroupOrder
from agent.model.cpu.topology import Cpu, Topology


class CpuGroup(msgspec.Struct, frozen=True):
    """A device."""

    name: str
    cpus: CpuSet
    """All of its CPUs that claims may have, also those that claims have."""
    free: CpuSet
    """No claim has these of them."""
    node: int
    socket: int
    core_kind: str | None = None
    """It is None if the machine has one kind of cores."""
    caches: int = 0
    """The number of its L3 caches."""
    memory_bytes: int = 0
    """Without huge pages."""
    hugepages: Mapping[int, int] = {}
    """By the size of a page in bytes, the bytes of the pool."""
    grouping: CpuGrouping = CpuGrouping.NUMA_NODE
    lost: int = 0
    """How many offline CPUs claims have of it, beside `cpus`."""

    @property
    def whole(self) -> bool:
        """Whether one claim gets the whole device."""
        return self.grouping is CpuGrouping.CORE


class GroupRules(msgspec.Struct, frozen=True):
    """How the CPUs of a node are grouped."""

    grouping: CpuGrouping = CpuGrouping.NUMA_NODE
    order: GroupOrder = GroupOrder.DEVICES_LAST
    whole_cores: bool = False
    """Whether only whole cores are given."""


def groups(
    topology: Topology,
    layout: Layout,
    offered: CpuSet,
    claimed: CpuSet,
    rules: GroupRules,
    near: Mapping[int, int],
    *,
    pool_left: bool,
) -> tuple[CpuGroup, ...]:
    """The devices in order. A device without CPUs is left out.

    `offered`: the CPUs that claims may have, also those that claims have.
    `claimed`: those that claims have.
    `near`: by NUMA node, the number of GPUs and other devices there.
    `pool_left`: whether the shared pool has CPUs beside `offered`. Otherwise one core, which no
        claim has, is kept for it."""
    if not pool_left:
        offered -= _kept(layout, offered, claimed)
    if rules.whole_cores or rules.grouping is CpuGrouping.CORE:
        offered = CpuSet.from_int(layout.expand(layout.whole(offered.mask)))
    by_group: dict[str, list[Cpu]] = {}
    for cpu in topology.cpus:
        by_group.setdefault(_group_of(cpu, rules.grouping), []).append(cpu)
    devices = [
        group
        for name, cpus in by_group.items()
        for group in _devices(topology, name, cpus, offered, claimed, rules)
        if group.cpus
    ]
    return tuple(sorted(devices, key=lambda group: _order(group, rules.order, near)))


def _kept(layout: Layout, offered: CpuSet, claimed: CpuSet) -> CpuSet:
    """A core without claims, the last one."""
    free = layout.whole((offered - claimed).mask) or layout.touched((offered - claimed).mask)
    if not free:
        return EMPTY
    core = 1 << free.bit_length() - 1
    return CpuSet.from_int(layout.expand(core)) & offered


def _group_of(cpu: Cpu, grouping: CpuGrouping) -> str:
    """The name of the group of a CPU. Those without an L3 cache are a group in each NUMA node."""
    if grouping is CpuGrouping.CORE:
        return f"core-{cpu.core}"
    if grouping is CpuGrouping.NUMA_NODE:
        return f"numa-node-{cpu.node}"
    return f"no-l3-cache-{cpu.node}" if cpu.l3 is None else f"l3-cache-{cpu.l3}"


def _devices(
    topology: Topology,
    name: str,
    cpus: list[Cpu],
    offered: CpuSet,
    claimed: CpuSet,
    rules: GroupRules,
) -> Iterator[CpuGroup]:
    """One for each kind of core. Their names and whose the memory is follow from the machine:
    allocated claims name a device, whatever is offered of its neighbours."""
    kinds: dict[str | None, list[Cpu]] = {}
    for cpu in cpus:
        kinds.setdefault(cpu.kind, []).append(cpu)
    first = cpus[0]
    by_id = {node.id: node for node in topology.numa_nodes}
    whole_node = rules.grouping is CpuGrouping.NUMA_NODE
    node = by_id.get(first.node) if whole_node else None
    for index, (kind, of_kind) in enumerate(sorted(kinds.items(), key=lambda item: item[0] or "")):
        own = CpuSet(cpu.id for cpu in of_kind) & offered
        pages = (
            {page.size_bytes: page.size_bytes * page.total for page in node.hugepages}
            if node
            else {}
        )
        # Memory has one device, whatever the number of kinds of cores.
        has_memory = node is not None and index == 0
        memory_bytes = node.memory_bytes - sum(pages.values()) if node and has_memory else 0
        yield CpuGroup(
            f"{name}-{kind}" if kind and len(kinds) > 1 else name,
            own,
            own - claimed,
            first.node,
            first.socket,
            kind,
            len({cpu.l3 for cpu in of_kind if cpu.id in own and cpu.l3 is not None}),
            max(0, memory_bytes),
            pages if has_memory else {},
            rules.grouping,
        )


def _order(
    group: CpuGroup, order: GroupOrder, near: Mapping[int, int]
) -> tuple[int, int, int, str]:
    first = CpuSet.first(group.cpus) or 0
    if order is GroupOrder.DEVICES_LAST:
        return near.get(group.node, 0), group.node, first, group.name
    if order is GroupOrder.SPREAD:
        return -len(group.free), group.node, first, group.name
    return group.node, first, 0, group.name
