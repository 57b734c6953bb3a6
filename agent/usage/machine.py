"""The CPU time and the memory of the machine and of its NUMA nodes, by /proc and /sys, with the
formulas of koordlet (Koordinator: pkg/koordlet/util, cpuacct.go and meminfo.go); and the traffic of
its disks and networks."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec.structs import astuple

from agent.host.files import Tree
from agent.host.log_once import Once
from agent.usage.resctrl import Resctrl
from agent.usage.schedstat import Schedstat
from agent.usage.traffic import DiskTraffic, NetworkTraffic, PodNetworks, disks, interfaces
from agent.usage.waits import NOTHING_OF_THE_MACHINE, Stalls, stalls

log = logging.getLogger(__name__)

TICKS_PER_SECOND: Final = 100.0
"""USER_HZ of every architecture that Kubernetes runs on."""

_BUSY: Final = (0, 1, 2, 5, 6)
"""The fields user, nice, system, irq and softirq of a line of /proc/stat
(Documentation/filesystems/proc.rst). Time of guests is contained in user and nice."""
_MAX_DEVICES: Final = 256
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


class GroupMemory(msgspec.Struct, frozen=True):
    """The memory of a cgroup in bytes, with that of the groups in it."""

    used: int
    """Without page cache."""
    used_with_page_cache: int
    major_faults: int | None = None
    """The accesses that waited for a disk, as a counter; None if the kernel does not count them."""


def group_memory(stat: str) -> GroupMemory | None:
    """From the text of memory.stat of v1 or v2; None if a field is missing."""
    fields = _pairs(stat)
    prefix = "total_" if "total_inactive_anon" in fields else ""
    try:
        used, cached = (
            sum(int(fields[f"{prefix}{name}"]) for name in names) for names in (_ANONYMOUS, _CACHED)
        )
    except (KeyError, ValueError):
        return None
    return GroupMemory(used, used + cached, _number(fields.get(f"{prefix}{_MAJOR_FAULTS}", "")))


_ANONYMOUS: Final = ("inactive_anon", "active_anon", "unevictable")
_CACHED: Final = ("active_file", "inactive_file")
_MAJOR_FAULTS: Final = "pgmajfault"


def major_faults(vmstat: str) -> int | None:
    """From the text of /proc/vmstat."""
    return _number(_pairs(vmstat).get(_MAJOR_FAULTS, ""))


def _pairs(text: str) -> dict[str, str]:
    words = text.split()
    return dict(zip(words[::2], words[1::2], strict=False))


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


class Machine:
    """Reads the files below a root."""

    def __init__(self, root: str) -> None:
        self._tree = Tree(root)
        self._absent = Once(log)
        self._schedstat = Schedstat(root)
        self._threads: Mapping[int, float] = {}
        self._threads_cpu_seconds = 0.0
        self.resctrl = Resctrl(self._tree)
        self.pod_networks = PodNetworks(self._tree)

    def busy_seconds(self) -> Mapping[int, float]:
        return busy_seconds(self._tree.text("proc/stat") or "")

    def memory(self) -> MachineMemory | None:
        return machine_memory(self._tree.text("proc/meminfo") or "")

    def numa_memory_bytes(self, node: int) -> int | None:
        return numa_memory_bytes(
            self._tree.text(f"sys/devices/system/node/node{node}/meminfo") or ""
        )

    def major_faults(self) -> int | None:
        return major_faults(self._text("proc/vmstat"))

    def disks(self) -> dict[str, tuple[str, DiskTraffic]]:
        """By its number, the name and the traffic of each disk that has been used."""
        counted = disks(self._text("proc/diskstats"), self._tree.names("sys/block"))
        used = [disk for disk in counted.items() if any(astuple(disk[1][1]))]
        return dict(used[:_MAX_DEVICES])

    def networks(self) -> dict[str, NetworkTraffic]:
        """The traffic of the devices that are not virtual ones, as those of pods are."""
        present = set(self._tree.names("sys/class/net"))
        physical = present.difference(self._tree.names("sys/devices/virtual/net"))
        # The link /proc/net leads to the network namespace of the reader.
        counted = interfaces(self._text("proc/1/net/dev"))
        return {name: counted[name] for name in sorted(physical & counted.keys())[:_MAX_DEVICES]}

    def kernel_threads_cpu_seconds(self) -> float | None:
        """The CPU time of all threads of the kernel that exist, or existed at an earlier call; None
        where the kernel does not tell it."""
        threads = self._schedstat.kernel_threads()
        if not threads:
            return None
        for thread, ran in threads.items():
            last = self._threads.get(thread, 0.0)
            # A smaller number is that of another thread with the same id.
            self._threads_cpu_seconds += ran - last if ran >= last else ran
        self._threads = threads
        return self._threads_cpu_seconds

    def stalls(self) -> Stalls:
        seconds = stalls(lambda resource: self._text(f"proc/pressure/{resource}"))
        return {key: stalled for key, stalled in seconds.items() if key != NOTHING_OF_THE_MACHINE}

    def _text(self, path: str) -> str:
        """Reads a file. One that can't be read is empty, and is reported once."""
        try:
            text = self._tree.text(path)
        except OSError:  # such as PSI that is off, or a process that is hidden
            text = None
        if text is None:
            self._absent.report(f"this kernel has no /{path}")
        return text or ""
