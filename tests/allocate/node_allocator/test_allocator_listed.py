"""Pods with a device type that only the Device object of the node defines."""

from __future__ import annotations

import json

import msgspec
import pytest

from agent.allocate.node_allocator.allocator import NodeAllocator
from agent.allocate.node_allocator.answer import NodeOffer
from agent.allocate.node_allocator.assigned_pods import holding_of
from agent.allocate.node_allocator.devices import DeviceOverlap
from agent.allocate.node_allocator.properties import Imported, NodeProperties, node_properties
from agent.allocate.refusal import Reason, Refusal
from agent.model.cpu.policies import NumaPolicy
from agent.model.devices.device_object import Device, DeviceObject, DeviceTopology
from agent.model.devices.holding import DEVICES_CHECKPOINTS
from agent.model.pod.apiobjects import ApiPod
from agent.model.pod_request import Needs, PodRequest, request_of
from tests.allocate.devices.builders import CARDS, gpu
from tests.allocate.node_allocator.builders import ALLOCATED, annotated, make_properties, pod

XPU = "example.com/xpu"
KOORDINATOR_XPU = "koordinator.sh/xpu"
TWO = tuple(
    Device("xpu", f"x{minor}", minor, {XPU: 100}, topology=DeviceTopology(0, minor, f"p{minor}"))
    for minor in range(2)
)


def request_with_xpu(api_pod: ApiPod) -> PodRequest:
    """The request in a cluster in which a Device object lists XPU."""
    return request_of(api_pod, {XPU})


def offered(allocator: NodeAllocator, api_pod: ApiPod) -> NodeOffer:
    found = allocator.offer(request_with_xpu(api_pod))
    assert isinstance(found, NodeOffer), found.text
    return found


def bind(allocator: NodeAllocator, api_pod: ApiPod) -> ApiPod:
    found = offered(allocator, api_pod)
    allocator.commit(found)
    return annotated(api_pod, found.annotations())


def refusal(allocator: NodeAllocator, api_pod: ApiPod) -> Refusal:
    found = allocator.offer(request_with_xpu(api_pod))
    assert isinstance(found, Refusal)
    return found


def minors(found: NodeOffer) -> list[int]:
    assert found.device_allocation is not None
    return [each.minor for each in found.device_allocation.devices["xpu"]]


def new_allocator(allocatable: dict[str, int] | None = None, **more: object) -> NodeAllocator:
    properties = make_properties(**{"devices": TWO, **more})  # type: ignore[arg-type]
    return NodeAllocator(msgspec.structs.replace(properties, allocatable=allocatable or {}))


def test_the_allocation_is_written_and_read_back() -> None:
    allocator = new_allocator()
    first = bind(allocator, pod("a", {"cpu": 1, XPU: 60}))
    assert json.loads(first.annotations[ALLOCATED]) == {
        "xpu": [{"id": "x0", "minor": 0, "resources": {XPU: "60"}}]
    }
    restarted = NodeAllocator(allocator.properties, [holding_of(first)])
    assert minors(offered(restarted, pod("b", {XPU: 60}))) == [1]
    assert minors(offered(restarted, pod("b", {XPU: 60}))) == minors(
        offered(allocator, pod("b", {XPU: 60}))
    )
    bind(restarted, pod("b", {XPU: 60}))
    full = refusal(restarted, pod("c", {XPU: 60}))
    assert full.reasons == (Refusal(Reason.DEVICE_INSUFFICIENT, "xpu"),)
    assert not full.unresolvable
    restarted.release("a")
    assert minors(offered(restarted, pod("c", {XPU: 60}))) == [0]


def test_a_device_is_on_the_numa_node_of_the_cpus() -> None:
    allocator = new_allocator(policy=NumaPolicy.SINGLE_NUMA_NODE)
    bind(allocator, pod("a", {"cpu": 6}, "LSR"))
    found = offered(allocator, pod("b", {"cpu": 6, XPU: 100}, "LSR"))
    assert found.offer is not None
    assert minors(found) == [1]
    assert set(found.offer.allocation.cpus) <= set(range(8, 16))


