from __future__ import annotations

from random import Random

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from agent.model.cpu.cpuset import CpuSet
from agent.model.cpu.topology import HugePages, Topology
from agent.model.devices.device_object import Portion
from agent.model.nrt.resource_topology import Amounts
from agent.model.pod.pod_resources import (
    Allocatable,
    ContainerResources,
    MemoryBlock,
    PluginDevice,
    PodResources,
)
from agent.node.kubelet_view import (
    by_uid,
    device_portions,
    kubelet_resources,
    reserved,
    with_running,
)
from agent.node.node_resource_topology import Allocated, Reserved, zones
from tests.builders import machine

GI = 1 << 30
NIC = "vendor.example/nic"

STATIC = Allocatable(CpuSet(range(1, 8)))
"""CPU 0 is reserved."""


def node() -> Topology:
    """Two NUMA nodes with 4 CPUs and 8 GiB each; 2 GiB of node 1 in huge pages."""
    topology = machine(2, 4)
    first, second = topology.numa_nodes
    pages = (HugePages(GI, 2, 2),)
    return msgspec.structs.replace(
        topology,
        numa_nodes=(
            msgspec.structs.replace(first, memory_bytes=8 * GI),
            msgspec.structs.replace(second, memory_bytes=8 * GI, hugepages=pages),
        ),
    )


def container(
    name: str = "c", *cpus: int, memory: tuple[MemoryBlock, ...] = (), devices: str = ""
) -> ContainerResources:
    """`devices`: ids and NUMA nodes, as `n0@0,n1@0+1,n2`."""
    plugin_devices = []
    for text in filter(None, devices.split(",")):
        id_, _, nodes = text.partition("@")
        numa_nodes = tuple(int(each) for each in nodes.split("+") if each)
        plugin_devices.append(PluginDevice(NIC, id_, numa_nodes))
    return ContainerResources(name, CpuSet(cpus), memory, tuple(plugin_devices))


def pod(name: str, *containers: ContainerResources, cpus: str = "") -> PodResources:
    return PodResources("ns", name, containers, CpuSet.parse(cpus))


def block(gib: int, *nodes: int, kind: str = "memory") -> MemoryBlock:
    return MemoryBlock(kind, gib * GI, nodes)


def test_cpus_memory_and_devices_of_a_pods_containers_together() -> None:
    pods = [
        pod(
            "a",
            container("x", 1, 2, memory=(block(1, 0),), devices="n0@0"),
            container("y", 3, memory=(block(2, 0), block(1, 1, kind="hugepages-1Gi"))),
        ),
        pod("idle", container()),
    ]
    found = kubelet_resources(pods, node(), STATIC)
    amounts = {0: {"memory": 3 * GI, NIC: 1}, 1: {"hugepages-1Gi": GI}}
    assert found.pods == {("ns", "a"): Allocated(CpuSet([1, 2, 3]), amounts)}
    assert found.problems == ()


def test_shared_cpus_that_a_kubelet_lists_are_not_exclusive() -> None:
    """kubernetes#100211 (1.20): the pool has the reserved CPU, which is never exclusive."""
    pods = [pod("exclusive", container("c", 2, 3)), pod("shared", container("c", 0, 1, 4, 5, 6, 7))]
    assert kubelet_resources(pods, node(), STATIC).pods == {
        ("ns", "exclusive"): Allocated(CpuSet([2, 3]))
    }


def test_one_invalid_cpuset_does_not_affect_the_others() -> None:
    pods = [pod("exclusive", container("c", 2, 3)), pod("wrong", container("c", 0, 2))]
    assert kubelet_resources(pods, node(), STATIC).pods == {
        ("ns", "exclusive"): Allocated(CpuSet([2, 3]))
    }


def test_under_policy_none_no_cpu_is_owned_regardless_of_the_list() -> None:
    """cpumanager/policy_none.go: no CPU is allocatable, because none can be exclusive."""
    pods = [pod("a", container("c", *range(8)))]
    assert kubelet_resources(pods, node(), Allocatable()).pods == {}


def test_without_get_allocatable_sets_that_overlap_are_the_pool() -> None:
    """Kubelets before 1.23 serve it only with a feature gate, so reserved CPUs may be unknown."""
    pods = [
        pod("exclusive", container("c", 2, 3)),
        pod("shared", container("c", 0, 1), container("d", 0, 1)),
        pod("too", container("c", 0, 1)),
    ]
    assert kubelet_resources(pods, node()).pods == {("ns", "exclusive"): Allocated(CpuSet([2, 3]))}


