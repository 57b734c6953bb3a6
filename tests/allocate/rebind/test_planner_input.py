"""The input of a plan, read from a node allocator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from agent.allocate.node_allocation import PodAllocation
from agent.allocate.node_allocator.allocator import NodeAllocator
from agent.allocate.node_allocator.assigned_pods import assigned_pod_of
from agent.allocate.policies_in_force import Profile
from agent.allocate.rebind.arrangement import PlacedNode
from agent.allocate.rebind.planner import NoPlan, PodPlace, moved_allocation, placed_node
from agent.model.cpu.cpuset import CpuSet
from agent.model.cpu.policies import BindPolicy, NumaPolicy, Strategy
from agent.model.pod.apiobjects import ApiPod
from agent.model.pod_request import request_of
from tests.allocate.node_allocator.builders import (
    ALLOCATED,
    NUMA_SPEC,
    SPEC,
    STATUS,
    make_properties,
    pod,
)


def bound(uid: str, cpus: str, **notes: object) -> ApiPod:
    """An LSR pod that owns these CPUs."""
    texts = {STATUS: {"cpuset": cpus}, **notes}
    return pod(uid, {"cpu": len(CpuSet.parse(cpus))}, "LSR", texts)


def ls_pod(uid: str, milli: Mapping[int, str], **more: Any) -> ApiPod:
    parts = [{"node": node, "resources": {"cpu": amount}} for node, amount in milli.items()]
    return pod(uid, {"cpu": "1"}, "LS", {STATUS: {"numaNodeResources": parts}}, **more)


def read(*pods: ApiPod, fixed: Mapping[str, str] | None = None, **more: Any) -> PlacedNode:
    allocator = NodeAllocator(make_properties(**more), map(assigned_pod_of, pods))
    requests = {each.uid: request_of(each).resources for each in pods}
    found = placed_node(allocator, requests, fixed or {})
    assert isinstance(found, PlacedNode)
    return found


def test_owners_and_pods_on_numa_nodes_and_no_others() -> None:
    found = read(
        bound("b", "0,2"),
        ls_pod("s", {0: "500m", 1: "500m"}),
        pod("unbound", {"cpu": "1"}, "LS"),
        bound("a", "4-5", **{SPEC: {"preferredCPUBindPolicy": "SpreadByPCPUs"}}),
        never_owned=CpuSet.parse("15"),
    )
    assert [(each.uid, each.place, each.spread) for each in found.pods] == [
        ("a", 0b110000, True),
        ("b", 0b101, False),
        ("s", 0b11, False),
    ]
    assert found.pods[2].cpu_milli == {0: 500, 1: 500}
    assert CpuSet.from_int(found.assignable) == CpuSet.parse("0-14")
    assert {node: room["cpu"] for node, room in found.rooms.items()} == {0: 8000, 1: 7000}


FIXED: dict[str, tuple[ApiPod, str]] = {
    "by the caller": (bound("a", "0,2"), "it is never moved"),
    "offline": (bound("a", "0,64"), "its CPUs 64 are not online"),
    "two owners": (bound("a", "0,6"), "other pods hold its CPUs 6 too"),
    "a NUMA node below 0": (
        ls_pod("a", {0: "1", -1: "1"}),
        "it has amounts of NUMA nodes that the node does not have",
    ),
    "a NUMA node that the node does not have": (
        bound("a", "0,2", **{STATUS: {"cpuset": "0,2", "numaNodeResources": [{"node": 10**12}]}}),
        "it has amounts of NUMA nodes that the node does not have",
    ),
    "policies that contradict those of the node": (
        bound("a", "0,2", **{NUMA_SPEC: {"numaTopologyPolicy": "Restricted"}}),
        "its policies are not known or contradict those of the node",
    ),
}


@pytest.mark.parametrize("case", FIXED)
def test_a_pod_that_is_not_moved(case: str) -> None:
    first, reason = FIXED[case]
    fixed = {"a": reason} if case == "by the caller" else {}
    policy = "SingleNUMANode" if case.startswith("policies") else None
    found = read(first, bound("b", "6-7"), fixed=fixed, policy=policy)
    assert [each.fixed for each in found.pods if each.uid == "a"] == [reason]


def test_a_pod_with_devices_or_huge_pages_stays_on_its_numa_nodes() -> None:
    devices = {"gpu": [{"minor": 0, "resources": {"koordinator.sh/gpu-core": "100"}}]}
    huge = {
        "cpuset": "0-1",
        "numaNodeResources": [{"node": 0, "resources": {"cpu": "2", "hugepages-2Mi": "4Mi"}}],
    }
    found = read(
        bound("gpu", "2,8", **{ALLOCATED: devices}),
        bound("huge", "0-1", **{STATUS: huge}),
        bound("free", "4-5"),
    )
    near = {each.uid: each.near for each in found.pods}
    assert near == {"gpu": frozenset({0, 1}), "huge": frozenset({0}), "free": None}


def test_other_memory_is_not_room() -> None:
    part = {"node": 0, "resources": {"cpu": "2", "memory": "3Gi"}}
    found = read(
        bound("a", "0,2", **{STATUS: {"cpuset": "0,2", "numaNodeResources": [part]}}),
        bound("b", "4-5"),
        bound("c", "1,3", **{STATUS: {"cpuset": "1,3", "numaNodeResources": [part]}}),
        counts_memory=True,
    )
    gib = 1 << 30
    assert found.rooms[0]["memory"] == 16 * gib
    assert found.pods[0].memory == {0: {"memory": 3 * gib}}


@pytest.mark.parametrize("of_pod", [True, False])
def test_the_pool_of_a_pod_that_bursts_does_not_shrink(of_pod: bool) -> None:
    """ConstrainedBurst is the pod's policy, or the configured one."""
    spec = {"preferredCPUBindPolicy": "ConstrainedBurst"} if of_pod else {}
    burst = pod(
        "burst",
        {"cpu": "1"},
        "LS",
        {
            SPEC: spec,
            STATUS: {"numaNodeResources": [{"node": 1, "resources": {"cpu": "1"}}]},
        },
        limits={"cpu": "6"},
    )
    default = BindPolicy.FULL_PCPUS if of_pod else BindPolicy.CONSTRAINED_BURST
    profile = Profile(NumaPolicy.NONE, Strategy.LEAST_ALLOCATED, default)
    found = read(burst, bound("a", "8-9"), bound("b", "0-1"), profile=profile)
    assert found.most_owned == {1: 2}


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"layout": None}, "node n has no usable NodeResourceTopology"),
        ({"kubelet_static": True}, "the kubelet of node n assigns CPUs (static CPU policy)"),
    ],
)
def test_a_node_without_a_plan(more: dict[str, Any], reason: str) -> None:
    allocator = NodeAllocator(make_properties(**more), [assigned_pod_of(bound("a", "0,2"))])
    assert placed_node(allocator, {}, {}) == NoPlan((reason,))


