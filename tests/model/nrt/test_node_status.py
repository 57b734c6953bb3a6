from __future__ import annotations

import pytest
from msgspec.structs import replace

from agent.model.devices.device_object import Device
from agent.model.devices.gpus import GpuInfo
from agent.model.nrt.node_status import extended_resources, gpu_labels, status

GI = 1 << 30


def gpu(minor: int, *, healthy: bool = True, memory: int = 16 * GI) -> Device:
    amounts = {
        "koordinator.sh/gpu-core": 100,
        "koordinator.sh/gpu-memory": memory,
        "koordinator.sh/gpu-memory-ratio": 100,
    }
    return Device("gpu", f"GPU-{minor}", minor, amounts, healthy)


RDMA = Device("rdma", "0000:1f:00.0", 0, {"koordinator.sh/rdma": 100})
FPGA = Device("fpga", "f", 0, {"koordinator.sh/fpga": 100})


def test_healthy_devices_add_up() -> None:
    found = extended_resources([gpu(0), gpu(1), gpu(2, healthy=False), RDMA, FPGA])
    assert found == {
        "koordinator.sh/fpga": 100,
        "koordinator.sh/gpu": 200,
        "koordinator.sh/gpu-core": 200,
        "koordinator.sh/gpu-memory": 32 * GI,
        "koordinator.sh/gpu-memory-ratio": 200,
        "koordinator.sh/gpu.shared": 200,
        "koordinator.sh/rdma": 100,
    }


def test_no_devices_differ_from_unhealthy_devices_only() -> None:
    assert extended_resources([]) == {}
    assert set(extended_resources([gpu(0, healthy=False)]).values()) == {0}


@pytest.mark.parametrize(
    ("vendor", "reported"), [("nvidia", True), ("", True), ("huawei", False), ("metax", False)]
)
def test_whole_cards_are_reported_for_nvidia_only(vendor: str, reported: bool) -> None:
    found = extended_resources([gpu(0)], GpuInfo(vendor))
    assert ("koordinator.sh/gpu" in found) is reported
    assert found["koordinator.sh/gpu-core"] == 100


def test_a_withheld_card_is_not_shared() -> None:
    """Its amounts are listed as zeros."""
    withheld = replace(gpu(0), resources=dict.fromkeys(gpu(0).resources, 0))
    assert extended_resources([withheld, gpu(1)])["koordinator.sh/gpu.shared"] == 100


def test_capacity_and_allocatable_are_equal() -> None:
    body = status("n", {"koordinator.sh/rdma": 100, "koordinator.sh/gpu": 0})
    assert body == {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "n"},
        "status": {
            "capacity": {"koordinator.sh/gpu": "0", "koordinator.sh/rdma": "100"},
            "allocatable": {"koordinator.sh/gpu": "0", "koordinator.sh/rdma": "100"},
        },
    }


GPU_INFO = GpuInfo("nvidia", "NVIDIA A100-SXM4 80GB", "570.86.15")


def test_labels() -> None:
    assert gpu_labels(GPU_INFO, [gpu(0), RDMA]) == {
        "node.koordinator.sh/gpu-driver-version": "570.86.15",
        "node.koordinator.sh/gpu-model": "A100-SXM4-80GB",
        "node.koordinator.sh/gpu-vendor": "nvidia",
    }
    assert gpu_labels(GPU_INFO, [RDMA]) == {}
    assert gpu_labels(GpuInfo("huawei"), [gpu(0)]) == {"node.koordinator.sh/gpu-vendor": "huawei"}


def test_labels_of_gpu_feature_discovery_are_for_the_node_alone() -> None:
    found = gpu_labels(GPU_INFO, [gpu(0), gpu(1)], discovery=True)
    assert {key: value for key, value in found.items() if key.startswith("nvidia.com/")} == {
        "nvidia.com/cuda.driver-version.full": "570.86.15",
        "nvidia.com/cuda.driver-version.major": "570",
        "nvidia.com/cuda.driver-version.minor": "86",
        "nvidia.com/cuda.driver-version.revision": "15",
        "nvidia.com/gpu.count": "2",
        "nvidia.com/gpu.memory": "16384",
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB",
    }
    mixed = gpu_labels(GPU_INFO, [gpu(0), gpu(1, memory=GI)], discovery=True)
    assert "nvidia.com/gpu.memory" not in mixed


def test_label_values_are_valid_for_any_text_of_the_driver() -> None:
    info = GpuInfo("nvidia", "NVIDIA (x)/name " + "x" * 90, " 1 ")
    for value in gpu_labels(info, [gpu(0)], discovery=True).values():
        assert 0 < len(value) <= 63
        assert value[0].isalnum()
        assert value[-1].isalnum()
