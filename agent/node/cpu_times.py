"""The time that each CPU was busy, as the kernel counts it."""

from __future__ import annotations

from typing import Final

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
