from __future__ import annotations

import pytest

from agent.model.devices.device_allocation import (
    DEVICE_ALLOCATE_HINT,
    DEVICE_JOINT_ALLOCATE,
    GPU_PARTITION_SPEC,
    AllocatedDevice,
    DeviceAllocateStrategy,
    DeviceAmounts,
    DeviceHint,
    DevicePreferences,
    DeviceTopologyScope,
    Exclusion,
    Joint,
    JointScope,
    PartitionSpec,
    allocated,
    allocated_devices,
    device_preferences,
    sum_amounts,
)
from agent.model.devices.device_object import Device, DeviceTopology, Portion, portions
from agent.model.objects import LabelSelector
from agent.model.pod.annotations import DEVICE_ALLOCATED, AnnotationError

CORE = "koordinator.sh/gpu-core"
MEMORY = "koordinator.sh/gpu-memory"


@pytest.mark.parametrize(
    ("text", "amounts"),
    [
        ("", {}),
        ("null", {}),
        ("{}", {}),
        ('{"gpu": null}', {}),
        ('{"gpu": [{"minor": 1}]}', {("gpu", 1): {}}),
        (
            '{"gpu":[{"minor":0,"resources":{"koordinator.sh/gpu-core":"50",'
            '"koordinator.sh/gpu-memory":"8Gi"},"id":"GPU-0"}],'
            '"rdma":[{"minor":1,"resources":{"koordinator.sh/rdma":1},'
            '"extension":{"vfs":[{"minor":-1,"busID":"0000:1f:00.2"}]}}]}',
            {("gpu", 0): {CORE: 50, MEMORY: 8 << 30}, ("rdma", 1): {"koordinator.sh/rdma": 1}},
        ),
        (
            '{"gpu":[{"minor":0,"resources":{"koordinator.sh/gpu-core":"50"}},'
            '{"minor":0,"resources":{"koordinator.sh/gpu-core":"-20"}},'
            '{"minor":0,"resources":{"koordinator.sh/gpu-core":"30"}}]}',
            {("gpu", 0): {CORE: 80}},
        ),
    ],
)
def test_allocations_of_a_pod(text: str, amounts: DeviceAmounts) -> None:
    assert allocated({DEVICE_ALLOCATED: text}) == amounts


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x", "is not JSON"),
        ("[]", "Expected `object"),
        ('{"gpu":[{"resources":{}}]}', "missing required field `minor`"),
        (
            '{"gpu":[{"minor":0},{"minor":1,"resources":{"a":"x"}}]}',
            r"gpu\[1\].*'x' is not a quantity",
        ),
    ],
)
def test_invalid_annotations_are_named(text: str, message: str) -> None:
    with pytest.raises(AnnotationError, match=message):
        allocated({DEVICE_ALLOCATED: text})


def test_amounts_of_pods_that_share_a_device_are_added() -> None:
    half: DeviceAmounts = {("gpu", 0): {CORE: 50}}
    amounts = sum_amounts([half, half, {("gpu", 1): {CORE: 100}}])
    assert amounts == {("gpu", 0): {CORE: 100}, ("gpu", 1): {CORE: 100}}
    assert half == {("gpu", 0): {CORE: 50}}
    gpu = Device("gpu", "u", 0, {CORE: 100}, topology=DeviceTopology(node=0))
    assert portions([gpu], amounts) == (Portion(CORE, 0, 100, 100, 100),)


def test_entries_of_an_allocation() -> None:
    text = (
        '{"gpu": [{"minor": 1, "id": "GPU-1", "resources": {"koordinator.sh/gpu-core": "50"}},'
        ' {"minor": 0}], "rdma": [{"minor": 2, "id": "0000:17:00.0", "extension":'
        ' {"vfs": [{"minor": 3, "busID": "0000:17:00.3"}], "other": {}}}], "fpga": null}'
    )
    assert allocated_devices({DEVICE_ALLOCATED: text}) == {
        "gpu": (AllocatedDevice(1, "GPU-1", {"koordinator.sh/gpu-core": 50}), AllocatedDevice(0)),
        "rdma": (AllocatedDevice(2, "0000:17:00.0", functions=("0000:17:00.3",)),),
        "fpga": (),
    }


def test_all_preferences() -> None:
    hint = (
        '{"rdma": {"selector": {"matchLabels": {"type": "a"}}, "vfSelector": {}, '
        '"allocateStrategy": "RequestsAsCount", "exclusivePolicy": "DeviceLevel"}, '
        '"gpu": {"requiredTopologyScope": "NUMANode"}, "fpga": null}'
    )
    found = device_preferences(
        {
            DEVICE_ALLOCATE_HINT: hint,
            DEVICE_JOINT_ALLOCATE: '{"deviceTypes": ["gpu", "rdma"], "requiredScope": "SamePCIe"}',
            GPU_PARTITION_SPEC: '{"allocatePolicy": "Restricted", "ringBusBandwidth": "1Ki"}',
        }
    )
    assert found == DevicePreferences(
        {
            "rdma": DeviceHint(
                LabelSelector({"type": "a"}),
                LabelSelector(),
                DeviceAllocateStrategy.REQUESTS_AS_COUNT,
                exclusion=Exclusion.DEVICE_LEVEL,
            ),
            "gpu": DeviceHint(scope=DeviceTopologyScope.NUMA_NODE),
        },
        Joint(("gpu", "rdma"), JointScope.SAME_PCIE),
        PartitionSpec(restricted=True, bandwidth=1024),
    )


def test_no_preferences_and_minimal_ones() -> None:
    assert device_preferences({}) == DevicePreferences()
    assert (
        device_preferences({DEVICE_ALLOCATE_HINT: "", DEVICE_JOINT_ALLOCATE: "null"})
        == DevicePreferences()
    )
    least = device_preferences({DEVICE_JOINT_ALLOCATE: "{}", GPU_PARTITION_SPEC: "{}"})
    assert least == DevicePreferences({}, Joint(), PartitionSpec())


@pytest.mark.parametrize(
    ("key", "text", "reason"),
    [
        (DEVICE_ALLOCATE_HINT, "[]", "Expected `object | null`"),
        (DEVICE_ALLOCATE_HINT, '{"gpu": {"requiredTopologyScope": "Rack"}}', "'Rack'"),
        (DEVICE_JOINT_ALLOCATE, '{"deviceTypes": "gpu"}', "deviceTypes"),
        (GPU_PARTITION_SPEC, '{"allocatePolicy": "Any"}', "'Any'"),
        (
            GPU_PARTITION_SPEC,
            '{"ringBusBandwidth": "x"}',
            "ringBusBandwidth: 'x' is not a quantity",
        ),
        (GPU_PARTITION_SPEC, "{", "is not JSON"),
    ],
)
def test_invalid_preferences(key: str, text: str, reason: str) -> None:
    with pytest.raises(AnnotationError) as raised:
        device_preferences({key: text})
    assert raised.value.key == key
    assert reason in str(raised.value)
