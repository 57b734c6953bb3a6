from __future__ import annotations

import base64
import json

import msgspec
import pytest

from agent.allocate.devices.inventory import LinkTable
from agent.allocate.node_allocator.properties import (
    AllocatorRules,
    Imported,
    NodeProperties,
    node_properties,
)
from agent.allocate.policies_in_force import NodePolicies
from agent.model.cpu.policies import BindPolicy, GpuObjective, NumaPolicy
from agent.model.devices import holding, interconnect
from agent.model.devices.device_object import GPU_PARTITIONS, DeviceObject
from agent.model.devices.gpus import Ancestor, GpuPair
from agent.model.devices.holding import DEVICES_CHECKPOINTS, GPU_CHECKPOINTS, DeviceHolding, Form
from agent.model.devices.interconnect import GPU_LINKS
from agent.model.wire import patch
from tests.allocate.devices.builders import CORE, MEMORY, RATIO, gpu, nic
from tests.allocate.nodes import node_options

CARD = {CORE: 100, RATIO: 100, MEMORY: 1000}
DEVICES = (gpu(0), gpu(1), nic(0, functions=["0000:40:00.1", "0000:40:00.2"]))
PAIRS = {GPU_PARTITIONS: '{"2":[{"minors":[0,1]}]}'}
LINKED = interconnect.encode_links(
    DEVICES, [GpuPair(DEVICES[0].uuid, DEVICES[1].uuid, Ancestor.SWITCH, True, 2, 50_000)]
)
HONOR = {"node.koordinator.sh/gpu-partition-policy": "Honor"}
HOPPER = {"node.koordinator.sh/gpu-model": "H100-80GB", "node.koordinator.sh/gpu-vendor": "nvidia"}


def test_the_partition_table_and_policy_of_the_device_object() -> None:
    found = node_properties("n", {}, device=DeviceObject("n", DEVICES, HONOR, PAIRS))
    assert found.inventory is not None
    assert found.inventory.partitions.honor
    table = found.inventory.partitions.table
    assert table is not None
    assert [each.minors for each in table[2]] == [(0, 1)]
    found_by_node = node_properties("n", HONOR, device=DeviceObject("n", DEVICES, {}, PAIRS))
    assert found_by_node.inventory is not None
    assert not found_by_node.inventory.partitions.honor


def test_the_table_of_a_known_model() -> None:
    found = node_properties("n", {**HOPPER, **HONOR}, device=DeviceObject("n", DEVICES))
    assert found.inventory is not None
    assert found.inventory.partitions.honor
    assert found.inventory.partitions.table is not None


def test_nodes_of_one_model_share_their_table() -> None:
    one, two = (
        node_properties(name, {}, device=DeviceObject(name, DEVICES, {}, PAIRS)).inventory
        for name in "nm"
    )
    assert one is not None
    assert two is not None
    assert one.partitions is two.partitions


def linked(name: str, rules: AllocatorRules | None = None) -> LinkTable:
    device_object_ = DeviceObject(name, DEVICES, {}, LINKED)
    found = node_properties(name, {}, device=device_object_, rules=rules).inventory
    assert found is not None
    assert found.links is not None
    return found.links


def test_nodes_of_one_model_share_the_table_of_their_links() -> None:
    assert linked("n") is linked("m")
    assert linked("n").minors == (0, 1)


@pytest.mark.parametrize(
    ("objective", "score"),
    [(GpuObjective.BANDWIDTH, 50_000), (GpuObjective.BESTEFFORT, 250)],
)
def test_links_are_scored_by_the_objective(objective: GpuObjective, score: int) -> None:
    table = linked("n", AllocatorRules(gpu_objective=objective)).table
    assert table.score(0b11, 0b11)[0] == score


def test_invalid_annotations_are_reported_and_the_rest_counts() -> None:
    notes = {GPU_PARTITIONS: "{", GPU_LINKS: '[{"pairs":[[0,0]]}]', DEVICES_CHECKPOINTS: "3"}
    device = DeviceObject("n", DEVICES, {}, notes)
    found = node_properties("n", {}, device=device, faults=("earlier fault",))
    assert found.inventory is not None
    assert found.inventory.fleets.keys() == {"gpu", "rdma"}
    assert found.inventory.links is None
    first, *others = found.faults
    assert first == "earlier fault"
    assert [each.split(": ")[:2] for each in others] == [
        ["Device n", f"annotation {key}"] for key in notes
    ]


