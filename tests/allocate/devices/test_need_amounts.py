"""The amounts that one device gives, by the capacity of the device and by the pod's hint."""

from __future__ import annotations

import pytest

from agent.allocate.devices.need import filled, hinted
from agent.model.devices.device_allocation import DeviceAllocateStrategy, DeviceHint, Exclusion
from agent.model.devices.device_request import type_requests
from tests.allocate.devices.builders import CORE, MEMORY, RATIO, RDMA

GIB = 1 << 30


@pytest.mark.parametrize(
    ("per", "capacity", "expected"),
    [
        ({RATIO: 60}, {MEMORY: 8 * GIB}, {RATIO: 60, MEMORY: 8 * GIB * 60 // 100}),
        ({MEMORY: 4 * GIB}, {MEMORY: 8 * GIB}, {MEMORY: 4 * GIB, RATIO: 50}),
        ({MEMORY: 2 * GIB}, {MEMORY: 3 * GIB}, {MEMORY: 2 * GIB, RATIO: 66}),
        ({CORE: 50}, {MEMORY: 8 * GIB}, {CORE: 50}),
        ({RATIO: 60}, {RATIO: 100}, {RATIO: 60}),
    ],
    ids=str,
)
def test_the_unit_that_was_not_requested_is_derived(
    per: dict[str, int], capacity: dict[str, int], expected: dict[str, int]
) -> None:
    assert filled(per, capacity) == expected


@pytest.mark.parametrize(
    ("amount", "hint", "matching", "count", "each"),
    [
        (50, None, 4, 1, 50),
        (50, DeviceHint(), 4, 1, 50),
        (50, DeviceHint(strategy=DeviceAllocateStrategy.APPLY_FOR_ALL), 3, 3, 50),
        (50, DeviceHint(strategy=DeviceAllocateStrategy.APPLY_FOR_ALL), 0, 0, 50),
        (4, DeviceHint(strategy=DeviceAllocateStrategy.REQUESTS_AS_COUNT), 8, 4, 1),
        (
            4,
            DeviceHint(
                strategy=DeviceAllocateStrategy.REQUESTS_AS_COUNT, exclusion=Exclusion.DEVICE_LEVEL
            ),
            8,
            4,
            100,
        ),
        (300, DeviceHint(strategy=DeviceAllocateStrategy.APPLY_FOR_ALL), 8, 3, 100),
        (300, DeviceHint(strategy=DeviceAllocateStrategy.REQUESTS_AS_COUNT), 8, 3, 100),
    ],
)
def test_hints(amount: int, hint: DeviceHint | None, matching: int, count: int, each: int) -> None:
    request = hinted(type_requests({RDMA: amount})["rdma"], hint, matching)
    assert (request.count, request.per) == (count, {RDMA: each})