def test_pod_level_cpus_and_memory_are_not_counted_again_for_its_containers() -> None:
    """peers.md §1.8 and §3.7: the CPUs of containers are part of the pod's. A container
    without exclusive CPUs lists no CPUs from 1.37 on, and the shared CPUs of the pod in 1.36
    (cpumanager/policy_static.go)."""
    whole = PodResources(
        "ns",
        "p",
        (
            container("exclusive", 1, memory=(block(1, 0),)),
            container("rest", 2, 3),
            container("r", 2, 3),
        ),
        CpuSet([1, 2, 3]),
        (block(4, 0),),
    )
    for known in (STATIC, None):
        found = kubelet_resources([whole], node(), known).pods
        assert found[("ns", "p")].amounts == {0: {"memory": 4 * GI}}
        assert found[("ns", "p")].cpus == CpuSet([1, 2, 3])


def test_pod_level_memory_of_one_kind_does_not_replace_that_of_another() -> None:
    parts = container(memory=(block(1, 0), block(1, 1, kind="hugepages-1Gi")))
    found = kubelet_resources(
        [PodResources("ns", "p", (parts,), memory=(block(2, 0),))], node()
    ).pods
    assert found[("ns", "p")].amounts == {0: {"memory": 2 * GI}, 1: {"hugepages-1Gi": GI}}


def test_memory_of_several_numa_nodes_fills_them_in_ascending_order() -> None:
    """peers.md §1.6: like the kubelet's memory manager, not the full amount on each of them."""
    allocatable = Allocatable(memory=(block(7, 0), block(5, 1)))
    pods = [
        pod("a", container(memory=(block(4, 0, 1),))),
        pod("b", container(memory=(block(5, 0, 1),))),
    ]
    found = kubelet_resources(pods, node(), allocatable).pods
    assert found[("ns", "a")].amounts == {0: {"memory": 4 * GI}}
    assert found[("ns", "b")].amounts == {0: {"memory": 3 * GI}, 1: {"memory": 2 * GI}}


def test_memory_of_one_numa_node_is_placed_before_that_of_several() -> None:
    pods = [
        pod("a", container(memory=(block(8, 0, 1),))),
        pod("b", container(memory=(block(6, 0),))),
    ]
    found = kubelet_resources(pods, node()).pods
    assert found[("ns", "a")].amounts == {0: {"memory": 2 * GI}, 1: {"memory": 6 * GI}}


def test_memory_beyond_the_capacity_is_still_held() -> None:
    found = kubelet_resources([pod("a", container(memory=(block(20, 0, 1),)))], node()).pods
    assert found[("ns", "a")].amounts == {0: {"memory": 8 * GI}, 1: {"memory": 12 * GI}}


def test_without_a_memory_manager_no_memory_is_reserved() -> None:
    """The kubelet then lists no memory as allocatable, although there is some."""
    assert reserved(node(), Allocatable(STATIC.cpus)) == Reserved(CpuSet([0]))


def test_reserved_amounts_are_those_that_are_not_allocatable() -> None:
    allocatable = Allocatable(CpuSet([2, 3, 6, 7, 99]), (block(7, 0), block(9, 1)))
    assert reserved(node(), allocatable) == Reserved(CpuSet([0, 1, 4, 5]), {0: GI, 1: 0})
    assert reserved(node(), Allocatable()) == Reserved()


def test_a_terminated_pod_holds_nothing_even_if_it_is_listed() -> None:
    """Kubelets before 1.34 list pods that have ended, and their memory (kubernetes#119423,
    kubernetes#132020)."""
    pods = [
        pod("job", container("c", 1, memory=(block(1, 0),), devices="n0@0")),
        pod("next", container("c", 1, devices="n0@0")),
    ]
    terminated = {("ns", "job")}
    assert kubelet_resources(pods, node(), STATIC, terminated).pods == {
        ("ns", "next"): Allocated(CpuSet([1]), {0: {NIC: 1}})
    }
    allocatable = Allocatable(devices=(PluginDevice(NIC, "n0", (0,)),))
    assert device_portions(pods[:1], allocatable, terminated) == (Portion(NIC, 0, 1, 1, 0),)
    assert device_portions(pods, allocatable) == (Portion(NIC, 0, 1, 1, 1),), (
        "listed twice, counted once"
    )


def test_a_force_deleted_pod_counts_while_it_runs() -> None:
    """kubernetes#104824: the kubelet no longer lists it (kubelet_pods.go, GetActivePods)."""
    a, b, new = ("ns", "a"), ("ns", "b"), ("ns", "new")
    one, two = Allocated(CpuSet([1])), Allocated(CpuSet([2]))
    assert with_running({a: one, b: one}, {new: two}, {a, new}) == {a: one, new: two}
    assert with_running({a: one}, {a: two}, {a}) == {a: two}, "the listed resources count"


def test_two_pods_with_one_name_hold_their_sum_without_a_uid() -> None:
    """The API has no UIDs: a pod may be created while another with its name is terminating."""
    pods = [
        pod("db-0", container("c", 1, memory=(block(1, 0),))),
        pod("db-0", container("c", 2, memory=(block(1, 0),))),
        pod("web", container("c", 3)),
    ]
    found = kubelet_resources(pods, node(), STATIC).pods
    both = Allocated(CpuSet([1, 2]), {0: {"memory": 2 * GI}})
    assert found[("ns", "db-0")] == both
    names = {"u1": ("ns", "db-0"), "u2": ("ns", "db-0"), "u3": ("ns", "web"), "u4": ("ns", "idle")}
    assert by_uid(found, names) == {"u3": Allocated(CpuSet([3]))}
    assert by_uid(found, {"u1": ("ns", "db-0")}) == {"u1": both}


