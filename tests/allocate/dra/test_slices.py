"""ResourceSlices of a node."""

from __future__ import annotations

import json

import pytest

from agent.allocate.dra.groups import GroupRules, groups
from agent.allocate.dra.slices import (
    MOST_DEVICES,
    MOST_WITH_LISTS,
    Device,
    devices,
    is_stored,
    lacks_parts,
    pcie_roots,
    slices,
)
from agent.model.cpu import layout as layouts
from agent.model.cpu.cpuset import EMPTY, CpuSet
from agent.model.cpu.policies import CpuGrouping
from agent.model.devices.pci import Function
from agent.model.devices.resource_slice import PCIE_ROOT, DraDevice, decode
from conformance import machines
from tests.allocate.dra.node import ALL, FOUR_NODES, topology

LAYOUT = layouts.of_topology(FOUR_NODES)


def test_a_device_is_a_numa_node_with_cpus_memory_and_huge_pages() -> None:
    claimed = CpuSet.parse("8-10")
    _, of_node, *_ = groups(
        FOUR_NODES, LAYOUT, ALL - CpuSet((15,)), claimed, GroupRules(), {}, pool_left=True
    )
    (device,) = devices((of_node,), LAYOUT, whole_cores=False)
    assert device == {
        "name": "numa-node-1",
        "allowMultipleAllocations": True,
        "attributes": {
            "resource.kubernetes.io/numaNode": {"int": 1},
            "cpu.topolet.io/grouping": {"string": "numa-node"},
            "cpu.topolet.io/socketID": {"int": 0},
            "cpu.topolet.io/smt": {"bool": True},
            "cpu.topolet.io/threadsPerCore": {"int": 2},
            "cpu.topolet.io/l3Count": {"int": 2},
            "cpu.topolet.io/freeCores": {"int": 1},
            "cpu.topolet.io/cpuIDs": {"string": "8-14"},
        },
        "capacity": {
            "cpu.topolet.io/cpu": {
                "value": "7",
                "requestPolicy": {"default": "1", "validRange": {"min": "1", "step": "1"}},
            },
            "cpu.topolet.io/memory": {
                "value": "7Gi",
                "requestPolicy": {"default": "0", "validRange": {"min": "0"}},
            },
            "cpu.topolet.io/hugepages_2Mi": {
                "value": "1Gi",
                "requestPolicy": {"default": "0", "validRange": {"min": "0", "step": "2Mi"}},
            },
        },
    }


def test_a_device_of_the_least_amount_has_no_range_of_amounts() -> None:
    """The API server refuses a step that does not fit."""
    of_node = groups(FOUR_NODES, LAYOUT, CpuSet((3,)), EMPTY, GroupRules(), {}, pool_left=True)
    (device,) = devices(of_node, LAYOUT, whole_cores=False)
    policy = {"default": "1", "validValues": ["1"]}
    assert device["capacity"]["cpu.topolet.io/cpu"] == {"value": "1", "requestPolicy": policy}


def test_amounts_are_whole_cores_where_a_node_gives_no_others() -> None:
    rules = GroupRules(whole_cores=True)
    of_node = groups(FOUR_NODES, LAYOUT, ALL, EMPTY, rules, {}, pool_left=True)
    first, *_ = devices(of_node, LAYOUT, whole_cores=True)
    policy = {"default": "2", "validRange": {"min": "2", "step": "2"}}
    assert first["capacity"]["cpu.topolet.io/cpu"] == {"value": "8", "requestPolicy": policy}


def test_a_device_with_less_than_a_whole_core_is_left_out_there() -> None:
    """The API server refuses the slice of a device whose capacity is below its least amount."""
    online = topology(tuple(cpu for cpu in FOUR_NODES.cpus if cpu.id not in (1, 2, 3)))
    layout = layouts.of_topology(online)
    rules = GroupRules(CpuGrouping.L3_CACHE, whole_cores=True)
    of_node = groups(online, layout, ALL, EMPTY, rules, {}, pool_left=True)
    assert str(of_node[0].cpus) == "0"
    published = devices(of_node, layout, whole_cores=True)
    assert [device["name"] for device in published[:2]] == ["l3-cache-1", "l3-cache-2"]


@pytest.mark.parametrize(
    ("minor", "field", "of_part", "of_core"),
    [
        (35, "", {}, {}),
        (
            36,
            "nodeAllocatableResourceMappings",
            {"capacityKey": "cpu.topolet.io/cpu", "allocationMultiplier": "1"},
            {"allocationMultiplier": "2"},
        ),
        (
            37,
            "nodeAllocatableResources",
            {"mapping": {"capacityKey": "cpu.topolet.io/cpu", "capacityMultiplier": "1"}},
            {"mapping": {"deviceMultiplier": "2"}},
        ),
    ],
)
def test_a_scheduler_may_count_claims_as_requests(
    minor: int, field: str, of_part: dict[str, str], of_core: dict[str, str]
) -> None:
    """KEP-5517 has another field in each version that knows it. From 1.37 on a server refuses it
    for a Node whose kubelet does not declare the feature."""

    def device(grouping: CpuGrouping, of_server: int, *, counted: bool = True) -> Device:
        rules = GroupRules(grouping)
        of_node = groups(FOUR_NODES, LAYOUT, ALL, EMPTY, rules, {}, pool_left=True)
        return devices(of_node, LAYOUT, whole_cores=False, minor=of_server, counted=counted)[0]

    part, core = device(CpuGrouping.NUMA_NODE, minor), device(CpuGrouping.CORE, minor)
    assert part.get(field, {}).get("cpu", {}) == of_part
    assert core.get(field, {}) == ({"cpu": of_core} if of_core else {})
    assert {*part.get(field, {})} in ({"cpu", "memory", "hugepages-2Mi"}, set())
    dropped = device(CpuGrouping.NUMA_NODE, 0)
    undeclared = device(CpuGrouping.NUMA_NODE, minor, counted=False)
    assert undeclared == (part if minor == 36 else dropped)
    assert is_stored(part, part)
    assert is_stored(dropped, part) is (minor < 37), "1.36 drops fields of gates that are off"
    assert not is_stored(core, part)
    assert is_stored(part, dropped) is (minor < 36)