@pytest.mark.parametrize(
    ("before", "place", "cpus", "amounts"),
    [
        (PodAllocation("a", "ns/a", CpuSet.parse("0,2")), "8-9", "8-9", {}),
        (
            PodAllocation("a", "ns/a", CpuSet.parse("0,8"), amounts={0: {"cpu": 1000}}),
            "8-9",
            "8-9",
            {1: {"cpu": 2000}},
        ),
        (
            PodAllocation("a", "ns/a", CpuSet.parse("7-8"), amounts={0: {"memory": 5}}),
            "8-9",
            "8-9",
            {1: {"memory": 5}},
        ),
    ],
)
def test_the_allocation_of_a_moved_pod(
    before: PodAllocation, place: str, cpus: str, amounts: dict[int, dict[str, int]]
) -> None:
    memory = {1: {"memory": 5}} if "memory" in before.amounts.get(0, {}) else {}
    options = make_properties().cpus
    assert options is not None
    found = moved_allocation(options, before, PodPlace(CpuSet.parse(place), memory=memory))
    assert (str(found.cpus), found.amounts) == (cpus, amounts)


def test_a_moved_pod_that_shares_cpus_keeps_its_amount() -> None:
    before = PodAllocation("s", "ns/s", amounts={0: {"cpu": 500}, 1: {"cpu": 500}}, cpu_milli=1000)
    options = make_properties().cpus
    assert options is not None
    found = moved_allocation(options, before, PodPlace(cpu_milli={1: 1000}))
    assert found.amounts == {1: {"cpu": 1000}}