def test_offline_cpu_is_still_held_and_a_missing_one_is_reported() -> None:
    """The kubelet uses the CPUs that were online at its start (peers.md §7.3.10)."""
    topology = machine(2, 4, offline="3")
    found = kubelet_resources(
        [pod("p", container("c", 2, 3, 9))], topology, Allocatable(CpuSet(range(1, 10)))
    )
    assert found.pods == {("ns", "p"): Allocated(CpuSet([2, 3]))}
    assert found.problems == ("pod ns/p: this machine has no CPUs 9",)


def test_missing_numa_nodes_are_reported() -> None:
    pods = [
        pod("p", container(memory=(block(1, 1, 7), block(1, 9), block(1, kind="hugepages-1Gi"))))
    ]
    found = kubelet_resources(pods, node())
    assert found.pods == {("ns", "p"): Allocated(amounts={1: {"memory": GI}})}
    assert set(found.problems) == {
        "pod ns/p: memory: this machine has no NUMA node 7",
        "pod ns/p: memory: this machine has no NUMA node 9",
        "pod ns/p: hugepages-1Gi: on no NUMA node",
    }


def test_devices_with_two_numa_nodes_or_none() -> None:
    """1.36 lists one entry for each NUMA node (cm/container_manager.go), and permits none."""
    pods = [pod("p", container(devices="both@0+1,none"))]
    assert kubelet_resources(pods, node()).pods == {
        ("ns", "p"): Allocated(amounts={0: {NIC: 1}, 1: {NIC: 1}})
    }
    allocatable = Allocatable(
        devices=(
            PluginDevice(NIC, "both", (0, 1)),
            PluginDevice(NIC, "none"),
            PluginDevice(NIC, "x", (1,)),
        )
    )
    assert device_portions(pods, allocatable) == (
        Portion(NIC, 0, 1, 1, 1),
        Portion(NIC, 1, 1, 1, 1),
        Portion(NIC, 1, 1, 1, 0),
    )


def test_device_shared_by_containers_of_a_pod_counts_once() -> None:
    shared = pod("p", container("a", devices="n0@0"), container("b", devices="n0@0,n1@5"))
    found = kubelet_resources([shared], node())
    assert found.pods == {("ns", "p"): Allocated(amounts={0: {NIC: 1}})}
    assert found.problems == (f"pod ns/p: {NIC}: this machine has no NUMA node 5",)


def test_unhealthy_device_of_a_pod_does_not_reduce_the_healthy_ones() -> None:
    """GetAllocatableDevices lists healthy ones only (devicemanager/manager.go)."""
    allocatable = Allocatable(
        devices=(PluginDevice(NIC, "n0", (0,)), PluginDevice(NIC, "n1", (0,)))
    )
    plugin_devices = device_portions([pod("p", container(devices="n0@0,unhealthy@0"))], allocatable)
    first, _ = zones(node(), devices=plugin_devices)
    assert first.resources[NIC] == Amounts(3, 2, 1)


containers = st.builds(
    ContainerResources,
    st.just("c"),
    st.sets(st.integers(0, 9), max_size=4).map(CpuSet),
    st.lists(
        st.builds(
            MemoryBlock,
            st.sampled_from(["memory", "hugepages-1Gi"]),
            st.integers(0, 10 * GI),
            st.sets(st.integers(0, 1), min_size=1).map(lambda nodes: tuple(sorted(nodes))),
        ),
        max_size=3,
    ).map(tuple),
)
pods_of_any_kind = st.lists(
    st.builds(
        PodResources,
        st.just("ns"),
        st.sampled_from(["a", "b", "c"]),
        st.lists(containers, max_size=3).map(tuple),
    ),
    max_size=4,
)


@given(pods_of_any_kind, st.randoms())
def test_amounts_add_up_in_any_order_of_pods(pods: list[PodResources], random: Random) -> None:
    found = kubelet_resources(pods, node(), STATIC).pods

    def total(kind: str) -> int:
        return sum(each.get(kind, 0) for one in found.values() for each in one.amounts.values())

    for kind in ("memory", "hugepages-1Gi"):
        listed = [m for p in pods for c in p.containers for m in c.memory if m.kind == kind]
        assert total(kind) == sum(each.size_bytes for each in listed)
    shuffled = random.sample(pods, len(pods))
    assert zones(node(), kubelet_resources(shuffled, node(), STATIC).pods.values()) == zones(
        node(), found.values()
    )
    for one in found.values():
        assert one.cpus <= STATIC.cpus
