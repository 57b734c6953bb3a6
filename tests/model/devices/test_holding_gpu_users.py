from __future__ import annotations

import msgspec

from agent.model.devices.gpus import GpuProcess, GpuReading
from agent.model.devices.holding import GpuUse, gpu_users
from agent.model.pod.pods import Container, ContainerState
from tests.builders import pod

MAIN = Container("c", "main", ContainerState.RUNNING, "/kubepods/poda/c")
POD = msgspec.structs.replace(pod("a"), containers=(MAIN,))
GROUPS = {1: "/kubepods/poda/c", 2: "/kubepods/poda/c/worker", 3: "/system.slice/x", 4: None}


def used(*processes: GpuProcess) -> tuple[GpuUse, ...]:
    return gpu_users([GpuReading("GPU-1", processes=processes)], [POD], GROUPS.get)


def test_processes_in_any_cgroup_of_a_container_are_added_up() -> None:
    processes = (GpuProcess(1, 100, sm_percent=10), GpuProcess(2, 50))
    assert used(*processes) == (GpuUse("GPU-1", "ns/a", "main", 150, 10),)


def test_processes_outside_pods_are_added_up_without_a_pod() -> None:
    assert used(GpuProcess(3, 7), GpuProcess(4, 1), GpuProcess(1)) == (
        GpuUse("GPU-1", memory_bytes=8),
        GpuUse("GPU-1", "ns/a", "main"),
    )


def test_a_driver_that_does_not_report_processes() -> None:
    assert gpu_users([GpuReading("GPU-1")], [POD], GROUPS.get) == ()
