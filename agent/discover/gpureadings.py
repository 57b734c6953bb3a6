"""The current readings of the GPUs: use, processes, and the counters that show their health."""

from __future__ import annotations

import time
from typing import Any, Final

from agent.discover.nvml import MEMORY_V2, GpuGoneError, Nvml
from agent.model.gpus import GpuProcess, GpuReading, RemappedRows, SilentGpu

_SM, _MEMORY = 1, 2
_CORRECTED, _UNCORRECTED = 0, 1
_SINCE_LOAD: Final = 0
_RECOVERY_ACTION: Final = 230
_NO_INSTANCE: Final = 0xFFFFFFFF
_SAMPLED_MICROSECONDS: Final = 1_000_000


def readings(
    nvml: Nvml, handles: dict[str, Any], indices: dict[str, int]
) -> tuple[tuple[GpuReading, ...], tuple[SilentGpu, ...]]:
    """Of a card that stopped answering only that. Raises DriverGoneError."""
    found: list[GpuReading] = []
    silent: list[SilentGpu] = []
    for uuid, handle in handles.items():
        try:
            found.append(_reading(nvml, uuid, handle))
        except GpuGoneError as error:
            silent.append(SilentGpu(indices[uuid], error.fault, uuid))
    return tuple(found), tuple(silent)


def _reading(nvml: Nvml, uuid: str, handle: Any) -> GpuReading:
    ask = nvml.maybe
    rates = ask("nvmlDeviceGetUtilizationRates", handle)
    rows = ask("nvmlDeviceGetRemappedRows", handle)
    # Before Ampere pages are retired where later cards remap rows.
    pages = ask("nvmlDeviceGetRetiredPagesPendingStatus", handle) if rows is None else None
    return GpuReading(
        uuid,
        _used(nvml, handle),
        None if rates is None else rates.gpu,
        None if rates is None else rates.memory,
        ask("nvmlDeviceGetClockInfo", handle, _SM),
        ask("nvmlDeviceGetMaxClockInfo", handle, _SM),
        ask("nvmlDeviceGetClockInfo", handle, _MEMORY),
        ask("nvmlDeviceGetMaxClockInfo", handle, _MEMORY),
        ask("nvmlDeviceGetTemperature", handle, 0),
        ask("nvmlDeviceGetPowerUsage", handle),
        ask("nvmlDeviceGetTotalEnergyConsumption", handle),
        ask("nvmlDeviceGetTotalEccErrors", handle, _CORRECTED, _SINCE_LOAD),
        ask("nvmlDeviceGetTotalEccErrors", handle, _UNCORRECTED, _SINCE_LOAD),
        None if rows is None else RemappedRows(rows[0], rows[1], rows[2] != 0, rows[3] != 0),
        None if pages is None else pages != 0,
        _recovery_action(nvml, handle),
        _processes(nvml, handle),
    )


def _used(nvml: Nvml, handle: Any) -> int | None:
    info = nvml.maybe("nvmlDeviceGetMemoryInfo", handle, MEMORY_V2)
    if info is None:
        info = nvml.maybe("nvmlDeviceGetMemoryInfo", handle)
    return None if info is None else int(info.used)


def _recovery_action(nvml: Nvml, handle: Any) -> int | None:
    values = nvml.maybe("nvmlDeviceGetFieldValues", handle, [_RECOVERY_ACTION])
    return int(values[0].value.uiVal) if values and values[0].nvmlReturn == 0 else None


def _processes(nvml: Nvml, handle: Any) -> tuple[GpuProcess, ...] | None:
    """A process that computes and draws is listed once, as computing."""
    # The names without a version raise an error of their own where the driver is older.
    compute = nvml.maybe("nvmlDeviceGetComputeRunningProcesses_v3", handle)
    graphics = nvml.maybe("nvmlDeviceGetGraphicsRunningProcesses_v3", handle)
    if compute is None and graphics is None:
        return None
    since = time.time_ns() // 1000 - _SAMPLED_MICROSECONDS
    samples = nvml.maybe("nvmlDeviceGetProcessUtilization", handle, since) or ()
    used = {sample.pid: sample for sample in samples}
    told = [(each, True) for each in graphics or ()] + [(each, False) for each in compute or ()]
    found = {}
    for each, graphic in told:
        sample = used.get(each.pid)
        instance = each.gpuInstanceId
        found[each.pid, instance] = GpuProcess(
            each.pid,
            each.usedGpuMemory,
            None if instance == _NO_INSTANCE else instance,
            graphic,
            None if sample is None else sample.smUtil,
            None if sample is None else sample.memUtil,
        )
    return tuple(found[key] for key in sorted(found))
