from __future__ import annotations

import pytest

from agent.model.annotations import AnnotationError
from agent.model.device_wishes import (
    DEVICE_ALLOCATE_HINT,
    DEVICE_JOINT_ALLOCATE,
    GPU_PARTITION_SPEC,
    DeviceAllocateStrategy,
    DeviceHint,
    DeviceTopologyScope,
    DeviceWishes,
    Exclusion,
    Joint,
    JointScope,
    PartitionSpec,
    wishes,
)
from agent.model.objects import LabelSelector


def test_all_that_can_be_said() -> None:
    hint = (
        '{"rdma": {"selector": {"matchLabels": {"type": "a"}}, "vfSelector": {}, '
        '"allocateStrategy": "RequestsAsCount", "exclusivePolicy": "DeviceLevel"}, '
        '"gpu": {"requiredTopologyScope": "NUMANode"}, "fpga": null}'
    )
    found = wishes(
        {
            DEVICE_ALLOCATE_HINT: hint,
            DEVICE_JOINT_ALLOCATE: '{"deviceTypes": ["gpu", "rdma"], "requiredScope": "SamePCIe"}',
            GPU_PARTITION_SPEC: '{"allocatePolicy": "Restricted", "ringBusBandwidth": "1Ki"}',
        }
    )
    assert found == DeviceWishes(
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


def test_nothing_said_and_the_least_that_can_be() -> None:
    assert wishes({}) == DeviceWishes()
    assert wishes({DEVICE_ALLOCATE_HINT: "", DEVICE_JOINT_ALLOCATE: "null"}) == DeviceWishes()
    least = wishes({DEVICE_JOINT_ALLOCATE: "{}", GPU_PARTITION_SPEC: "{}"})
    assert least == DeviceWishes({}, Joint(), PartitionSpec())


@pytest.mark.parametrize(
    ("key", "text", "reason"),
    [
        (DEVICE_ALLOCATE_HINT, "[]", "Expected `object | null`"),
        (DEVICE_ALLOCATE_HINT, '{"gpu": {"requiredTopologyScope": "Rack"}}', "'Rack'"),
        (DEVICE_JOINT_ALLOCATE, '{"deviceTypes": "gpu"}', "deviceTypes"),
        (GPU_PARTITION_SPEC, '{"allocatePolicy": "Any"}', "'Any'"),
        (GPU_PARTITION_SPEC, '{"ringBusBandwidth": "x"}', "ringBusBandwidth: 'x' is no quantity"),
        (GPU_PARTITION_SPEC, "{", "is not JSON"),
    ],
)
def test_what_can_not_be_understood(key: str, text: str, reason: str) -> None:
    with pytest.raises(AnnotationError) as raised:
        wishes({key: text})
    assert raised.value.key == key
    assert reason in str(raised.value)
