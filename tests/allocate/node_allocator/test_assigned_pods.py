from __future__ import annotations

import pytest

from agent.allocate.node_allocation import PodAllocation
from agent.allocate.node_allocator.assigned_pods import AssignedPod, holding_of
from agent.model.cpu.cpuset import CpuSet
from agent.model.cpu.policies import ExclusivePolicy
from tests.allocate.devices.builders import CORE, RDMA
from tests.allocate.node_allocator.builders import ALLOCATED, SPEC, STATUS, pod

DEVICES = {
    "gpu": [{"minor": 1, "resources": {CORE: "50"}}],
    "rdma": [
        {"minor": 0, "resources": {RDMA: 1}, "extension": {"vfs": [{"minor": -1, "busID": "b"}]}}
    ],
}


def test_a_pod_without_an_allocation() -> None:
    assert holding_of(pod("a", {"cpu": 1, "memory": 3}, priority=9)) == AssignedPod(
        "a",
        "ns/a",
        PodAllocation("a", "ns/a", cpu_milli=1000),
        {},
        {},
        {"cpu": 1000, "memory": 3},
        9,
    )


def test_every_field_of_the_annotations() -> None:
    status = {"cpuset": "0-1", "numaNodeResources": [{"node": 0, "resources": {"cpu": "2"}}]}
    exclusive = {"preferredCPUExclusivePolicy": "PCPULevel"}
    notes = {STATUS: status, SPEC: exclusive, ALLOCATED: DEVICES}
    held = holding_of(pod("a", {"cpu": 2}, "LSR", notes))
    assert held.allocation == PodAllocation(
        "a", "ns/a", CpuSet((0, 1)), ExclusivePolicy.PCPU_LEVEL, {0: {"cpu": 2000}}, 2000
    )
    assert held.devices == {("gpu", 1): {CORE: 50}, ("rdma", 0): {RDMA: 1}}
    assert held.functions == {("rdma", 0): frozenset("b")}
    assert not held.faults


@pytest.mark.parametrize(
    ("notes", "cpus", "devices", "faults"),
    [
        (
            {
                STATUS: {
                    "cpuset": "0-1",
                    "numaNodeResources": [{"node": 0, "resources": {"x": "y"}}],
                }
            },
            "0-1",
            False,
            [STATUS],
        ),
        ({STATUS: {"cpuset": "0-"}, ALLOCATED: DEVICES}, "", True, [STATUS]),
        ({STATUS: {"cpuset": "3"}, ALLOCATED: "{"}, "3", False, [ALLOCATED]),
        ({STATUS: "[", ALLOCATED: "{"}, "", False, [STATUS, ALLOCATED]),
    ],
)
def test_one_invalid_annotation_does_not_affect_the_others(
    notes: dict[str, object], cpus: str, devices: bool, faults: list[str]
) -> None:
    held = holding_of(pod("a", {"cpu": 2}, "LSR", notes))
    assert held.allocation.cpus == CpuSet.parse(cpus)
    assert held.allocation.cpu_milli == 2000
    assert bool(held.devices) == devices
    assert [fault.split()[1].rstrip(":") for fault in held.faults] == faults


def test_virtual_functions_count_even_with_an_invalid_amount() -> None:
    odd = {"rdma": [{**DEVICES["rdma"][0], "resources": {RDMA: "many"}}]}
    held = holding_of(pod("a", notes={ALLOCATED: odd}))
    assert held.functions == {("rdma", 0): frozenset("b")}
    assert len(held.faults) == 1
