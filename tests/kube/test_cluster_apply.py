from __future__ import annotations

import copy
from typing import Any

import pytest

from agent.kube.cluster import patch, same_version
from agent.model.devices import device_object
from agent.model.nrt.node_status import status, with_stored_amounts
from agent.model.nrt.resource_topology import (
    Amounts,
    NodeTopology,
    Version,
    Zone,
    encode,
    is_own_entry,
)

Object = dict[str, Any]

WANTED = encode(
    NodeTopology(
        "n",
        (
            Zone(0, {"cpu": Amounts(4000, 4000, 3000), "memory": Amounts(9, 9, 9)}, {0: 10, 1: 20}),
            Zone(1, {"cpu": Amounts(4000, 4000, 4000)}, {0: 20, 1: 10}),
        ),
        labels={"a": "1"},
    ),
    Version.V1ALPHA2,
)


def stored(body: Object = WANTED, *managed: Object) -> Object:
    current = copy.deepcopy(body)
    current["metadata"] |= {"resourceVersion": "7", "uid": "u", "managedFields": list(managed)}
    return current


def by(manager: str, fields: Object, **more: str) -> Object:
    return {"manager": manager, "operation": "Apply", "fieldsV1": fields, **more}


def named(entries: list[Object], name: str) -> Object:
    return next(each for each in entries if each["name"] == name)


def test_missing_object_is_written_completely() -> None:
    assert patch(WANTED, None, "topolet") == WANTED


def test_unchanged_object_is_not_written_again() -> None:
    assert patch(WANTED, stored(), "topolet", is_own_entry) is None


def test_fields_of_other_writers_are_ignored_and_not_written() -> None:
    current = stored(WANTED, by("other", {"f:metadata": {"f:labels": {"f:b": {}}}}))
    current["metadata"]["labels"]["b"] = "2"
    current["operatorNote"] = {"x": 1}
    assert patch(WANTED, current, "topolet", is_own_entry) is None
    current["metadata"]["labels"]["a"] = "other"
    assert patch(WANTED, current, "topolet", is_own_entry) == WANTED


def test_another_writers_value_of_an_owned_field_is_overwritten() -> None:
    current = stored()
    current["zones"][0]["resources"][0]["available"] = "0"
    written = patch(WANTED, current, "topolet", is_own_entry)
    assert written is not None
    assert written["zones"] == WANTED["zones"]


def test_entries_of_other_writers_are_included_in_a_list_without_keys() -> None:
    current = stored(WANTED, by("topolet", {"f:zones": {}}))
    balloon = {"name": "balloon-1", "type": "balloon"}
    nic = {"name": "vendor.com/nic", "capacity": "1", "allocatable": "1", "available": "1"}
    current["zones"].insert(0, balloon)
    current["zones"][1]["resources"].append(nic)
    current["zones"][1]["parent"] = "socket-0"
    current["attributes"].append({"name": "TopologyPolicy", "value": "x"})
    assert patch(WANTED, current, "topolet", is_own_entry) is None
    current["zones"][1]["resources"][0]["available"] = "0"
    written = patch(WANTED, current, "topolet", is_own_entry)
    assert written is not None
    assert written["metadata"]["resourceVersion"] == "7", "a concurrent write is a conflict"
    assert written["zones"][0] == balloon
    assert written["zones"][1]["parent"] == "socket-0"
    assert nic in written["zones"][1]["resources"]
    assert named(written["zones"][1]["resources"], "cpu")["available"] == "3"
    assert named(written["attributes"], "TopologyPolicy")["value"] == "x"


def test_own_entries_that_are_no_longer_wanted_are_removed_from_a_list_without_keys() -> None:
    current = stored()
    current["zones"].append({"name": "node-2", "type": "Node", "resources": []})
    written = patch(WANTED, current, "topolet", is_own_entry)
    assert written is not None
    assert [each["name"] for each in written["zones"]] == ["node-0", "node-1"]
    assert "resourceVersion" not in written["metadata"]


def keys(*names: str) -> Object:
    return {f'k:{{"name":"{name}"}}': {".": {}, "f:name": {}} for name in names}


def test_entries_of_other_writers_are_omitted_from_a_list_with_keys() -> None:
    current = stored(
        WANTED,
        by("topolet", {"f:zones": keys("node-0", "node-1")}),
        by("other", {"f:zones": keys("balloon-1")}),
    )
    current["zones"].append({"name": "balloon-1", "type": "balloon"})
    assert patch(WANTED, current, "topolet", is_own_entry) is None
    current["zones"][0]["resources"][0]["available"] = "0"
    assert patch(WANTED, current, "topolet", is_own_entry) == WANTED


