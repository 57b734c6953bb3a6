"""Files of the machine as values of groups, so that they are written, journalled and given back as
files of cgroups are.

| value                      | group          | file                                               |
|----------------------------|----------------|----------------------------------------------------|
| `irq.affinity`             | `/24`          | `/proc/irq/24/smp_affinity_list`                   |
| `irq.default_affinity`     | `/`            | `/proc/irq/default_smp_affinity`                   |
| `workqueue.cpus`           | `/`            | `/sys/devices/virtual/workqueue/cpumask`           |
| `queue.rps_cpus`           | `/eth0/rx-0`   | `/sys/class/net/eth0/queues/rx-0/rps_cpus`         |
| `queue.xps_cpus`           | `/eth0/tx-0`   | `/sys/class/net/eth0/queues/tx-0/xps_cpus`         |
| `pm_qos.resume_latency_us` | `/cpu3`        | `power/pm_qos_resume_latency_us` of the CPU        |
| `cpufreq.governor`         | `/policy0`     | `cpufreq/policy0/scaling_governor`, which all CPUs |
|                            |                | of the policy have as their own                    |

From 6.8 the kernel takes the CPUs of isolated partitions off the mask of workqueues itself, and
keeps what was written in `cpumask_requested`: that is what is read there.

CPUs are Linux lists here, empty for none, also where the file has a mask. A file that is read-only
(a single CPU has no `rps_cpus`), or a device that left, is as a group that has ended."""

from __future__ import annotations

import os
from typing import Final, NamedTuple

from agent.cgroup.hierarchy import CgroupError, GroupGone, below
from agent.cgroup.limits import (
    GOVERNOR,
    IRQ_AFFINITY,
    IRQ_DEFAULT,
    RESUME_LATENCY,
    RPS_CPUS,
    WORKQUEUE_CPUS,
    XPS_CPUS,
)
from agent.host import files
from agent.model.cpu.cpuset import CpuSet, CpuSetError

_MAX_BYTES: Final = 1 << 16
_WORD_DIGITS: Final = 8
_CPU: Final = "sys/devices/system/cpu"


class _MachineFile(NamedTuple):
    folder: str
    """It has the folders of the groups."""
    name: str
    mask: bool = False
    read_name: str = ""
    """The file beside it that is read where it exists."""


_FILES: Final = {
    IRQ_AFFINITY: _MachineFile("proc/irq", "smp_affinity_list"),
    IRQ_DEFAULT: _MachineFile("proc/irq", "default_smp_affinity", mask=True),
    WORKQUEUE_CPUS: _MachineFile(
        "sys/devices/virtual/workqueue", "cpumask", mask=True, read_name="cpumask_requested"
    ),
    RPS_CPUS: _MachineFile("sys/class/net", "rps_cpus", mask=True),
    XPS_CPUS: _MachineFile("sys/class/net", "xps_cpus", mask=True),
    RESUME_LATENCY: _MachineFile(_CPU, "pm_qos_resume_latency_us"),
    GOVERNOR: _MachineFile(f"{_CPU}/cpufreq", "scaling_governor"),
}
_BETWEEN: Final = {
    RPS_CPUS: "queues",
    XPS_CPUS: "queues",
    RESUME_LATENCY: "power",
}
"""A folder behind the first part of the group."""


class MachineFiles:
    """The files of one machine. It keeps nothing.

    `root`: is where the host's files are."""

    def __init__(self, root: str = "/") -> None:
        self._root = root

    def look(self) -> None:
        """Each read is of that moment."""

    def has(self, group: str, file: str) -> bool:
        return os.path.exists(self.path(group, file))

    def read(self, group: str, file: str) -> str:
        """Raises CgroupError, GroupGone."""
        path = self.path(group, file)
        beside = os.path.join(os.path.dirname(path), _FILES[file].read_name)
        if _FILES[file].read_name and os.path.exists(beside):
            path = beside
        try:
            text = files.read(path, _MAX_BYTES).decode("ascii", "replace").strip()
            return str(CpuSet.parse_mask(text)) if _FILES[file].mask else text
        except ValueError as error:
            raise CgroupError(f"cannot understand {path!r}: {error}") from error
        except OSError as error:
            raise _error("read", path, error) from error

    def write(self, group: str, file: str, text: str) -> None:
        """In one write(2). Raises CgroupError, GroupGone."""
        path = self.path(group, file)
        try:
            line = mask_of(CpuSet.parse(text)) if _FILES[file].mask else text
        except CpuSetError as error:
            raise CgroupError(f"{file} of {group!r}: {error}") from error
        try:
            handle = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
            try:
                os.write(handle, f"{line}\n".encode("ascii"))
            finally:
                os.close(handle)
        except OSError as error:
            raise _error(f"write {text!r} to", path, error) from error

    def path(self, group: str, file: str) -> str:
        """Raises CgroupError for an invalid group or an unknown name."""
        if file not in _FILES:
            raise CgroupError(f"this machine has no file {file!r}")
        folder, name, *_ = _FILES[file]
        first, *rest = below(group).lstrip("/").split("/")
        parts = (first, _BETWEEN[file], *rest) if file in _BETWEEN else (first, *rest)
        return os.path.join(self._root, folder, *filter(None, parts), name)


def mask_of(cpus: CpuSet) -> str:
    """The mask of these CPUs."""
    digits = f"{sum(1 << cpu for cpu in cpus):x}"
    digits = digits.zfill(-(-len(digits) // _WORD_DIGITS) * _WORD_DIGITS)
    words = range(0, len(digits), _WORD_DIGITS)
    return ",".join(digits[start : start + _WORD_DIGITS] for start in words)


def _error(verb: str, path: str, error: OSError) -> CgroupError:
    kind = GroupGone if isinstance(error, FileNotFoundError) else CgroupError
    return kind(f"cannot {verb} {path!r}: {error.strerror}")
