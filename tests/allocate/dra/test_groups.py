"""The devices of a node, and their order."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocate.dra.groups import GroupRules, groups
from agent.model.cpu import layout as layouts
from agent.model.cpu.cpuset import EMPTY, CpuSet, union
from agent.model.cpu.policies import CpuGrouping, GroupOrder
from agent.model.cpu.topology import Cpu
from tests.allocate.dra.node import ALL, FOUR_NODES, GIB, topology
from tests.allocate.machines import MACHINES, masks

CORE, L3, NODE = CpuGrouping.CORE, CpuGrouping.L3_CACHE, CpuGrouping.NUMA_NODE


def named(
    rules: GroupRules,
    offered: CpuSet = ALL,
    claimed: CpuSet = EMPTY,
    near: Mapping[int, int] | None = None,
    *,
    pool_left: bool = True,
) -> list[tuple[str, str]]:
    layout = layouts.of_topology(FOUR_NODES)
    of_node = groups(FOUR_NODES, layout, offered, claimed, rules, near or {}, pool_left=pool_left)
    return [(group.name, str(group.cpus)) for group in of_node]


def test_each_grouping() -> None:
    assert named(GroupRules(NODE)) == [
        ("numa-node-0", "0-7"),
        ("numa-node-1", "8-15"),
        ("numa-node-2", "16-23"),
        ("numa-node-3", "24-31"),
    ]
    assert named(GroupRules(L3), CpuSet.parse("4-11")) == [
        ("l3-cache-1", "4-7"),
        ("l3-cache-2", "8-11"),
    ]
    assert named(GroupRules(CORE), CpuSet.parse("4-7,9")) == [("core-4", "4-5"), ("core-6", "6-7")]


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (GroupOrder.NUMA_NODE, "0123"),
        (GroupOrder.DEVICES_LAST, "1320"),
        (GroupOrder.SPREAD, "3120"),
    ],
)
def test_the_order_is_a_policy(order: GroupOrder, expected: str) -> None:
    """Node 0 has most devices, node 2 one; the claims are on nodes 0, 1 and 2."""
    claimed = CpuSet.parse("0-5,8-9,16-19")
    of_node = named(GroupRules(NODE, order), claimed=claimed, near={0: 4, 2: 1})
    assert "".join(name[-1] for name, _ in of_node) == expected


def test_a_node_that_gives_whole_cores_offers_no_half_ones() -> None:
    offered = CpuSet.parse("1-7,9")
    assert named(GroupRules(whole_cores=True), offered) == [("numa-node-0", "2-7")]


def test_the_shared_pool_keeps_a_core_without_a_claim() -> None:
    """The last one, so that it stays the same while claims come and go elsewhere."""
    claimed = CpuSet.parse("30-31")
    of_node = named(GroupRules(), CpuSet.parse("24-31"), claimed, pool_left=False)
    assert of_node == [("numa-node-3", "24-27,30-31")]


def test_memory_and_huge_pages_are_those_of_the_numa_node() -> None:
    layout = layouts.of_topology(FOUR_NODES)
    first, *_ = groups(FOUR_NODES, layout, ALL, EMPTY, GroupRules(), {}, pool_left=True)
    assert (first.memory_bytes, dict(first.hugepages)) == (7 * GIB, {2 << 20: GIB})
    assert (first.node, first.socket, first.caches, first.whole) == (0, 0, 2, False)
    first, *_ = groups(FOUR_NODES, layout, ALL, EMPTY, GroupRules(L3), {}, pool_left=True)
    assert (first.memory_bytes, first.hugepages) == (0, {})


def test_kinds_of_cores_are_devices_of_their_own() -> None:
    cpus = tuple(Cpu(id_, id_, 0, 0, 0, 0, "core" if id_ < 2 else "atom") for id_ in range(6))
    hybrid = topology(cpus)
    layout = layouts.of_topology(hybrid)
    of_node = groups(hybrid, layout, hybrid.online, EMPTY, GroupRules(), {}, pool_left=True)
    assert [(each.name, str(each.cpus), each.memory_bytes > 0) for each in of_node] == [
        ("numa-node-0-core", "0-1", False),
        ("numa-node-0-atom", "2-5", True),
    ]
    for offered, name in ((CpuSet((0, 1)), "core"), (CpuSet((2, 3)), "atom")):
        left = groups(hybrid, layout, offered, EMPTY, GroupRules(), {}, pool_left=True)
        assert [(group.name, group.memory_bytes > 0) for group in left] == [
            (f"numa-node-0-{name}", name == "atom")
        ], "a device keeps its name while all CPUs of the other kind have owners"


def test_cpus_without_an_l3_cache_are_not_in_the_device_of_one() -> None:
    """As the cores of low power in some machines. The cache and the NUMA node have the id 0."""
    cpus = tuple(Cpu(id_, id_, 0 if id_ < 4 else None, 0, 0, 0) for id_ in range(6))
    machine = topology(cpus)
    layout = layouts.of_topology(machine)
    of_node = groups(machine, layout, machine.online, EMPTY, GroupRules(L3), {}, pool_left=True)
    assert [(group.name, str(group.cpus), group.caches) for group in of_node] == [
        ("l3-cache-0", "0-3", 1),
        ("no-l3-cache-0", "4-5", 0),
    ]


@pytest.mark.hypothesis
@given(st.data())
def test_devices_are_disjoint_and_within_what_is_offered(draw: st.DataObject) -> None:
    cpus = draw.draw(MACHINES)
    machine = topology(cpus)
    layout = layouts.of_topology(machine)
    offered = CpuSet.from_int(draw.draw(masks(cpus)))
    claimed = CpuSet.from_int(draw.draw(masks(cpus))) & offered
    rules = GroupRules(
        draw.draw(st.sampled_from(CpuGrouping)),
        draw.draw(st.sampled_from(GroupOrder)),
        draw.draw(st.booleans()),
    )
    pool_left = draw.draw(st.booleans())
    of_node = groups(machine, layout, offered, claimed, rules, {}, pool_left=pool_left)
    assert len({each.name for each in of_node}) == len(of_node)
    assert sum(len(each.cpus) for each in of_node) == len(union(each.cpus for each in of_node))
    for group in of_node:
        assert group.cpus
        assert group.cpus <= offered
        assert group.free == group.cpus - claimed
        assert {cpu.node for cpu in cpus if cpu.id in group.cpus} == {group.node}
    if not pool_left and offered - claimed:
        assert union(each.cpus for each in of_node) < offered
    if rules.whole_cores or rules.grouping is CORE:
        assert all(
            layout.expand(layout.whole(each.cpus.mask)) == each.cpus.mask for each in of_node
        )
