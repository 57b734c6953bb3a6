from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.devices.device_object import (
    Condition,
    Device,
    DeviceObject,
    DeviceTopology,
    DeviceType,
    VfGroup,
    VirtualFunction,
    decode,
    encode,
    read,
    with_others,
)
from agent.model.objects import ObjectError

GPU = Device(
    "gpu",
    "GPU-0",
    0,
    {"koordinator.sh/gpu-core": 100, "koordinator.sh/gpu-memory": 80 << 30},
    module=1,
    topology=DeviceTopology(-1, 0, "pci0000:16", "0000:17:00.0"),
    conditions=(Condition("Healthy", "True", "Ready", "", "2026-01-01T00:00:00Z"),),
)
NIC = Device(
    "rdma",
    "0000:1f:00.0",
    1,
    {"koordinator.sh/rdma": 100},
    False,
    topology=DeviceTopology(0, 1, "pci0000:1e"),
    vf_groups=(VfGroup({"type": "general"}, (VirtualFunction(-1, "0000:1f:00.2"),)),),
    labels={"b": "2", "a": "1"},
)


def test_a_type_of_the_enumeration_is_plain_text() -> None:
    """The YAML writer of the standalone store supports no enumerations."""
    (written,) = encode("n", [msgspec.structs.replace(GPU, type=DeviceType.GPU)])["spec"]["devices"]
    assert type(written["type"]) is str


def test_encoded_object() -> None:
    body = encode("n", (NIC, GPU), {"z": "1"}, {"k": "v"})
    assert body == {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Device",
        "metadata": {"name": "n", "labels": {"z": "1"}, "annotations": {"k": "v"}},
        "spec": {
            "devices": [
                {
                    "type": "gpu",
                    "id": "GPU-0",
                    "minor": 0,
                    "moduleID": 1,
                    "health": True,
                    "resources": {
                        "koordinator.sh/gpu-core": "100",
                        "koordinator.sh/gpu-memory": str(80 << 30),
                    },
                    "topology": {
                        "socketID": -1,
                        "nodeID": 0,
                        "pcieID": "pci0000:16",
                        "busID": "0000:17:00.0",
                    },
                    "conditions": [
                        {
                            "type": "Healthy",
                            "status": "True",
                            "reason": "Ready",
                            "message": "",
                            "lastTransitionTime": "2026-01-01T00:00:00Z",
                        }
                    ],
                },
                {
                    "type": "rdma",
                    "id": "0000:1f:00.0",
                    "minor": 1,
                    "health": False,
                    "resources": {"koordinator.sh/rdma": "100"},
                    "topology": {"socketID": 0, "nodeID": 1, "pcieID": "pci0000:1e"},
                    "labels": {"a": "1", "b": "2"},
                    "vfGroups": [
                        {
                            "labels": {"type": "general"},
                            "vfs": [{"minor": -1, "busID": "0000:1f:00.2"}],
                        }
                    ],
                },
            ]
        },
    }


@given(st.permutations([GPU, NIC, msgspec.structs.replace(GPU, minor=3, uuid="GPU-3")]))
def test_the_order_of_discovery_does_not_matter(devices: list[Device]) -> None:
    ordered = sorted(devices, key=lambda each: (each.type, each.minor))
    assert decode(encode("n", devices)) == tuple(ordered)


def test_objects_of_other_writers_are_read() -> None:
    """The scheduling proposal has a number as pcieID; koordlet writes other units."""
    device = {
        "health": True,
        "type": "gpu",
        "resources": {"koordinator.sh/gpu-memory": "15472384Ki"},
        "topology": {"socketID": 0, "nodeID": 1, "pcieID": 3},
    }
    (found,) = decode({"metadata": {"name": "n"}, "spec": {"devices": [device]}})
    assert found.resources == {"koordinator.sh/gpu-memory": 15472384 << 10}
    assert found.topology == DeviceTopology(0, 1, "3")
    assert decode({"metadata": {"name": "n"}}) == ()


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        ([{"minor": "x"}], r"Device n: spec\.devices\[0\]\.minor: Expected `int`"),
        (
            [{"resources": {}}, {"resources": {"a": "x"}}],
            r"Device n: spec\.devices\[1\]\.resources\['a'\]: 'x' is not a quantity",
        ),
    ],
)
def test_invalid_fields_are_named(devices: list[object], message: str) -> None:
    with pytest.raises(ObjectError, match=message):
        decode({"metadata": {"name": "n"}, "spec": {"devices": devices}})


def test_labels_and_annotations_are_read_with_the_devices() -> None:
    body = encode("n", (GPU,), {"z": "1"}, {"k": "v"})
    assert read(body) == DeviceObject("n", (GPU,), {"z": "1"}, {"k": "v"})
    assert read({"metadata": {"name": "n"}}) == DeviceObject("n")


XPU = {"type": "xpu", "id": "x", "minor": 0, "health": True}
STALE = {"type": "rdma", "id": "old", "minor": 0, "health": True}


@pytest.mark.parametrize(
    ("stored", "ids", "version"),
    [
        (None, ["a"], None),
        ({"metadata": {}, "spec": {"devices": None}}, ["a"], None),
        ({"metadata": {"resourceVersion": "7"}, "spec": {"devices": [STALE]}}, ["a"], None),
        ({"metadata": {"resourceVersion": "7"}, "spec": {"devices": [XPU]}}, ["a", "x"], "7"),
        ({"metadata": {}, "spec": {"devices": [STALE, XPU]}}, ["a", "x"], None),
        ({"metadata": {}, "spec": {"devices": "invalid"}}, ["a"], None),
        ({"spec": {"devices": [XPU, "invalid"]}}, ["a", "x"], None),
    ],
    ids=str,
)
def test_devices_of_types_that_are_not_reported_are_kept(
    stored: object, ids: list[str], version: str | None
) -> None:
    wanted = encode("n", [Device("rdma", "a", 0, {})])
    before = msgspec.json.encode(wanted)
    merged = with_others(wanted, stored)
    assert [each["id"] for each in merged["spec"]["devices"]] == ids
    assert merged["metadata"].get("resourceVersion") == version
    assert msgspec.json.encode(wanted) == before


def test_another_order_of_the_same_devices_is_not_a_change() -> None:
    wanted = encode("n", [Device("rdma", "a", 0, {})])
    stored = {"metadata": {}, "spec": {"devices": [XPU, *wanted["spec"]["devices"]]}}
    assert with_others(wanted, stored)["spec"] == stored["spec"]
