from __future__ import annotations

from agent.model.devices.device_object import Device
from agent.model.devices.gpus import GpuReading
from agent.model.devices.holding import GpuUse
from agent.telemetry.metrics import AgentMetrics
from tests.telemetry.scrape import samples

GPU = Device("gpu", "GPU-1", 3, {"koordinator.sh/gpu-memory": 80}, healthy=False)
NIC = Device("rdma", "0000:1a:00.0", 0, {})


def test_units_and_names() -> None:
    metrics = AgentMetrics()
    reading = GpuReading("GPU-1", gpu_percent=25, sm_mhz=1410, power_milliwatts=70_500)
    usage = GpuUse("GPU-1", "ns/a", "main", 7, 50)
    metrics.devices.update(
        (GPU, NIC), (reading, GpuReading("GPU-removed", gpu_percent=1)), (usage,)
    )
    exported = {name: value for (name, _), value in samples(metrics).items() if "gpu" in name}
    assert exported == {
        "topolet_gpu_memory_bytes": 80,
        "topolet_gpu_utilization_ratio": 0.25,
        "topolet_gpu_sm_clock_hertz": 1.41e9,
        "topolet_gpu_power_watts": 70.5,
        "topolet_container_gpu_memory_used_bytes": 7,
        "topolet_container_gpu_utilization_ratio": 0.5,
    }
    healthy = {
        dict(labels)["type"]: value
        for (name, labels), value in samples(metrics).items()
        if name == "topolet_device_healthy"
    }
    assert healthy == {"gpu": 0, "rdma": 1}


def test_cards_without_a_driver_have_series() -> None:
    metrics = AgentMetrics()
    metrics.devices.update((), (), (), ("0000:07:00.0",), "DriverMismatch")
    exported = {name: dict(labels) for (name, labels), _ in samples(metrics).items()}
    assert exported["topolet_gpu_missing"] == {"pci_bus_id": "0000:07:00.0"}
    assert exported["topolet_gpu_driver_fault"] == {"reason": "DriverMismatch"}


def test_removed_devices_have_no_series() -> None:
    metrics = AgentMetrics()
    metrics.devices.update((GPU,), (GpuReading("GPU-1", gpu_percent=1),), ())
    metrics.devices.update((), (), ())
    assert not [name for name, _ in samples(metrics) if "gpu" in name or "device" in name]
