"""Which boot of the machine this is: times of CLOCK_MONOTONIC only compare within one."""

from __future__ import annotations


def boot_id() -> str:
    """The kernel's name for this boot, the same in every container, "" where it has none."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""
