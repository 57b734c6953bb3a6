from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocate.devices.inventory import inventory
from agent.allocate.node_allocation import PodAllocation
from agent.allocate.node_allocator.allocator import NodeAllocator
from agent.allocate.node_allocator.assigned_pods import (
    AssignedPod,
    assigned_pod_of,
    remaining,
    reserved_by,
)
from agent.allocate.node_allocator.properties import NodeProperties
from agent.model.cpu.cpuset import CpuSet
from agent.model.cpu.policies import ExclusivePolicy
from tests.allocate.devices.builders import CORE, RDMA, nic
from tests.allocate.node_allocator.builders import ALLOCATED, SPEC, STATUS, pod

DEVICES = {
    "gpu": [{"minor": 1, "resources": {CORE: "50"}}],
    "rdma": [
        {"minor": 0, "resources": {RDMA: 1}, "extension": {"vfs": [{"minor": -1, "busID": "b"}]}}
    ],
}


def test_a_pod_without_an_allocation() -> None:
    assert assigned_pod_of(pod("a", {"cpu": 1, "memory": 3}, priority=9)) == AssignedPod(
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
    held = assigned_pod_of(pod("a", {"cpu": 2}, "LSR", notes))
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
    held = assigned_pod_of(pod("a", {"cpu": 2}, "LSR", notes))
    assert held.allocation.cpus == CpuSet.parse(cpus)
    assert held.allocation.cpu_milli == 2000
    assert bool(held.devices) == devices
    assert [fault.split()[1].rstrip(":") for fault in held.faults] == faults


def test_virtual_functions_count_even_with_an_invalid_amount() -> None:
    invalid = {"rdma": [{**DEVICES["rdma"][0], "resources": {RDMA: "many"}}]}
    held = assigned_pod_of(pod("a", notes={ALLOCATED: invalid}))
    assert held.functions == {("rdma", 0): frozenset("b")}
    assert len(held.faults) == 1


def part_of(uid: str, devices: list[dict[str, Any]], cpus: str = "") -> AssignedPod:
    notes: dict[str, object] = {ALLOCATED: {"rdma": devices}}
    if cpus:
        notes[STATUS] = {
            "cpuset": cpus,
            "numaNodeResources": [{"node": 0, "resources": {"memory": 10 * len(cpus)}}],
        }
    return assigned_pod_of(pod(uid, notes=notes))


def port(minor: int, percent: int | None = None, *buses: str, id: str = "") -> dict[str, Any]:
    device: dict[str, Any] = {"minor": minor, "id": id}
    if percent is not None:
        device["resources"] = {RDMA: str(percent)}
    if buses:
        device["extension"] = {"vfs": [{"busID": bus} for bus in buses]}
    return device


@pytest.mark.parametrize(
    ("reserved", "owner", "left"),
    [
        (port(0, 100), port(0, 40), {0: ({RDMA: 60}, "")}),
        (port(0, 100), port(0, 100), {}),
        (port(0, 50), port(0, 80), {}),
        (port(0, 100), port(1, 40), {0: ({RDMA: 100}, "")}),
        (port(0, 2, "a", "b"), port(0, 1, "a"), {0: ({RDMA: 1}, "b")}),
        (port(0, 1, "a", "b"), port(0, 1, "a"), {0: ({}, "b")}),
        (port(0, 1, "a"), port(0, 1, "a"), {}),
        # Without an amount the whole device is reserved.
        (port(0), port(0, 40), {0: ({}, "")}),
        (port(0), port(0), {}),
        (port(0, 100), port(0), {}),
        # The minor of the same device has changed.
        (port(0, 100, id="x"), port(3, 40, id="x"), {0: ({RDMA: 60}, "")}),
        (port(0, 100, id="x"), port(0, 40, id="y"), {0: ({RDMA: 100}, "")}),
        (port(0, 100, id="x"), port(0, 40), {0: ({RDMA: 60}, "")}),
    ],
    ids=str,
)
def test_a_reservation_keeps_the_unused_part_of_a_device(
    reserved: dict[str, Any],
    owner: dict[str, Any],
    left: dict[int, tuple[dict[str, int], str]],
) -> None:
    notes = {ALLOCATED: msgspec.json.encode({"rdma": [reserved]}).decode()}
    found = remaining(reserved_by("r", "Reservation r", notes), [part_of("p", [owner])])
    assert (found is None) == (not left)
    if found is not None:
        assert found.reservation
        assert {
            minor: (amounts, "".join(sorted(found.functions.get(("rdma", minor), ()))))
            for (_, minor), amounts in found.devices.items()
        } == left


@given(
    st.lists(st.integers(1, 100), min_size=3, max_size=3),
    st.lists(st.lists(st.integers(0, 40), min_size=3, max_size=3), max_size=3),
)
def test_a_reservation_and_its_pods_together_use_the_reserved_amounts(
    reserved: list[int], parts: list[list[int]]
) -> None:
    """Its pods use at most the reserved amounts of each device."""
    owners = []
    left = list(reserved)
    for number, wanted in enumerate(parts):
        used_parts = [min(each, most) for each, most in zip(wanted, left, strict=True)]
        left = [most - each for each, most in zip(used_parts, left, strict=True)]
        devices = [port(minor, each) for minor, each in enumerate(used_parts) if each]
        if devices:
            owners.append(part_of(f"p{number}", devices))
    devices = [port(minor, each) for minor, each in enumerate(reserved)]
    of_all = msgspec.structs.replace(part_of("r", devices), reservation=True)
    known = inventory([nic(minor) for minor in range(3)])
    rest = remaining(of_all, owners)
    together = {each.uid: each for each in [*owners, *([rest] if rest is not None else [])]}
    properties = NodeProperties("n", inventory=known)
    free = [
        devices.stocks["rdma"].free
        for pods in (together.values(), [of_all])
        if (devices := NodeAllocator(properties, pods).devices)
    ]
    assert free[0] == free[1]


def test_a_reservation_keeps_the_unused_cpus_and_numa_amounts() -> None:
    reserved = part_of("r", [], "0-3")
    found = remaining(reserved, [part_of("p", [], "1")])
    assert found is not None
    assert str(found.allocation.cpus) == "0,2-3"
    assert found.allocation.amounts == {0: {"memory": 20}}
    assert remaining(reserved, [reserved]) is None