@pytest.mark.parametrize("devices", [TWO, [gpu(0)], [], None])
@pytest.mark.parametrize("allocatable", [{}, {KOORDINATOR_XPU: 100}])
def test_a_koordinator_resource_that_no_device_has_is_refused_with_its_name(
    devices: list[Device] | None, allocatable: dict[str, int]
) -> None:
    found = refusal(
        new_allocator(allocatable, devices=devices), pod("a", {"cpu": 1, KOORDINATOR_XPU: 50})
    )
    assert found.text == f"{KOORDINATOR_XPU}: the node has none"
    assert found.unresolvable


@pytest.mark.parametrize("devices", [[gpu(0)], [], None])
def test_a_resource_that_the_device_object_does_not_list_is_assigned_by_the_kubelet(
    devices: list[Device] | None,
) -> None:
    """This requires that its device plugin reports the resource."""
    api_pod = pod("a", {"cpu": 1, XPU: 2})
    found = refusal(new_allocator(devices=devices), api_pod)
    assert found.text == f"{XPU}: the node has none"
    found = offered(new_allocator({XPU: 4}, devices=devices), api_pod)
    assert (found.device_allocation, found.annotations()) == (None, {})
    without_xpu = new_allocator({XPU: 4}, devices=devices).offer(request_of(api_pod))
    assert isinstance(without_xpu, NodeOffer)
    assert (found.score, found.order) == (without_xpu.score, without_xpu.order)
    assert found.pod_request.needs is Needs.NOTHING


def test_a_pod_with_cards_gets_an_unlisted_resource_from_the_kubelet() -> None:
    found = offered(new_allocator({XPU: 4}, devices=[gpu(0)]), pod("a", {CARDS: 1, XPU: 2}))
    assert found.device_allocation is not None
    assert set(found.device_allocation.devices) == {"gpu"}
    assert set(json.loads(found.annotations()[ALLOCATED])) == {"gpu"}


def test_an_unlisted_resource_is_part_of_the_numa_request() -> None:
    """A NUMA node that reports the resource must have enough of it, as for any other resource."""
    request = request_with_xpu(pod("a", {"cpu": 2, XPU: 2}, "LSR"))
    assert XPU not in request.resources.requests
    without_xpu = new_allocator({XPU: 4}, devices=[]).as_here(request)
    assert without_xpu.resources.requests == {"cpu": 2000, XPU: 2}
    assert without_xpu.resources == request_of(pod("a", {"cpu": 2, XPU: 2}, "LSR")).resources
    assert new_allocator({XPU: 4}).as_here(request) is request


def test_overlaps_of_unknown_types_are_reported() -> None:
    annotation = {"xpu": [{"minor": 1, "resources": {XPU: "70"}}]}
    pods = [holding_of(pod(uid, {XPU: 70}, notes={ALLOCATED: annotation})) for uid in "ab"]
    allocator = NodeAllocator(new_allocator().properties, pods)
    assert allocator.overlaps() == (DeviceOverlap("xpu", 1, XPU, ("a", "b")),)


def test_an_allocation_without_amounts_is_the_whole_device() -> None:
    held = holding_of(pod("a", notes={ALLOCATED: {"xpu": [{"minor": 0}]}}))
    assert minors(
        offered(NodeAllocator(new_allocator().properties, [held]), pod("b", {XPU: 1}))
    ) == [1]


def test_devices_of_a_device_plugin_count_through_the_device_object() -> None:
    """The writer of the object lists them in its annotation."""
    entry = {"podUID": "u", "containerName": "c", "resourceName": XPU, "deviceIDs": ["x0"]}
    object_ = DeviceObject("n", TWO, {}, {DEVICES_CHECKPOINTS: json.dumps([entry])})
    properties: NodeProperties = node_properties("n", {}, device=object_)
    assert properties.imported == {"u": Imported({("xpu", 0): {XPU: 100}}, {})}
    assert minors(offered(NodeAllocator(properties), pod("b", {XPU: 1}))) == [1]
