"""Which boot of the machine this is: times of CLOCK_MONOTONIC only compare within one."""

from __future__ import annotations

import os


def boot_id(root: str = "/") -> str:
    """The kernel's name for this boot, "" where it has none."""
    try:
        with open(os.path.join(root, "proc/sys/kernel/random/boot_id")) as file:
            return file.read().strip()
    except OSError:
        return ""
