"""The CPU time and the memory in the kernel's texts."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from agent.usage.machine import (
    GroupMemory,
    Machine,
    MachineMemory,
    busy_seconds,
    group_memory,
    machine_memory,
    major_faults,
    numa_memory_bytes,
)
from agent.usage.traffic import DiskTraffic, NetworkTraffic

STAT = "cpu  9 9 9 9 9 9 9 9\ncpu0 100 20 30 5000 400 6 7 800 90 90\ncpu12 1 2 3 4 5 6 7\nintr 5\n"
KIB = 1024


def test_waiting_and_stolen_time_is_not_busy() -> None:
    assert busy_seconds(STAT) == {0: pytest.approx(1.63), 12: pytest.approx(0.19)}
    assert busy_seconds("cpu1 1 2 3\ncpu2 1 2 3 4 5 6 x\ncpux 1 2 3 4 5 6 7") == {}


def test_the_memory_of_the_machine() -> None:
    text = "MemTotal:  100 kB\nMemFree:  10 kB\nMemAvailable:  60 kB\nBuffers: 1 kB\n"
    memory = machine_memory(text)
    assert memory == MachineMemory(100 * KIB, 10 * KIB, 60 * KIB)
    assert (memory.used, memory.used_with_page_cache) == (40 * KIB, 90 * KIB)
    assert machine_memory("MemTotal: 100 kB\nMemFree: x kB") is None


def test_the_memory_of_a_numa_node() -> None:
    fields = {"MemTotal": 100, "MemFree": 10, "Active(file)": 5, "Inactive(file)": 6}
    lines = [f"Node 1 {name}:  {value} kB" for name, value in fields.items()]
    assert numa_memory_bytes("\n".join(lines)) is None
    assert numa_memory_bytes("\n".join([*lines, "Node 1 SReclaimable: 9 kB"])) == 70 * KIB


@pytest.mark.parametrize("prefix", ["", "total_"])
def test_the_memory_of_a_group_by_both_versions_of_cgroups(prefix: str) -> None:
    """In v1 the fields without prefix are those of the group alone."""
    values = {"inactive_anon": 1, "active_anon": 2, "unevictable": 4, "active_file": 8}
    text = "".join(f"{prefix}{name} {value}\n" for name, value in values.items())
    without_prefix = "inactive_anon 100\nactive_anon 100\npgmajfault 70\n" if prefix else ""
    assert group_memory(without_prefix + text) is None
    text += f"{prefix}inactive_file 16\n"
    assert group_memory(without_prefix + text) == GroupMemory(7, 31)
    assert group_memory(f"{without_prefix}{text}{prefix}pgmajfault 9") == GroupMemory(7, 31, 9)


def test_major_faults_of_the_machine() -> None:
    assert major_faults("nr_free_pages 5\npgfault 900\npgmajfault 12\npgsteal_kswapd 1") == 12
    assert major_faults("pgfault 900") is None


def test_the_traffic_of_used_disks_and_of_devices_that_are_not_virtual(tmp_path: Path) -> None:
    for folder in ("sys/block/sda", "sys/block/loop0", "proc/1/net"):
        (tmp_path / folder).mkdir(parents=True)
    for name, virtual in (("eth0", False), ("veth1", True), ("lo", True)):
        (tmp_path / "sys/class/net" / name).mkdir(parents=True)
        if virtual:
            (tmp_path / "sys/devices/virtual/net" / name).mkdir(parents=True)
    (tmp_path / "proc/diskstats").write_text(
        "7 0 loop0 0 0 0 0 0 0 0 0 0 0 0\n"
        "8 0 sda 10 1 16 5 20 2 32 6 0 7 8 0 0 0 0 0 0\n"
        "8 1 sda1 10 1 16 5 20 2 32 6 0 7 8\n"
    )
    (tmp_path / "proc/1/net/dev").write_text(
        "".join(f"  {name}: 1 2 0 0 0 0 0 0 3 4 0 0 0 0 0 0\n" for name in ("lo", "eth0", "veth1"))
    )
    machine = Machine(str(tmp_path))
    assert machine.disks() == {"8:0": ("sda", DiskTraffic(16 * 512, 32 * 512, 10, 20))}
    assert machine.networks() == {"eth0": NetworkTraffic(1, 3, 2, 4)}


def test_the_machines_stalls_are_those_that_have_a_meaning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    folder = tmp_path / "proc/pressure"
    folder.mkdir(parents=True)
    line = "avg10=0.00 avg60=0.00 avg300=0.00 total"
    (folder / "cpu").write_text(f"some {line}=2500000\nfull {line}=0\n")
    (folder / "memory").write_text(f"some {line}=2000\nfull {line}=1000\n")
    (folder / "io").mkdir()  # it can't be read, as where PSI is off
    machine = Machine(str(tmp_path))
    for _ in range(2):
        assert machine.stalls() == {
            ("cpu", "some"): 2.5,
            ("memory", "some"): 0.002,
            ("memory", "full"): 0.001,
        }
    assert caplog.messages == ["this kernel has no /proc/pressure/io"]


def test_what_cannot_be_read_is_absent_and_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    (tmp_path / "proc/1/net/dev").mkdir(parents=True)
    machine = Machine(str(tmp_path))
    for _ in range(2):
        assert (machine.networks(), machine.disks(), machine.major_faults()) == ({}, {}, None)
    assert caplog.messages == [
        f"this kernel has no /proc/{file}" for file in ("1/net/dev", "diskstats", "vmstat")
    ]


def test_the_time_of_kernel_threads_that_have_ended_stays_in_the_sum(tmp_path: Path) -> None:
    children = tmp_path / "proc/2/task/2/children"
    children.parent.mkdir(parents=True)
    (tmp_path / "proc/2/comm").write_text("kthreadd\n")
    machine = Machine(str(tmp_path))
    assert machine.kernel_threads_cpu_seconds() is None

    def seconds(threads: dict[int, float]) -> float | None:
        children.write_text(" ".join(map(str, threads)))
        for thread, ran in threads.items():
            (tmp_path / f"proc/{thread}").mkdir(exist_ok=True)
            (tmp_path / f"proc/{thread}/schedstat").write_text(f"{round(ran * 1e9)} 7 8")
        return machine.kernel_threads_cpu_seconds()

    assert seconds({3: 1.5, 9: 0.5}) == 2.0
    assert seconds({3: 1.5, 12: 0.25}) == 2.25
    assert seconds({}) is None, "nothing is counted twice after it"
    assert seconds({3: 1.5, 12: 0.25}) == 2.25
    assert seconds({3: 0.25, 9: 0.5}) == 3.0, "two new threads, one of them with an id as before"


def test_this_machine(tmp_path: Path) -> None:
    machine = Machine("/")
    assert sum(machine.busy_seconds().values()) > 0
    memory = machine.memory()
    assert memory is not None
    assert 0 < memory.used < memory.total
    nowhere = Machine(str(tmp_path))
    assert (nowhere.busy_seconds(), nowhere.memory(), nowhere.numa_memory_bytes(0)) == (
        {},
        None,
        None,
    )
    assert nowhere.stalls() == {}
    assert (nowhere.major_faults(), nowhere.disks(), nowhere.networks()) == (None, {}, {})
    assert (machine.major_faults() or 0) > 0