def test_owned_fields_that_are_no_longer_wanted_are_released() -> None:
    owned = {"f:metadata": {"f:labels": {"f:a": {}, "f:old": {}}}}
    current = stored(WANTED, by("topolet", owned))
    current["metadata"]["labels"]["old"] = "1"
    assert patch(WANTED, current, "topolet", is_own_entry) == WANTED
    assert patch(WANTED, current, "other", is_own_entry) is None
    removed = stored(WANTED, by("topolet", {"f:zones": keys("node-0", "node-9")}))
    assert patch(WANTED, removed, "topolet", is_own_entry) == WANTED


def test_another_api_version_is_declared_before_it_is_used() -> None:
    old = by("topolet", {"f:zones": {}}, apiVersion="topology.node.k8s.io/v1alpha1")
    other = by("other", {"f:zones": {}}, apiVersion="topology.node.k8s.io/v1alpha1")
    current = stored(WANTED, other, old)
    assert same_version(current, WANTED["apiVersion"]) == [
        {"op": "test", "path": "/metadata/resourceVersion", "value": "7"},
        *(
            {
                "op": "replace",
                "path": f"/metadata/managedFields/{place}/apiVersion",
                "value": "topology.node.k8s.io/v1alpha2",
            }
            for place in range(2)
        ),
    ]
    assert same_version(current, "topology.node.k8s.io/v1alpha1") is None
    assert same_version(stored(), WANTED["apiVersion"]) is None


def test_status_is_a_separate_part_of_the_object() -> None:
    wanted = status("n", {})
    owned = {"f:status": {"f:capacity": {"f:koordinator.sh/gpu": {}}}}
    capacity = {"cpu": "4", "koordinator.sh/gpu": "100"}
    current: Object = {
        "metadata": {"name": "n", "managedFields": [by("topolet", owned, subresource="status")]},
        "status": {"capacity": capacity, "allocatable": {"cpu": "4"}},
    }
    assert patch(wanted, current, "topolet", subresource="status") == wanted
    assert patch(wanted, current, "topolet") is None


def test_a_node_without_devices_needs_no_write() -> None:
    """An API server does not store empty maps."""
    current: Object = {"metadata": {"name": "n"}, "status": {}}
    assert patch(status("n", {}), current, "topolet", subresource="status") is None


def test_equal_quantities_are_not_a_difference() -> None:
    current: Object = {
        "metadata": {"name": "n"},
        "status": {
            "capacity": {"koordinator.sh/gpu-core": "1k", "cpu": "4"},
            "allocatable": {"koordinator.sh/gpu-core": "1k"},
        },
    }
    wanted = with_stored_amounts(status("n", {"koordinator.sh/gpu-core": 1000}), current)
    assert patch(wanted, current, "topolet", subresource="status") is None
    wanted = with_stored_amounts(status("n", {"koordinator.sh/gpu-core": 900}), current)
    assert wanted["status"]["capacity"] == {"koordinator.sh/gpu-core": "900"}
    assert patch(wanted, current, "topolet", subresource="status") == wanted


@pytest.mark.parametrize(
    "stored",
    [
        {"metadata": {"managedFields": 5}, "zones": [5, {"name": []}], "status": {"capacity": 5}},
        {"metadata": {"managedFields": []}, "zones": [[], {"name": "other"}]},
        {"metadata": {"managedFields": [{"fieldsV1": {"f:zones": 5}}]}, "spec": {"devices": [5]}},
        {
            "metadata": {
                "managedFields": [
                    {
                        "manager": "topolet",
                        "operation": "Apply",
                        "fieldsV1": {"f:zones": {"k:[[": 5, 'k:{"name":"node-0"}': 5}},
                    }
                ]
            },
            "spec": {"devices": [{"type": []}]},
        },
    ],
)
def test_a_malformed_stored_object_is_replaced(stored: Object) -> None:
    zone = {"name": "node-0", "resources": []}
    wanted: Object = {"metadata": {"name": "n"}, "zones": [zone]}
    found = patch(wanted, stored, "topolet", lambda path, name: True)
    assert found is not None
    assert zone in found["zones"]
    assert with_stored_amounts(status("n", {"a": 5}), stored) == status("n", {"a": 5})
    device_object.with_others({"metadata": {"name": "n"}, "spec": {"devices": []}}, stored)
