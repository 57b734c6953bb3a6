"""What a group of processes is held to beyond its CPUs."""

from __future__ import annotations

from typing import Final

import msgspec

from agent.model.cpuset import CpuSet

UNLIMITED: Final = -1
PERIOD_MICROSECONDS: Final = 100_000
"""The kernel's own default period, and the one that every quota here is for."""
LEAST_QUOTA_MICROSECONDS: Final = 1_000
LEAST_SHARES: Final = 2
MOST_SHARES: Final = 262_144
"""What the kernel takes; it bends shares beyond these by itself, and refuses a lesser quota."""


class Limits(msgspec.Struct, frozen=True, omit_defaults=True):
    """Values of one group; None is said nothing about, or left alone.

    `quota_microseconds` of CPU time in each 100,000 and `memory_limit_bytes` may be UNLIMITED.
    `mems` are NUMA nodes; on cgroup v2 an empty set means the parent's. `migrate` is whether pages
    follow when `mems` change: a group's choice on v1 alone, v2 always moves them.
    """

    quota_microseconds: int | None = None
    shares: int | None = None
    memory_limit_bytes: int | None = None
    mems: CpuSet | None = None
    migrate: bool | None = None
