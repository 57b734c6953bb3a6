from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent.kube.errors import (
    ForbiddenError,
    KubeError,
    StoreError,
    TooManyRequestsError,
    UnreachableError,
)
from agent.kube.store import EmbeddedStore
from agent.model.devices.device_object import Device
from agent.model.nrt.resource_topology import NodeTopology
from agent.node.node_resource_topology import DeviceReport, Report
from agent.node.outbox import deliver

GPU = Device("gpu", "GPU-1", 0, {"koordinator.sh/gpu-core": 100})
REPORT = Report(
    NodeTopology("n", labels={"app.kubernetes.io/managed-by": "topolet"}),
    {"topology.topolet.io/cpus": "4"},
    {"koordinator.sh/gpu-core": 100},
    DeviceReport((GPU,)),
)
EMPTY = msgspec.structs.replace(REPORT, resources={}, devices=DeviceReport())


class RestrictedStore(EmbeddedStore):
    """A store that refuses writes of one kind, or does not serve its kinds."""

    def __init__(self, folder: Path, refused: str = "", served: bool = True) -> None:
        super().__init__(str(folder))
        self._refused = refused
        self._served = served

    def version(self, kind: str) -> str | None:
        return super().version(kind) if self._served else None

    def apply(self, wanted: dict[str, Any]) -> bool:
        if wanted["kind"] == self._refused:
            raise ForbiddenError(f"no role allows us patch {self._refused}", "patch", self._refused)
        return super().apply(wanted)


@pytest.fixture
def store(tmp_path: Path) -> EmbeddedStore:
    return EmbeddedStore(str(tmp_path))


def test_a_report_is_three_objects_written_once(store: EmbeddedStore) -> None:
    assert deliver(store, REPORT) is True
    assert deliver(store, REPORT) is False
    topology, node, device = (
        store.get(kind, "n") for kind in ("NodeResourceTopology", "Node", "Device")
    )
    assert topology is not None
    assert node is not None
    assert device is not None
    assert topology["apiVersion"] == "topology.node.k8s.io/v1alpha2"
    assert node["metadata"]["labels"] == {"topology.topolet.io/cpus": "4"}
    assert node["status"]["allocatable"] == {"koordinator.sh/gpu-core": "100"}
    assert [each["id"] for each in device["spec"]["devices"]] == ["GPU-1"]
    assert device["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "topolet"


def test_removed_devices_are_removed_from_node_and_device(store: EmbeddedStore) -> None:
    deliver(store, REPORT)
    of_others = {"capacity": {"cpu": "4"}, "phase": "Running"}
    node = store.get("Node", "n") or {}
    store.apply({**node, "status": {**node["status"], **of_others}})
    assert deliver(store, EMPTY) is True
    assert (store.get("Node", "n") or {})["status"] == of_others
    assert (store.get("Device", "n") or {})["spec"]["devices"] == []
    assert deliver(store, EMPTY) is False


def test_without_devices_no_device_object_is_created_or_changed(store: EmbeddedStore) -> None:
    deliver(store, EMPTY)
    assert store.get("Device", "n") is None
    of_others = {"kind": "Device", "metadata": {"name": "n"}, "spec": {"devices": [{"id": "x"}]}}
    store.apply(of_others)
    deliver(store, EMPTY)
    assert store.get("Device", "n") == of_others


@pytest.mark.parametrize(
    ("managers", "changes"), [(["koordlet"], False), (["koordlet", "topolet"], True)]
)
def test_an_empty_device_object_is_the_agents_by_its_field_managers_and_not_by_its_label(
    store: EmbeddedStore, managers: list[str], changes: bool
) -> None:
    metadata = {
        "name": "n",
        "labels": {"app.kubernetes.io/managed-by": "Koordinator"},
        "managedFields": [{"manager": each} for each in managers],
    }
    found = {"kind": "Device", "metadata": metadata, "spec": {"devices": [{"id": "x"}]}}
    store.apply(found)
    deliver(store, EMPTY)
    assert (store.get("Device", "n") != found) is changes


@pytest.mark.parametrize("refused", ["NodeResourceTopology", "Node", "Device"])
def test_a_refused_object_does_not_delay_the_others(tmp_path: Path, refused: str) -> None:
    store = RestrictedStore(tmp_path, refused)
    store.apply({"kind": "Pod", "metadata": {"name": "n"}})
    with pytest.raises(
        StoreError, match=f"no role allows us patch {refused}|Node n does not exist"
    ):
        deliver(store, REPORT)
    written = {kind for kind in ("NodeResourceTopology", "Node", "Device") if store.get(kind, "n")}
    assert written == {"NodeResourceTopology", "Node", "Device"} - {refused}


def test_all_missing_permissions_and_kinds_are_named(tmp_path: Path) -> None:
    store = RestrictedStore(tmp_path, "Device", served=False)
    with pytest.raises(KubeError, match=r"NodeResourceTopology is not served.*; no role"):
        deliver(store, REPORT)
    assert store.get("Node", "n") is not None


@pytest.mark.parametrize(
    "failure", [TooManyRequestsError("later", 3.0), UnreachableError("no route")]
)
def test_a_failing_server_is_tried_once(tmp_path: Path, failure: KubeError) -> None:
    applied = []

    class FailingStore(EmbeddedStore):
        def apply(self, wanted: dict[str, Any]) -> bool:
            applied.append(wanted["kind"])
            raise failure

    with pytest.raises(type(failure)) as raised:
        deliver(FailingStore(str(tmp_path)), REPORT)
    assert raised.value is failure
    assert applied == ["NodeResourceTopology"]
