"""The extender's verbs for pods that request devices of a type that only a Device object lists."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from agent.kube.objects import ChangeKind
from agent.model.devices import device_object
from agent.model.devices.device_object import Device
from agent.model.pod.annotations import DEVICE_ALLOCATED
from tests.fixtures.fleet import Kind
from tests.scheduler import clusters, objects
from tests.scheduler.extender.scene import NODES, Scene

XPU = "example.com/xpu"
KOORDINATOR_XPU = "koordinator.sh/xpu"


def requesting(**amounts: str) -> Kind:
    """`xpu` and `koordinator`: the amounts of XPU and of KOORDINATOR_XPU."""
    names = {"xpu": XPU, "koordinator": KOORDINATOR_XPU}
    return Kind({"cpu": "1", **{names[name]: amount for name, amount in amounts.items()}})


def report(scene: Scene, node: str, *resources: Mapping[str, int]) -> None:
    devices = [Device("xpu", f"{node}-{at}", at, dict(each)) for at, each in enumerate(resources)]
    body = device_object.encode(node, devices)
    scene.cluster.devices_changed([objects.devices_change(body)])


def delete_report(scene: Scene, node: str) -> None:
    body = device_object.encode(node, [])
    scene.cluster.devices_changed([objects.devices_change(body, ChangeKind.DELETED)])


def allocated(scene: Scene, name: str) -> dict[str, list[dict[str, object]]]:
    notes = scene.pods.pods["default", name]["metadata"]["annotations"]
    found: dict[str, list[dict[str, object]]] = json.loads(notes.get(DEVICE_ALLOCATED, "{}"))
    return found


@pytest.mark.parametrize(
    ("resource", "kind"),
    [(XPU, requesting(xpu="60")), (KOORDINATOR_XPU, requesting(koordinator="60"))],
)
def test_a_device_is_allocated_to_as_many_pods_as_fit(
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
        clusters.report_pod(scene.cluster, scene.pods.pods["default", name])
    clusters.report_pod(scene.cluster, scene.pods.pods["default", "0"], ChangeKind.DELETED)
    assert scene.fits(scene.pod(kind, "next")) == ["b"]


def test_a_resource_is_a_device_as_soon_as_a_device_object_lists_it(scene: Scene) -> None:
    """Also between filter and bind: the pod is decoded again."""
    pod = scene.pod(requesting(xpu="100"), "p")
    assert scene.fits(pod) == NODES
    report(scene, "b", {XPU: 100})
    assert scene.bind(pod, "a") == f"node a: {XPU}: the node has none"
    assert scene.fits(pod) == ["b"]
    assert scene.bind(pod, "b") == ""
    assert allocated(scene, "p").keys() == {"xpu"}
    delete_report(scene, "b")
    assert scene.fits(scene.pod(requesting(xpu="100"), "q")) == NODES
