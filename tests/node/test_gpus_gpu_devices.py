"""GPUs as Devices, for the Device object and the Node."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from agent.model.devices.device_object import DeviceTopology, decode, encode
from agent.model.devices.gpus import (
    Gpu,
    GpuEvent,
    GpuInfo,
    GpuInventory,
    GpuReading,
    GpuReport,
    MigInstance,
    SilentGpu,
)
from agent.model.nrt.node_status import extended_resources, gpu_labels
from agent.node.gpu_health import GpuActions, GpuHealth, on_event, on_report
from agent.node.gpus import device_entries, gpu_info, restored

ACTIONS = GpuActions({})
NOW = 1_700_000_000


def gpu(index: int, **changes: Any) -> Gpu:
    fields: dict[str, Any] = {
        "product": "NVIDIA A100-SXM4-80GB",
        "minor": index,
        "memory_bytes": 80 << 30,
        **changes,
    }
    return Gpu(f"GPU-{index}", index, f"0000:{index:02x}:00.0", **fields)


def health_of(*gpus: Gpu) -> GpuHealth:
    report = GpuReport(
        inventory=GpuInventory("550.163.01", gpus=gpus),
        readings=tuple(GpuReading(each.uuid) for each in gpus),
    )
    return on_report(GpuHealth(), report, NOW, ACTIONS)


def test_a_whole_card_has_its_pci_topology() -> None:
    topology = DeviceTopology(0, 1, "0000:00:01.0", "0000:00:00.0")
    (device,) = device_entries(health_of(gpu(0, minor=3, module=5)), {"0000:00:00.0": topology})
    assert (device.type, device.uuid, device.minor, device.module) == ("gpu", "GPU-0", 3, 5)
    assert device.resources == {
        "koordinator.sh/gpu-core": 100,
        "koordinator.sh/gpu-memory": 80 << 30,
        "koordinator.sh/gpu-memory-ratio": 100,
    }
    assert (device.healthy, device.topology) == (True, topology)
    assert [each.type for each in device.conditions] == ["Healthy"]


def test_a_card_without_a_pci_function_has_its_address_only() -> None:
    (device,) = device_entries(health_of(gpu(7)), {})
    assert device.topology == DeviceTopology(bus="0000:07:00.0")


@pytest.mark.parametrize("instances", [(), (MigInstance("MIG-1", 1),)])
def test_a_card_in_mig_mode_has_no_whole_card_resources(instances: tuple[MigInstance, ...]) -> None:
    health = health_of(gpu(0, mig=False), gpu(1, mig=True, instances=instances))
    whole, split = device_entries(health, {})
    assert whole.resources["koordinator.sh/gpu-core"] == 100
    assert (split.resources, split.healthy) == ({}, True)
    assert split.labels == {"topolet.io/mig-instances": str(len(instances))}
    assert extended_resources((whole, split), gpu_info(health))["koordinator.sh/gpu"] == 100
    assert device_entries(restored((whole, split), ACTIONS), {}) == (whole, split)


def test_a_card_without_memory_of_its_own_has_the_memory_of_the_host() -> None:
    health = health_of(gpu(0, memory_bytes=None))
    assert "koordinator.sh/gpu-memory" not in device_entries(health, {})[0].resources
    (device,) = device_entries(health, {}, host_memory_bytes=1 << 37)
    assert device.resources["koordinator.sh/gpu-memory"] == 1 << 37


def test_cards_without_a_minor_come_after_those_with_one() -> None:
    health = health_of(gpu(0, minor=None), gpu(1, minor=4), gpu(2, minor=None), gpu(3, minor=0))
    assert [(each.uuid, each.minor) for each in device_entries(health, {})] == [
        ("GPU-3", 0),
        ("GPU-1", 4),
        ("GPU-0", 5),
        ("GPU-2", 6),
    ]


def test_a_missing_card_loses_its_minor_to_a_card_that_the_driver_lists_with_it() -> None:
    """A driver numbers its cards at each start, so another card may have the minor later."""
    before = health_of(gpu(0), gpu(1), gpu(2))
    moved = replace(gpu(2), index=1, minor=1)
    report = GpuReport(inventory=GpuInventory("550.163.01", gpus=(gpu(0), moved)))
    after = on_report(before, report, NOW, ACTIONS)
    assert [(each.uuid, each.minor, each.healthy) for each in device_entries(after, {})] == [
        ("GPU-0", 0, True),
        ("GPU-2", 1, True),
        ("GPU-1", 2, False),
    ]
    assert {card.gpu.uuid: card.gpu.index for card in after.cards} == {
        "GPU-0": 0,
        "GPU-1": -1,
        "GPU-2": 1,
    }


def test_a_lost_card_that_the_driver_still_lists_keeps_its_index() -> None:
    before = health_of(gpu(0), gpu(1))
    silent = (SilentGpu(1, "GpuLost"),)
    report = GpuReport(inventory=GpuInventory("550.163.01", gpus=(gpu(0),), silent=silent))
    assert [card.gpu.index for card in on_report(before, report, NOW, ACTIONS).cards] == [0, 1]


def test_an_unhealthy_card_is_listed_without_resources() -> None:
    health = on_event(health_of(gpu(0), gpu(1)), GpuEvent("GPU-0", 79), NOW, ACTIONS)
    found = device_entries(health, {})
    assert [each.healthy for each in found] == [False, True]
    assert extended_resources(found, gpu_info(health))["koordinator.sh/gpu"] == 100
    assert decode(encode("node", found)) == found


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        ((), GpuInfo()),
        ((gpu(0), gpu(1)), GpuInfo("nvidia", "NVIDIA A100-SXM4-80GB", "550.163.01")),
        ((gpu(0), gpu(1, product="Tesla T4")), GpuInfo("nvidia", "", "550.163.01")),
        # A lost card that is known only by its UUID has no model.
        (
            (gpu(0), gpu(1, product="")),
            GpuInfo("nvidia", "NVIDIA A100-SXM4-80GB", "550.163.01"),
        ),
    ],
)
def test_facts_common_to_all_cards(gpus: tuple[Gpu, ...], expected: GpuInfo) -> None:
    health = health_of(*gpus)
    assert gpu_info(health) == expected
    labels = gpu_labels(gpu_info(health), device_entries(health, {}))
    assert labels.get("node.koordinator.sh/gpu-driver-version", "") == expected.driver_version
