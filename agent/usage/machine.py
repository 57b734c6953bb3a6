"""The CPU time and the memory of the machine and of its NUMA nodes, by /proc and /sys, with the
formulas of koordlet (Koordinator: pkg/koordlet/util, cpuacct.go and meminfo.go)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

import msgspec

from agent.host.files import Tree
from agent.host.log_once import Once
from agent.usage.waits import NOTHING_OF_THE_MACHINE, Stalls, stalls

log = logging.getLogger(__name__)

TICKS_PER_SECOND: Final = 100.0
"""USER_HZ of every architecture that Kubernetes runs on."""

_BUSY: Final = (0, 1, 2, 5, 6)
"""The fields user, nice, system, irq and softirq of a line of /proc/stat
(Documentation/filesystems/proc.rst). Time of guests is contained in user and nice."""
_PAGE_CACHE: Final = ("MemFree", "Active(file)", "Inactive(file)", "SReclaimable")


class MachineMemory(msgspec.Struct, frozen=True):
    """The memory of the machine in bytes."""

    total: int
    free: int
    available: int

    @property
    def used(self) -> int:
        """Without page cache that the kernel can reclaim."""
        return max(0, self.total - self.available)

    @property
    def used_with_page_cache(self) -> int:
        return max(0, self.total - self.free)


def busy_seconds(stat: str) -> dict[int, float]:
    """By CPU, the time that it was busy, from the text of /proc/stat."""
    seconds = {}
    for line in stat.splitlines():
        name, *words = line.split()
        if name.startswith("cpu") and name[3:].isdecimal():
            ticks = [int(words[at]) for at in _BUSY if words[at : at + 1] and words[at].isdecimal()]
            if len(ticks) == len(_BUSY):
                seconds[int(name[3:])] = sum(ticks) / TICKS_PER_SECOND
    return seconds


def machine_memory(meminfo: str) -> MachineMemory | None:
    """From the text of /proc/meminfo; None if a field is missing."""
    fields = _fields(meminfo)
    try:
        return MachineMemory(fields["MemTotal"], fields["MemFree"], fields["MemAvailable"])
    except KeyError:
        return None


def numa_memory_bytes(meminfo: str) -> int | None:
    """The memory in use on a NUMA node without page cache, from the text of its meminfo; None if a
    field is missing."""
    fields = _fields(meminfo)
    try:
        return max(0, fields["MemTotal"] - sum(fields[name] for name in _PAGE_CACHE))
    except KeyError:
        return None


def _fields(meminfo: str) -> dict[str, int]:
    """Bytes by field. In the file of a NUMA node `Node 0` is before the field."""
    fields = {}
    for line in meminfo.splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdecimal():
            fields[name.split()[-1]] = int(words[0]) * (1024 if words[1:] == ["kB"] else 1)
    return fields


def pod_memory_bytes(stat: str, *, page_cache: bool = False) -> int | None:
    """The memory of a cgroup, from the text of its memory.stat of v1 or v2; None if a field is
    missing. `page_cache`: with its page cache."""
    values: dict[str, int] = {}
    for line in stat.splitlines():
        name, _, value = line.partition(" ")
        if value.isdecimal():
            values[name] = int(value)
    names = (*_ANONYMOUS, *(_CACHED if page_cache else ()))
    prefix = "total_" if "total_inactive_anon" in values else ""
    try:
        return sum(values[f"{prefix}{name}"] for name in names)
    except KeyError:
        return None


_ANONYMOUS: Final = ("inactive_anon", "active_anon", "unevictable")
_CACHED: Final = ("active_file", "inactive_file")


class Machine:
    """Reads the files below a root."""

    def __init__(self, root: str) -> None:
        self._tree = Tree(root)
        self._absent = Once(log)

    def busy_seconds(self) -> Mapping[int, float]:
        return busy_seconds(self._tree.text("proc/stat") or "")

    def memory(self) -> MachineMemory | None:
        return machine_memory(self._tree.text("proc/meminfo") or "")

    def numa_memory_bytes(self, node: int) -> int | None:
        return numa_memory_bytes(
            self._tree.text(f"sys/devices/system/node/node{node}/meminfo") or ""
        )

    def stalls(self) -> Stalls:
        seconds = stalls(self._pressure)
        return {key: each for key, each in seconds.items() if key != NOTHING_OF_THE_MACHINE}

    def _pressure(self, resource: str) -> str:
        try:
            text = self._tree.text(f"proc/pressure/{resource}")
        except OSError:  # some kernels have the files while PSI is off
            text = None
        if text is None:
            self._absent.report(f"this kernel has no /proc/pressure/{resource}")
        return text or ""
