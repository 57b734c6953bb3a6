"""The CPU time and the memory in the kernel's texts."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from agent.usage.machine import (
    Machine,
    MachineMemory,
    busy_seconds,
    machine_memory,
    numa_memory_bytes,
    pod_memory_bytes,
)

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
def test_the_memory_of_a_pod_by_both_versions_of_cgroups(prefix: str) -> None:
    """In v1 the fields without prefix are those of the group alone."""
    values = {"inactive_anon": 1, "active_anon": 2, "unevictable": 4, "active_file": 8}
    text = "".join(f"{prefix}{name} {value}\n" for name, value in values.items())
    own = "inactive_anon 100\nactive_anon 100\n" if prefix else ""
    assert pod_memory_bytes(own + text) == 7
    assert pod_memory_bytes(own + text, page_cache=True) is None
    assert pod_memory_bytes(f"{own}{text}{prefix}inactive_file 16", page_cache=True) == 31


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
