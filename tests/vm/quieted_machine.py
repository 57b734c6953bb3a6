"""What the features of quiet CPUs change on a machine, read without the code under test."""

from __future__ import annotations

import contextlib
import glob
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.fixtures.cgroups import MOUNTS
from tests.waiting import eventually

SLICE: Final = MOUNTS / "system.slice"
SLICE_CPUS: Final = f"{SLICE}/cpuset.cpus"
DEFAULT: Final = "/proc/irq/default_smp_affinity"
_FILES: Final = (
    "/proc/irq/*/smp_affinity_list",
    DEFAULT,
    "/sys/devices/virtual/workqueue/cpumask*",
    "/sys/class/net/*/queues/*/[rx]ps_cpus",
    "/sys/devices/system/cpu/cpu*/power/pm_qos_resume_latency_us",
    "/sys/devices/system/cpu/cpufreq/policy*/scaling_governor",
    SLICE_CPUS,
)


def machine_values() -> dict[str, str]:
    """By file, without files that can't be read."""
    values = {}
    for pattern in _FILES:
        for path in glob.glob(pattern):
            with contextlib.suppress(OSError):
                values[path] = Path(path).read_text().strip()
    return values


def isolated_groups() -> set[Path]:
    """The groups that are isolated partitions, valid or not."""
    files = MOUNTS.rglob("cpuset.cpus.partition")
    return {file.parent for file in files if file.read_text().startswith("isolated")}


@contextlib.contextmanager
def daemon_in_slice() -> Iterator[None]:
    """A process of the host in `system.slice`, which inherits its CPUs."""
    SLICE.mkdir()
    enter = f"echo $$ >{SLICE}/cgroup.procs; exec sleep 1000"
    with subprocess.Popen(["sh", "-c", enter]) as process:
        try:
            eventually("it is in the group", (SLICE / "cgroup.procs").read_text)
            yield
        finally:
            process.kill()
    SLICE.rmdir()
