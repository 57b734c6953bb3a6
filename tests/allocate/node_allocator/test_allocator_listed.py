"""Pods whose device type only the node's Device object has."""

from __future__ import annotations

import json

import msgspec
import pytest

from agent.allocate.devices.need import DeviceCause, DeviceRefusal
from agent.allocate.node_allocator.allocator import NodeAllocator
from agent.allocate.node_allocator.answer import Granted, Refused
from agent.allocate.node_allocator.assigned_pods import DeviceOverlap, Imported, holding_of
from agent.allocate.node_allocator.pod_request import Needs, PodRequest, request_of
from agent.allocate.node_allocator.properties import NodeProperties, node_properties
from agent.model.apiobjects import ApiPod
from agent.model.cpu.policies import NumaPolicy
from agent.model.devices.device_object import Device, DeviceObject, DeviceTopology
from agent.model.devices.holding import DEVICES_CHECKPOINTS
from tests.allocate.devices.builders import CARDS, gpu
from tests.allocate.node_allocator.builders import ALLOCATED, annotated, facts, pod

XPU = "example.com/xpu"
OF_KOORDINATOR = "koordinator.sh/xpu"
TWO = tuple(
    Device("xpu", f"x{minor}", minor, {XPU: 100}, topology=DeviceTopology(0, minor, f"p{minor}"))
    for minor in range(2)
)


def asked(of: ApiPod) -> PodRequest:
    """In a cluster where a Device object lists XPU."""
    return request_of(of, {XPU})


def granted(place: NodeAllocator, of: ApiPod) -> Granted:
    found = place.offer(asked(of))
    assert isinstance(found, Granted), found.text()
    return found


def bind(place: NodeAllocator, of: ApiPod) -> ApiPod:
    found = granted(place, of)
    place.commit(found)
    return annotated(of, found.annotations())


def refusal(place: NodeAllocator, of: ApiPod) -> Refused:
    found = place.offer(asked(of))
    assert isinstance(found, Refused)
    return found


def minors(found: Granted) -> list[int]:
    assert found.device_allocation is not None
    return [each.minor for each in found.device_allocation.devices["xpu"]]


def place(allocatable: dict[str, int] | None = None, **more: object) -> NodeAllocator:
    properties = facts(**{"devices": TWO, **more})  # type: ignore[arg-type]
    return NodeAllocator(msgspec.structs.replace(properties, allocatable=allocatable or {}))


def test_the_allocation_is_written_and_read_back() -> None:
    here = place()
    first = bind(here, pod("a", {"cpu": 1, XPU: 60}))
    assert json.loads(first.annotations[ALLOCATED]) == {
        "xpu": [{"id": "x0", "minor": 0, "resources": {XPU: "60"}}]
    }
    again = NodeAllocator(here.properties, [holding_of(first)])
    assert minors(granted(again, pod("b", {XPU: 60}))) == [1]
    assert minors(granted(again, pod("b", {XPU: 60}))) == minors(granted(here, pod("b", {XPU: 60})))
    bind(again, pod("b", {XPU: 60}))
    full = refusal(again, pod("c", {XPU: 60}))
    assert full.reasons == (DeviceRefusal("xpu", DeviceCause.INSUFFICIENT),)
    assert not full.unresolvable
    again.release("a")
    assert minors(granted(again, pod("c", {XPU: 60}))) == [0]


def test_a_device_is_on_the_numa_node_of_the_cpus() -> None:
    here = place(policy=NumaPolicy.SINGLE_NUMA_NODE)
    bind(here, pod("a", {"cpu": 6}, "LSR"))
    found = granted(here, pod("b", {"cpu": 6, XPU: 100}, "LSR"))
    assert found.offer is not None
    assert minors(found) == [1]
    assert set(found.offer.allocation.cpus) <= set(range(8, 16))


@pytest.mark.parametrize("devices", [TWO, [gpu(0)], [], None])
@pytest.mark.parametrize("allocatable", [{}, {OF_KOORDINATOR: 100}])
def test_a_type_of_koordinators_that_no_device_has_is_refused_by_name(
    devices: list[Device] | None, allocatable: dict[str, int]
) -> None:
    found = refusal(place(allocatable, devices=devices), pod("a", {"cpu": 1, OF_KOORDINATOR: 50}))
    assert found.text() == f"{OF_KOORDINATOR}: the node has none"
    assert found.unresolvable


@pytest.mark.parametrize("devices", [[gpu(0)], [], None])
def test_on_a_node_that_does_not_list_it_the_resource_is_the_kubelets(
    devices: list[Device] | None,
) -> None:
    """If its device plugin reports the resource; otherwise nobody would give it."""
    of = pod("a", {"cpu": 1, XPU: 2})
    found = refusal(place(devices=devices), of)
    assert found.text() == f"{XPU}: the node has none"
    there = granted(place({XPU: 4}, devices=devices), of)
    assert (there.device_allocation, there.annotations()) == (None, {})
    plain = place({XPU: 4}, devices=devices).offer(request_of(of))
    assert isinstance(plain, Granted)
    assert (there.score, there.order) == (plain.score, plain.order)
    assert there.pod_request.needs is Needs.NOTHING


def test_a_pod_with_cards_gets_the_other_resource_of_the_kubelet() -> None:
    found = granted(place({XPU: 4}, devices=[gpu(0)]), pod("a", {CARDS: 1, XPU: 2}))
    assert found.device_allocation is not None
    assert set(found.device_allocation.devices) == {"gpu"}
    assert set(json.loads(found.annotations()[ALLOCATED])) == {"gpu"}


def test_the_kubelets_resource_stays_on_the_pods_numa_node() -> None:
    """A NUMA node that reports the resource has to have it, as for any other resource."""
    request = asked(pod("a", {"cpu": 2, XPU: 2}, "LSR"))
    assert XPU not in request.resources.requests
    plain = place({XPU: 4}, devices=[]).as_here(request)
    assert plain.resources.requests == {"cpu": 2000, XPU: 2}
    assert plain.resources == request_of(pod("a", {"cpu": 2, XPU: 2}, "LSR")).resources
    assert place({XPU: 4}).as_here(request) is request


def test_overlaps_of_unknown_types_are_reported() -> None:
    annotation = {"xpu": [{"minor": 1, "resources": {XPU: "70"}}]}
    pods = [holding_of(pod(uid, {XPU: 70}, notes={ALLOCATED: annotation})) for uid in "ab"]
    here = NodeAllocator(place().properties, pods)
    assert here.overlaps() == (DeviceOverlap("xpu", 1, XPU, ("a", "b")),)


def test_a_holding_without_amounts_is_the_whole_device() -> None:
    held = holding_of(pod("a", notes={ALLOCATED: {"xpu": [{"minor": 0}]}}))
    assert minors(granted(NodeAllocator(place().properties, [held]), pod("b", {XPU: 1}))) == [1]


def test_devices_that_a_plugin_gave_count_by_the_device_object() -> None:
    """Whoever writes the object lists them in its annotation."""
    entry = {"podUID": "u", "containerName": "c", "resourceName": XPU, "deviceIDs": ["x0"]}
    object_ = DeviceObject("n", TWO, {}, {DEVICES_CHECKPOINTS: json.dumps([entry])})
    properties: NodeProperties = node_properties("n", {}, device=object_)
    assert properties.imported == {"u": Imported({("xpu", 0): {XPU: 100}}, {})}
    assert minors(granted(NodeAllocator(properties), pod("b", {XPU: 1}))) == [1]
