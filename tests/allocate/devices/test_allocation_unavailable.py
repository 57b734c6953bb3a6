from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import pytest

from agent.allocate.devices.allocation import Allocation, allocate, unavailable
from agent.allocate.devices.inventory import NodeDevices
from agent.model.devices.device_object import Device
from agent.model.devices.device_request import device_request
from tests.allocate.devices.builders import CARDS, GPU, HINT, MEMORY, RDMA, gpu, nic, node

DEVICES = (gpu(0), gpu(1), nic(0, functions=["v1", "v2"]), nic(1))
ANY_FUNCTION = {"rdma": {"vfSelector": {}}}
EXCLUSIVE = {"rdma": {"exclusivePolicy": "PCIeLevel"}}


def missing(
    amounts: Mapping[str, int],
    now: NodeDevices,
    hints: Mapping[str, Any] | None = None,
    devices: Iterable[Device] = DEVICES,
) -> str:
    """Checks an allocation that was made while no device was in use."""
    request = device_request(amounts, {HINT: msgspec.json.encode(hints or {}).decode()})
    assert request is not None
    offered = allocate(node(devices), request)
    assert isinstance(offered, Allocation)
    assert not unavailable(node(devices), request, offered)
    return unavailable(now, request, offered)


@pytest.mark.parametrize(
    ("amounts", "hints", "now", "message"),
    [
        ({CARDS: 1}, {}, node(DEVICES, {1: 100}, {0: 100}), ""),
        ({CARDS: 1}, {}, node(DEVICES, {0: 1}), "gpu 0 has 99 of 100 koordinator.sh/gpu-core left"),
        ({GPU: 50}, {}, node(DEVICES, {0: 50}), ""),
        ({GPU: 50}, {}, node(DEVICES, {0: 51}), "gpu 0 has 49 of 50 koordinator.sh/gpu-core left"),
        ({CARDS: 1}, {}, node(DEVICES[1:]), "gpu 0 (GPU-0) no longer exists"),
        ({CARDS: 1}, {}, node([]), "gpu 0 (GPU-0) no longer exists"),
        ({CARDS: 1}, {}, node([gpu(0, healthy=False)]), "gpu 0 is unhealthy"),
        ({RDMA: 1}, {}, node(DEVICES, nics={0: 99}), ""),
        (
            {RDMA: 1},
            ANY_FUNCTION,
            node(DEVICES, taken={("rdma", 0): frozenset({"v1"})}),
            "virtual function v1 of rdma 0 is no longer free",
        ),
        ({RDMA: 1}, ANY_FUNCTION, node(DEVICES, taken={("rdma", 0): frozenset({"v2"})}), ""),
        (
            {RDMA: 1},
            ANY_FUNCTION,
            node([nic(0, functions=["v2"])]),
            "virtual function v1 of rdma 0 is no longer free",
        ),
        (
            {RDMA: 1},
            EXCLUSIVE,
            node(DEVICES, nics={1: 1}),
            "rdma 0 no longer matches the pod's hint",
        ),
    ],
)
def test_missing_devices_are_named(
    amounts: dict[str, int], hints: dict[str, Any], now: NodeDevices, message: str
) -> None:
    assert missing(amounts, now, hints) == message


def test_another_card_with_the_same_minor_does_not_count() -> None:
    other = msgspec.structs.replace(gpu(0), uuid="GPU-new")
    assert missing({CARDS: 1}, node([other])) == "gpu 0 (GPU-0) no longer exists"


def test_resources_that_a_card_does_not_list_are_not_missing() -> None:
    memory_only = msgspec.structs.replace(gpu(0), resources={MEMORY: 1000})
    assert missing({MEMORY: 10}, node([memory_only]), devices=[memory_only]) == ""
