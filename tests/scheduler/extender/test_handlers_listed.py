"""Pods with devices of a type that only a Device object names, through the verbs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import pytest

from agent.kube.objects import ChangeKind
from agent.model.devices import device_object
from agent.model.devices.device_object import Device
from agent.model.pod.annotations import DEVICE_ALLOCATED
from tests.fixtures.fleet import CARDS, Kind, Machine, carder
from tests.kube import hostile
from tests.scheduler import clusters, objects
from tests.scheduler.extender.scene import NODES, Scene

XPU = "example.com/xpu"
OF_KOORDINATOR = "koordinator.sh/xpu"


def wanting(**amounts: str) -> Kind:
    """`xpu` and `koordinator`: the amounts of the resource with that name."""
    names = {"xpu": XPU, "koordinator": OF_KOORDINATOR}
    return Kind({"cpu": "1", **{names[name]: amount for name, amount in amounts.items()}})


def report(scene: Scene, node: str, *resources: Mapping[str, int]) -> None:
    devices = [Device("xpu", f"{node}-{at}", at, dict(each)) for at, each in enumerate(resources)]
    body = device_object.encode(node, devices)
    scene.cluster.devices_changed([objects.of_devices(body)])


def withdraw(scene: Scene, node: str) -> None:
    body = device_object.encode(node, [])
    scene.cluster.devices_changed([objects.of_devices(body, ChangeKind.DELETED)])


def allocated(scene: Scene, name: str) -> dict[str, list[dict[str, object]]]:
    notes = scene.pods.pods["default", name]["metadata"]["annotations"]
    found: dict[str, list[dict[str, object]]] = json.loads(notes.get(DEVICE_ALLOCATED, "{}"))
    return found


@pytest.fixture
def scene(server: hostile.Server) -> Iterator[Scene]:
    it = Scene(server)
    yield it
    it.transport.close()


@pytest.mark.parametrize(
    ("resource", "kind"), [(XPU, wanting(xpu="60")), (OF_KOORDINATOR, wanting(koordinator="60"))]
)
def test_a_pod_gets_its_device_and_nobody_else_does(
    scene: Scene, resource: str, kind: Kind
) -> None:
    report(scene, "b", {resource: 100}, {resource: 100})
    expected = [("0", ["b"]), ("1", ["b"]), ("full", [])]
    for name, nodes in expected:
        pod = scene.pod(kind, name)
        result = scene.filter(pod)
        assert list(result.node_names) == nodes
        if not nodes:
            assert result.failed_nodes == {"b": "xpu: not enough devices are free"}
            assert result.failed_and_unresolvable_nodes.keys() == {"a", "c"}
            continue
        assert scene.scores(pod)["b"] == 10
        assert scene.bind(pod, "b") == ""
        assert allocated(scene, name) == {
            "xpu": [{"minor": int(name), "id": f"b-{name}", "resources": {resource: "60"}}]
        }
        clusters.tell(scene.cluster, scene.pods.pods["default", name])
    clusters.tell(scene.cluster, scene.pods.pods["default", "0"], ChangeKind.DELETED)
    assert scene.fits(scene.pod(kind, "next")) == ["b"]


def test_whole_devices_are_counted_in_the_unit_of_their_node(scene: Scene) -> None:
    report(scene, "a", {XPU: 1}, {XPU: 1})
    report(scene, "b", {XPU: 100}, {XPU: 100})
    two = scene.pod(wanting(xpu="2"), "two")
    assert scene.fits(two, ["a"]) == ["a"]
    assert scene.bind(two, "a") == ""
    assert [each["minor"] for each in allocated(scene, "two")["xpu"]] == [0, 1]
    both = scene.pod(wanting(xpu="200"), "both")
    assert scene.fits(both) == ["b"]
    assert scene.bind(both, "b") == ""
    assert [each["minor"] for each in allocated(scene, "both")["xpu"]] == [0, 1]


def test_a_type_on_no_device_object_is_declined_by_name(scene: Scene) -> None:
    """Also on nodes without any Device object, and by bind."""
    pod = scene.pod(wanting(koordinator="100"), "p")
    result = scene.filter(pod)
    reason = f"{OF_KOORDINATOR}: the node has none"
    assert not result.node_names
    assert result.failed_and_unresolvable_nodes == dict.fromkeys(NODES, reason)
    assert scene.bind(pod, "c") == f"node c: {reason}"
    assert not scene.pods.bindings


def test_a_device_plugins_resource_that_no_device_object_lists_is_plain(scene: Scene) -> None:
    report(scene, "b", {XPU: 100})
    pod = scene.pod(Kind({"cpu": "1", "vendor.example/other": "1"}), "p")
    assert scene.fits(pod) == NODES
    assert scene.bind(pod, "a") == ""
    assert allocated(scene, "p") == {}


def test_a_resource_becomes_a_devices_when_an_object_lists_it(scene: Scene) -> None:
    """Between filter and bind too: the pod is decoded again."""
    pod = scene.pod(wanting(xpu="100"), "p")
    assert scene.fits(pod) == NODES
    report(scene, "b", {XPU: 100})
    assert scene.bind(pod, "a") == f"node a: {XPU}: the node has none"
    assert scene.fits(pod) == ["b"]
    assert scene.bind(pod, "b") == ""
    assert allocated(scene, "p").keys() == {"xpu"}
    withdraw(scene, "b")
    assert scene.fits(scene.pod(wanting(xpu="100"), "q")) == NODES


def test_a_pod_gets_a_card_and_a_listed_device_on_one_node(scene: Scene) -> None:
    body = Machine(CARDS).devices("c")
    added = {"type": "xpu", "id": "x", "minor": 0, "health": True, "resources": {XPU: "1"}}
    body["spec"]["devices"].append(added)
    scene.cluster.devices_changed([objects.of_devices(body)])
    amounts = {**carder(1).requests, XPU: "1"}
    pod = scene.pod(Kind(amounts, amounts), "p")
    assert scene.fits(pod) == ["c"]
    assert scene.bind(pod, "c") == ""
    assert allocated(scene, "p").keys() == {"gpu", "xpu"}
