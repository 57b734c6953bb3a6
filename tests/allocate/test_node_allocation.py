from __future__ import annotations

from msgspec.structs import replace

from agent.allocate.node_allocation import NodeAllocation, PodAllocation, TopologyOptions
from agent.allocate.numa.hint import NodeStatus
from agent.model.cpu.cpuset import CpuSet
from tests.allocate.nodes import GIB, claim, node_options


def node_allocation(node: TopologyOptions, *claims: PodAllocation) -> NodeAllocation:
    made = NodeAllocation(node)
    for each in claims:
        made.add(each)
    return made


def free(made: NodeAllocation) -> str:
    return str(CpuSet.from_int(made.free_cpus()))


def test_owners_may_get_the_kubelets_reserved_cpus_where_the_agent_allows_it() -> None:
    node = node_options(
        reserved=CpuSet.parse("0"), kubelet_reserved=CpuSet.parse("0-1"), owners_on_reserved=True
    )
    assert free(node_allocation(node)) == "1-15"


def test_a_cpu_is_free_while_fewer_pods_hold_it_than_may_share_it() -> None:
    node = node_options(max_ref=2)
    assert free(node_allocation(node, claim("a", "0-3"), claim("b", "2-5"))) == "0-1,4-15"


def test_reserved_cpus_are_subtracted_from_their_numa_node() -> None:
    made = node_allocation(node_options(reserved=CpuSet.parse("0,8-9")))
    assert [made.totals()[node]["cpu"] for node in (0, 1)] == [7000, 6000]


def test_owned_cpus_without_amounts_are_subtracted_too() -> None:
    made = node_allocation(node_options(), claim("owns", "8-9"))
    assert made.available()[1]["cpu"] == 6000
    assert made.recorded()[1]["cpu"] == 8000


def test_amplified_cpu_is_overcommitted_except_for_owned_cpus() -> None:
    made = node_allocation(
        node_options(cpu_ratio=1.5),
        claim("owns", "0-1", {0: {"cpu": 2000}}),
        claim("bare", "8"),
        claim("shares", amounts={0: {"cpu": 500}}),
    )
    assert made.totals()[0]["cpu"] == 12_000
    assert made.available()[0]["cpu"] == 12_000 - 3000 - 500
    assert made.available()[1]["cpu"] == 12_000 - 1500


def test_numa_nodes_of_pods_within_one_and_across_several() -> None:
    shape = (4, 1, 2, 2)
    made = node_allocation(node_options(shape), claim("within", "0-1"), claim("across", "6-9"))
    assert made.numa_status() == {
        0: NodeStatus.SINGLE,
        1: NodeStatus.SHARED,
        2: NodeStatus.SHARED,
        3: NodeStatus.IDLE,
    }


def test_amounts_of_a_missing_numa_node_are_ignored() -> None:
    made = node_allocation(node_options(), claim("old", "40-41", {7: {"cpu": 2000}}))
    assert free(made) == "0-15"
    assert sorted(made.available()) == [0, 1]


def test_an_overcommitted_numa_node_does_not_reduce_the_others() -> None:
    made = node_allocation(
        node_options(), claim("b", "0-7", {0: {"cpu": 9000, "memory": 17 * GIB}})
    )
    for left in (made.recorded(), made.available()):
        assert left == {0: {"cpu": 0, "memory": 0}, 1: {"cpu": 8000, "memory": 16 * GIB}}


def test_a_pod_is_charged_for_the_cpus_it_holds_regardless_of_its_request() -> None:
    made = node_allocation(node_options(cpu_ratio=1.5))
    assert made.paid(replace(claim("b", "0-1"), cpu_milli=0)) == 3000
    assert made.paid(replace(claim("b", "0-1"), cpu_milli=2500)) == 3500
    assert made.paid(replace(claim("b"), cpu_milli=-5)) == 0
