"""Metrics of devices, which exist as long as the devices do."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from agent.model.devices import Device, DeviceType
from agent.model.gpus import GpuReading
from agent.model.gpuusers import GpuUse
from agent.model.nodestatus import GPU_MEMORY


class DeviceMetrics(Collector):
    """What was told last."""

    def __init__(self) -> None:
        self._devices: tuple[Device, ...] = ()
        self._readings: tuple[GpuReading, ...] = ()
        self._users: tuple[GpuUse, ...] = ()
        self._missing: tuple[str, ...] = ()
        self._fault = ""

    def told(
        self,
        devices: tuple[Device, ...],
        readings: tuple[GpuReading, ...],
        users: tuple[GpuUse, ...],
        missing: tuple[str, ...] = (),
        fault: str = "",
    ) -> None:
        """Takes the place of all that was told before. `missing`: PCI addresses of GPUs that their
        driver does not tell of; `fault`: why nobody can ask it."""
        self._devices, self._readings, self._users = devices, readings, users
        self._missing, self._fault = missing, fault

    def collect(self) -> Iterable[GaugeMetricFamily]:
        healthy = GaugeMetricFamily(
            "topolet_device_healthy", "Whether a device is well.", labels=["type", "id", "minor"]
        )
        for device in self._devices:
            labels = [device.type, device.uuid, str(device.minor)]
            healthy.add_metric(labels, int(device.healthy))
        families = [healthy, *self._lacking()]
        if any(each.type == DeviceType.GPU for each in self._devices):
            families += [*self._cards(), *self._used()]
        return families

    def _lacking(self) -> Iterable[GaugeMetricFamily]:
        if self._missing:
            missing = GaugeMetricFamily(
                "topolet_gpu_missing",
                "1 for each GPU that PCI has and the driver never told of.",
                labels=["bus"],
            )
            for bus in self._missing:
                missing.add_metric([bus], 1)
            yield missing
        if self._fault:
            fault = GaugeMetricFamily(
                "topolet_gpu_driver_fault",
                "1 while nobody can ask the GPUs' driver, by the reason.",
                labels=["reason"],
            )
            fault.add_metric([self._fault], 1)
            yield fault

    def _cards(self) -> Iterable[GaugeMetricFamily]:
        total = GaugeMetricFamily(
            "topolet_gpu_memory_bytes", "Memory of a GPU.", labels=["uuid", "minor"]
        )
        minors = {}
        for device in self._devices:
            if device.type == DeviceType.GPU:
                minors[device.uuid] = str(device.minor)
                if (memory := device.resources.get(GPU_MEMORY)) is not None:
                    total.add_metric([device.uuid, str(device.minor)], memory)
        yield total
        for name, text, field, scale in _READINGS:
            family = GaugeMetricFamily(name, text, labels=["uuid", "minor"])
            for reading in self._readings:
                value = getattr(reading, field)
                if value is not None and reading.uuid in minors:
                    family.add_metric([reading.uuid, minors[reading.uuid]], value * scale)
            yield family

    def _used(self) -> Iterable[GaugeMetricFamily]:
        labels = ["uuid", "pod", "container"]
        memory = GaugeMetricFamily(
            "topolet_gpu_container_memory_bytes",
            "Memory of a GPU that a container's processes have; without names: of none we know.",
            labels=labels,
        )
        busy = GaugeMetricFamily(
            "topolet_gpu_container_busy_ratio",
            "Part of the last second in which a container's processes kept the GPU busy.",
            labels=labels,
        )
        for each in self._users:
            names = [each.uuid, each.pod, each.container]
            if each.memory_bytes is not None:
                memory.add_metric(names, each.memory_bytes)
            if each.sm_percent is not None:
                busy.add_metric(names, each.sm_percent / 100)
        return memory, busy


_READINGS = (
    ("topolet_gpu_memory_used_bytes", "Memory in use.", "memory_used_bytes", 1.0),
    ("topolet_gpu_busy_ratio", "Part of the time with a kernel running.", "gpu_percent", 0.01),
    ("topolet_gpu_temperature_celsius", "Temperature of the GPU.", "temperature_celsius", 1.0),
    ("topolet_gpu_power_watts", "Power that it draws.", "power_milliwatts", 0.001),
    ("topolet_gpu_clock_hertz", "Clock of its processors.", "sm_mhz", 1e6),
    ("topolet_gpu_ecc_errors", "Uncorrected since the driver's start.", "ecc_uncorrected", 1.0),
)
"""Name, help, field of a reading, and what makes base units of it."""
