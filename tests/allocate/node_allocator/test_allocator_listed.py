"""Pods with a device type that only the Device object of the node defines."""

from __future__ import annotations

import json

import msgspec
import pytest

from agent.allocate.node_allocator.allocator import NodeAllocator
from agent.allocate.node_allocator.assigned_pods import assigned_pod_of
from agent.allocate.refusal import Reason, Refusal
from agent.model.devices.device_object import Device, DeviceTopology
from agent.model.pod_request import Needs, request_of
from tests.allocate.devices.builders import CARDS, gpu
from tests.allocate.node_allocator.builders import (
    ALLOCATED,
    bind,
    make_properties,
    minors,
    offered,
    pod,
    refusal,
)

XPU = "example.com/xpu"
LISTED = {XPU}
KOORDINATOR_XPU = "koordinator.sh/xpu"
TWO = tuple(
    Device("xpu", f"x{minor}", minor, {XPU: 100}, topology=DeviceTopology(0, minor, f"p{minor}"))
    for minor in range(2)
)


def new_allocator(allocatable: dict[str, int] | None = None, **more: object) -> NodeAllocator:
    properties = make_properties(**{"devices": TWO, **more})  # type: ignore[arg-type]
    return NodeAllocator(msgspec.structs.replace(properties, allocatable=allocatable or {}))


def test_the_allocation_is_written_and_read_back() -> None:
    allocator = new_allocator()
    first = bind(allocator, pod("a", {"cpu": 1, XPU: 60}), LISTED)
    assert json.loads(first.annotations[ALLOCATED]) == {
        "xpu": [{"id": "x0", "minor": 0, "resources": {XPU: "60"}}]
    }
    restarted = NodeAllocator(allocator.properties, [assigned_pod_of(first)])
    second, third = pod("b", {XPU: 60}), pod("c", {XPU: 60})
    assert minors(offered(restarted, second, LISTED), "xpu") == [1]
    assert offered(restarted, second, LISTED) == offered(allocator, second, LISTED)
    bind(restarted, second, LISTED)
    full = refusal(restarted, third, LISTED)
    assert full.reasons == (Refusal(Reason.DEVICE_INSUFFICIENT, "xpu"),)
    assert not full.unresolvable
    restarted.release("a")
    assert minors(offered(restarted, third, LISTED), "xpu") == [0]


@pytest.mark.parametrize("devices", [TWO, [gpu(0)], [], None])
@pytest.mark.parametrize("allocatable", [{}, {KOORDINATOR_XPU: 100}])
def test_a_koordinator_resource_that_no_device_has_is_refused_with_its_name(
    devices: list[Device] | None, allocatable: dict[str, int]
) -> None:
    api_pod = pod("a", {"cpu": 1, KOORDINATOR_XPU: 50})
    found = refusal(new_allocator(allocatable, devices=devices), api_pod, LISTED)
    assert found.text == f"{KOORDINATOR_XPU}: the node has none"
    assert found.unresolvable


@pytest.mark.parametrize("devices", [[gpu(0)], [], None])
def test_a_resource_that_the_device_object_does_not_list_is_assigned_by_the_kubelet(
    devices: list[Device] | None,
) -> None:
    """This requires that its device plugin reports the resource."""
    api_pod = pod("a", {"cpu": 1, XPU: 2})
    refused = refusal(new_allocator(devices=devices), api_pod, LISTED)
    assert refused.text == f"{XPU}: the node has none"
    allocator = new_allocator({XPU: 4}, devices=devices)
    offer = offered(allocator, api_pod, LISTED)
    assert (offer.device_allocation, offer.annotations()) == (None, {})
    without_xpu = offered(allocator, api_pod)
    assert (offer.score, offer.order) == (without_xpu.score, without_xpu.order)
    assert offer.pod_request.needs is Needs.NOTHING


def test_a_pod_with_cards_gets_an_unlisted_resource_from_the_kubelet() -> None:
    api_pod = pod("a", {CARDS: 1, XPU: 2})
    offer = offered(new_allocator({XPU: 4}, devices=[gpu(0)]), api_pod, LISTED)
    assert set(json.loads(offer.annotations()[ALLOCATED])) == {"gpu"}


def test_an_unlisted_resource_is_part_of_the_numa_request() -> None:
    """A NUMA node that reports the resource must have enough of it, as for any other resource."""
    request = request_of(pod("a", {"cpu": 2, XPU: 2}, "LSR"), LISTED)
    assert XPU not in request.resources.requests
    without_xpu = new_allocator({XPU: 4}, devices=[]).as_here(request)
    assert without_xpu.resources.requests == {"cpu": 2000, XPU: 2}
    assert without_xpu.resources == request_of(pod("a", {"cpu": 2, XPU: 2}, "LSR")).resources
    assert new_allocator({XPU: 4}).as_here(request) is request