def test_unknown_labels_of_the_device_are_faults_that_name_it() -> None:
    label = "node.koordinator.sh/gpu-partition-policy"
    found = node_properties("n", {}, device=DeviceObject("n", DEVICES, {label: "honour"}))
    assert found.faults == (f"Device n: label {label}: 'honour' is not one of Honor, Prefer",)
    assert node_properties("n", {}, device=DeviceObject("n", (), {label: "Honor"})).faults == ()


def test_published_holdings_are_read() -> None:
    held = [
        DeviceHolding("u", "c", "nvidia.com/gpu", "gpu", "GPU-1", Form.REPLICA, "3"),
        DeviceHolding("v", "c", "nic", "rdma", DEVICES[2].uuid, Form.FUNCTION, "0000:40:00.2"),
        DeviceHolding("v", "d", "nic", "rdma", DEVICES[2].uuid, Form.OPEN),
    ]
    device = DeviceObject("n", DEVICES, {}, holding.encode(held))
    assert node_properties("n", {}, device=device).imported == {
        "u": Imported({("gpu", 1): CARD}, {}),
        "v": Imported({}, {("rdma", 0): frozenset({"0000:40:00.2"})}),
    }


@pytest.mark.parametrize("key", [DEVICES_CHECKPOINTS, GPU_CHECKPOINTS])
def test_an_allocate_response_in_the_annotation_uses_the_device_that_it_names(key: str) -> None:
    """The id does not identify a device; the response sets NVIDIA_VISIBLE_DEVICES=GPU-1."""
    response = patch((1,), patch((1,), "NVIDIA_VISIBLE_DEVICES") + patch((2,), "GPU-1"))
    entry = {
        "podUID": "u",
        "containerName": "c",
        "resourceName": "vendor.com/gpu",
        "deviceIDs": ["slot-0"],
        "allocResp": base64.b64encode(response).decode(),
    }
    device = DeviceObject("n", DEVICES, {}, {key: json.dumps([entry])})
    found = node_properties("n", {}, device=device)
    assert found.imported == {"u": Imported({("gpu", 1): CARD}, {})}
    assert found.faults == ()


def test_a_published_holding_of_a_missing_device_is_a_fault() -> None:
    held = [DeviceHolding("u", "c", "nvidia.com/gpu", "gpu", "GPU-9", Form.WHOLE)]
    device = DeviceObject("n", DEVICES, {}, holding.encode(held))
    found = node_properties("n", {}, device=device)
    assert found.imported == {}
    assert ["GPU-9" in fault for fault in found.faults] == [True]


def test_labels_for_shares_of_gpus() -> None:
    rules = AllocatorRules(unshared={"nvidia": frozenset({"T4"})})
    labels = {
        "node.koordinator.sh/gpu-model": "T4",
        "node.koordinator.sh/gpu-vendor": "nvidia",
        "koordinator.sh/gpu-isolation-provider": "HAMi-core",
    }
    found = node_properties("n", labels, rules=rules)
    assert (found.isolation, found.shares_gpus) == ("HAMi-core", False)
    other = {**labels, "node.koordinator.sh/gpu-vendor": "other"}
    assert node_properties("n", other, rules=rules).shares_gpus


@pytest.mark.parametrize(
    ("policies", "ratio", "expected"),
    [
        (NodePolicies(), 1.0, False),
        (NodePolicies(), 1.5, True),
        (NodePolicies(numa_label=NumaPolicy.BEST_EFFORT), 1.0, True),
        (NodePolicies(numa_label=NumaPolicy.NONE), 1.0, False),
        (NodePolicies(bind_label=BindPolicy.SPREAD_BY_PCPUS), 1.0, True),
        (NodePolicies(numa_kubelet=NumaPolicy.RESTRICTED, full_pcpus_only=True), 1.0, False),
    ],
)
def test_policies_that_apply_to_every_pod(
    policies: NodePolicies, ratio: float, expected: bool
) -> None:
    cpus = msgspec.structs.replace(node_options(), policies=policies, cpu_ratio=ratio)
    assert NodeProperties("n", cpus).binds_all == expected
    assert not NodeProperties("n").binds_all
