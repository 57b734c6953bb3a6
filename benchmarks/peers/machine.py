"""What the machine of a benchmark does meanwhile, and the cgroup of the benchmark's processes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.fixtures.cgroups import make_cgroup, remove_cgroups, roots

_FILES = {"cpu": "cpu.shares", "cpuacct": "cpuacct.usage", "cpuset": "cpuset.cpus"}
"""By a controller of v1, a file of it."""


class CpuTimes(msgspec.Struct, frozen=True):
    """Seconds of all CPUs together."""

    idle: float
    stolen: float
    all: float

    @classmethod
    def now(cls) -> CpuTimes:
        ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
        hertz = os.sysconf("SC_CLK_TCK")
        return cls((ticks[3] + ticks[4]) / hertz, ticks[7] / hertz, sum(ticks) / hertz)


@contextmanager
def within(group: str) -> Iterator[None]:
    """The processes of the benchmark are in this cgroup, as a service of the machine is in its own,
    in each hierarchy of CPUs and of CPU time; afterwards they are where they were."""
    before = _groups()
    make_cgroup(group)
    try:
        for top in before:
            enter(top, group)
        yield
    finally:
        for top, of_before in before.items():
            enter(top, of_before)
        remove_cgroups(group)


def enter(top: Path, group: str) -> None:
    """Moves this process to a group of one hierarchy."""
    (top / group.strip("/") / "cgroup.procs").write_text(str(os.getpid()))


def weigh(group: str, shares: int) -> None:
    """Writes a weight as the kubelet does."""
    folder = cpu_hierarchy() / group.strip("/")
    if (folder / "cpu.shares").exists():
        (folder / "cpu.shares").write_text(str(shares))
    else:
        (folder / "cpu.weight").write_text(str(1 + (shares - 2) * 9999 // 262142))


def cpu_hierarchy() -> Path:
    """The folder of the controller of CPU time."""
    return next((root for root in roots() if (root / "cpu.shares").exists()), roots()[0])


def _groups() -> dict[Path, str]:
    """The group of this process, by the folder of the hierarchy."""
    by_name: dict[str, str] = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, names, group = line.split(":", 2)
        by_name.update(dict.fromkeys(names.split(","), group))
    first, *others = roots()
    if not others:
        return {first: by_name[""]}
    return {
        top: by_name[name]
        for top in (first, *others)
        for name, file in _FILES.items()
        if (top / file).exists()
    }
