"""The busy time of each CPU, and the load of the CPUs that the kubelet reserves, by `/proc/stat`
and the CPU time of BE pods."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Final

from agent.allocate.reserved_cpus import reserved_are_full
from agent.cgroup.hierarchy import Controllers
from agent.host.files import Tree
from agent.model.cpu.cpuset import CpuSet

_IDLE_TICKS: Final = 4
"""The number of fields up to idle time. The field after them, iowait, also counts as idle."""


def cpu_times(stat: str) -> dict[int, tuple[int, int]]:
    """By CPU, the time that was not idle and all time, in clock ticks, from the text of /proc/stat
    (Documentation/filesystems/proc.rst). Guest time is contained in user time."""
    times = {}
    for line in stat.splitlines():
        name, *words = line.split()[:9]
        if name.startswith("cpu") and name[3:].isdecimal():
            ticks = [int(word) for word in words if word.isdecimal()]
            if len(ticks) == len(words) >= _IDLE_TICKS:
                total = sum(ticks)
                times[int(name[3:])] = total - sum(ticks[3:5]), total
    return times


LEAST_SECONDS: Final = 5.0
"""The least time between two measurements. Without events a pass, and so a measurement, takes place
every `period-seconds`."""


class ReservedLoad:
    """Measures, while BE pods run, whether the CPUs have room for them. Keeps the last values."""

    def __init__(
        self, proc: str, controllers: Controllers, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._tree = Tree(proc)
        self._controllers = controllers
        self._clock = clock
        self._full = False
        self._measured: float | None = None
        self._times: dict[int, tuple[int, int]] = {}
        self._used_seconds: dict[str, float] = {}

    def full(self, reserved: CpuSet, groups: Collection[str]) -> bool:
        """Whether the load of the reserved CPUs leaves no room for BE pods.

        `groups`: the groups of their running containers."""
        if not groups:
            self._full, self._measured = False, None
            return False
        now, before = self._clock(), self._measured
        if before is not None and now - before < LEAST_SECONDS:
            return self._full
        times = cpu_times(self._tree.text("stat") or "")
        used_seconds = {
            group: used
            for group in groups
            if (used := self._controllers.cpu_seconds(group)) is not None
        }
        if before is not None:
            busy_cpus = sum(_share(self._times, times, cpu) for cpu in reserved)
            spent = (
                used - self._used_seconds.get(group, used) for group, used in used_seconds.items()
            )
            self._full = reserved_are_full(
                len(reserved), busy_cpus, sum(spent) / (now - before), before=self._full
            )
        self._measured, self._times, self._used_seconds = now, times, used_seconds
        return self._full


def _share(
    before: dict[int, tuple[int, int]], after: dict[int, tuple[int, int]], cpu: int
) -> float:
    """The part of the time in which a CPU was busy, 0 if unknown."""
    if cpu not in before or cpu not in after:
        return 0.0
    busy, total = (after[cpu][index] - before[cpu][index] for index in (0, 1))
    return busy / total if total > 0 else 0.0