def test_a_server_that_gives_devices_only_as_a_whole_has_what_was_written() -> None:
    """Its gate DRAConsumableCapacity is off, as before Kubernetes 1.36: otherwise each of its
    answers would cause another write."""
    of_node = groups(FOUR_NODES, LAYOUT, ALL, EMPTY, GroupRules(), {}, pool_left=True)
    part = devices(of_node, LAYOUT, whole_cores=False, minor=36)[0]
    amounts = {name: {"value": capacity["value"]} for name, capacity in part["capacity"].items()}
    dropped = {"name": part["name"], "attributes": part["attributes"], "capacity": amounts}
    assert is_stored(dropped, part)
    assert lacks_parts(dropped)
    assert not lacks_parts(part)
    amounts["cpu.topolet.io/cpu"] = {"value": "3"}
    assert not is_stored(dropped, part)


def test_a_large_node_has_several_slices_of_one_pool() -> None:
    machine = topology(tuple(machines.cpus((2, 1, 100, 2), "adjacent", None)))
    layout = layouts.of_topology(machine)
    rules = GroupRules(CpuGrouping.CORE)
    of_node = groups(machine, layout, machine.online, EMPTY, rules, {}, pool_left=True)
    assert len(of_node) == 200
    objects = slices("n1", "", devices(of_node, layout, whole_cores=True), 7)
    assert [each["metadata"]["name"] for each in objects] == [
        "n1-cpu.topolet.io-00",
        "n1-cpu.topolet.io-01",
    ]
    assert [len(each["spec"]["devices"]) for each in objects] == [MOST_DEVICES, 72]
    pool = {"name": "n1", "generation": 7, "resourceSliceCount": 2}
    assert all(each["spec"]["pool"] == pool for each in objects)
    device = objects[0]["spec"]["devices"][0]
    assert not {"capacity", "allowMultipleAllocations"} & device.keys()
    # The node's own reader of slices understands them.
    located = decode(json.dumps(objects[1]).encode())
    assert located[DraDevice("cpu.topolet.io", "n1", "core-398")].nodes == CpuSet((1,))


def test_a_device_is_near_to_the_pcie_roots_of_its_numa_node() -> None:
    """A device with more roots than the API has values for is left without: a list of some would
    keep claims from the others."""
    functions = [
        Function("0000:18:00.0", "pci0000:17", node=0),
        Function("0000:01:00.0", "pci0000:00", node=0),
        Function("0000:02:00.0", "pci0000:00", node=0),
        Function("0000:03:00.0", "pci0000:03"),
        Function("0000:04:00.0", node=1),
        *(Function(f"0000:{bus:02x}:00.0", f"pci0000:{bus:02x}", node=2) for bus in range(64)),
    ]
    roots = pcie_roots(functions)
    of_node = groups(FOUR_NODES, LAYOUT, ALL, EMPTY, GroupRules(), {}, pool_left=True)
    first, *others = devices(of_node, LAYOUT, whole_cores=False, roots=roots)
    assert first["attributes"][PCIE_ROOT] == {"strings": ["pci0000:00", "pci0000:17"]}
    assert not any(PCIE_ROOT in device["attributes"] for device in others)


def test_slices_with_lists_have_fewer_devices() -> None:
    machine = topology(tuple(machines.cpus((1, 1, 100, 1), "adjacent", None)))
    layout = layouts.of_topology(machine)
    rules = GroupRules(CpuGrouping.CORE)
    of_node = groups(machine, layout, machine.online, EMPTY, rules, {}, pool_left=True)
    cores = devices(of_node, layout, whole_cores=True, roots={0: ("pci0000:00",)})
    objects = slices("n1", "", cores, 1)
    assert [len(each["spec"]["devices"]) for each in objects] == [MOST_WITH_LISTS, 36]


@pytest.mark.parametrize("length", [1, 230, 231, 253])
def test_slices_of_a_node_with_a_long_name_have_names_of_their_own(length: int) -> None:
    of_node = groups(FOUR_NODES, LAYOUT, ALL, EMPTY, GroupRules(), {}, pool_left=True)
    published = devices(of_node, LAYOUT, whole_cores=False)
    names = []
    for last in "ab":
        node = ("n." * 127)[: length - 1] + last
        (of_node_name,) = slices(node, "u", published, 1)
        owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": "u"}
        assert of_node_name["metadata"]["ownerReferences"] == [owner]
        assert of_node_name["spec"]["pool"]["name"] == node
        names.append(of_node_name["metadata"]["name"])
    assert all(len(name) <= 253 and ".-" not in name for name in names)
    assert names[0] != names[1]


def test_a_list_that_is_too_long_for_the_api_is_left_out() -> None:
    machine = topology(tuple(machines.cpus((1, 1, 100, 2), "adjacent", None)))
    layout = layouts.of_topology(machine)
    odd = CpuSet(range(1, 200, 2))
    of_node = groups(machine, layout, odd, EMPTY, GroupRules(), {}, pool_left=True)
    (device,) = devices(of_node, layout, whole_cores=False)
    assert "cpu.topolet.io/cpuIDs" not in device["attributes"]
