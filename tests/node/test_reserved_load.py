from __future__ import annotations

from pathlib import Path

import pytest

from agent.cgroup.hierarchy import Controllers
from agent.model.cpu.cpuset import CpuSet
from agent.node.reserved_load import LEAST_SECONDS, ReservedLoad, cpu_times

BE = "/kubepods/besteffort/podb/c"


class Machine:
    """The counters of two CPUs, of which CPU 0 is reserved, and of a BE container."""

    def __init__(self, folder: Path, version: int) -> None:
        self.now = 100.0
        self._ticks = [0, 0]
        self._all_ticks = 0
        self._be_seconds = 0.0
        self._stat = folder / "proc/stat"
        self._stat.parent.mkdir()
        root = folder / "cgroup"
        self._used = root / BE[1:] / "cpu.stat"
        if version == 1:
            self._used = root / "cpu,cpuacct" / BE[1:] / "cpuacct.usage"
        self._used.parent.mkdir(parents=True)
        if version == 1:
            for file in ("cpu.shares", "cpuacct.usage"):
                (root / "cpu,cpuacct" / file).touch()
        else:
            (root / "cgroup.controllers").write_text("cpuset cpu\n")
        self._load = ReservedLoad(str(self._stat.parent), Controllers(str(root)), lambda: self.now)

    def full(
        self, *, busy: float, be_cpus: float, seconds: float = LEAST_SECONDS, pods: bool = True
    ) -> bool:
        """After these seconds, in which CPU 0 was busy for this part of the time and the BE
        container used this many CPUs."""
        self.now += seconds
        self._all_ticks += round(100 * seconds)
        self._ticks[0] += round(100 * seconds * busy)
        self._be_seconds += be_cpus * seconds
        lines = [
            f"cpu{n} {used} 0 0 {self._all_ticks - used}" for n, used in enumerate(self._ticks)
        ]
        self._stat.write_text("\n".join(lines))
        if self._used.name == "cpu.stat":
            self._used.write_text(f"usage_usec {self._be_seconds * 1e6:.0f}\nuser_usec 0\n")
        else:
            self._used.write_text(f"{self._be_seconds * 1e9:.0f}\n")
        return self._load.full(CpuSet([0]), {BE} if pods else set())


@pytest.mark.parametrize("version", [1, 2])
def test_be_pods_leave_busy_reserved_cpus_and_return_once_they_fit_there(
    tmp_path: Path, version: int
) -> None:
    machine = Machine(tmp_path, version)
    assert not machine.full(busy=1.0, be_cpus=1.0), "one reading shows no load"
    assert not machine.full(busy=0.8, be_cpus=0.8)
    assert machine.full(busy=0.95, be_cpus=0.95)
    assert machine.full(busy=0.4, be_cpus=0.8), "they still use most of a CPU"
    assert not machine.full(busy=0.1, be_cpus=0.2)


def test_load_is_measured_at_most_once_in_some_seconds(tmp_path: Path) -> None:
    machine = Machine(tmp_path, 2)
    machine.full(busy=0, be_cpus=0)
    assert not machine.full(busy=1, be_cpus=1, seconds=LEAST_SECONDS - 1)
    assert machine.full(busy=1, be_cpus=1, seconds=1)


def test_new_be_pods_begin_on_the_reserved_cpus(tmp_path: Path) -> None:
    machine = Machine(tmp_path, 2)
    machine.full(busy=1, be_cpus=1)
    assert machine.full(busy=1, be_cpus=1)
    assert not machine.full(busy=1, be_cpus=0, pods=False)
    assert not machine.full(busy=1, be_cpus=1)


STAT = """cpu  9 9 9 9 9 9 9 9 9 9
cpu0 10 5 5 70 10 0 0 0 3 0
cpu11 0 0 0 100 0 0 0 0 0 0
intr 1 2 3
"""


def test_times_of_proc_stat() -> None:
    assert cpu_times(STAT) == {0: (20, 100), 11: (0, 100)}


@pytest.mark.parametrize("line", ["cpu1", "cpu1 a b c d", "cpux 1 2 3 4", "cpu1 1 2 3", ""])
def test_lines_without_times_are_left_out(line: str) -> None:
    assert cpu_times(line) == {}
