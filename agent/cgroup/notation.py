"""How cgroup v1 and v2 write limits down: which file, which text, and what a text means.

| limit  | v1                                              | v2              |
|--------|-------------------------------------------------|-----------------|
| quota  | `cpu.cfs_quota_us`, for `cpu.cfs_period_us`     | `cpu.max`, both |
| shares | `cpu.shares`                                    | `cpu.weight`    |
| memory | `memory.limit_in_bytes`                         | `memory.max`    |
| mems   | `cpuset.mems`                                   | `cpuset.mems`   |
| migrate| `cpuset.memory_migrate`                         | none: always    |

A group's period is kept: a quota is scaled to it. Shares are a weight by the kubelet's formula. The
kernel rounds memory down to pages. Pure; texts are without the line's end.
"""

from __future__ import annotations

import resource
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from agent.model.cpuset import CpuSet
from agent.model.snapshot import (
    LEAST_QUOTA_MICROSECONDS,
    LEAST_SHARES,
    MOST_SHARES,
    PERIOD_MICROSECONDS,
    UNLIMITED,
)

if TYPE_CHECKING:
    from fractions import Fraction

QUOTA: Final = "cpu.cfs_quota_us"
PERIOD: Final = "cpu.cfs_period_us"
SHARES: Final = "cpu.shares"
MEMORY: Final = "memory.limit_in_bytes"
MAX: Final = "cpu.max"
WEIGHT: Final = "cpu.weight"
MEMORY_MAX: Final = "memory.max"
MEMORY_CURRENT: Final = "memory.current"
MEMS: Final = "cpuset.mems"
MIGRATE: Final = "cpuset.memory_migrate"

_ALL_MEMORY: Final = 2**63 - 2**20
"""v1 has no value for no limit: it shows the largest number of whole pages, for any page size."""
_ENDLESS: Final = 2**64
_MOST_WEIGHT: Final = 10_000


def quota_text(quota_microseconds: int, period: str) -> str:
    """For `cpu.cfs_quota_us`. Raises ValueError for a period that is none."""
    scaled = _scaled(quota_microseconds, int(period))
    return str(UNLIMITED if scaled is None else scaled)


def max_text(quota_microseconds: int, present: str) -> str:
    """For `cpu.max`, which holds the period as well. Raises ValueError."""
    period = _parts(present)[1]
    scaled = _scaled(quota_microseconds, period)
    return f"{'max' if scaled is None else scaled} {period}"


def quota_of(text: str, period: str) -> int:
    """The quota for 100,000 µs. Raises ValueError."""
    quota, length = int(text), int(period)
    return UNLIMITED if quota < 0 else _per_period(quota, length)


def quota_of_max(text: str) -> int:
    """The quota for 100,000 µs. Raises ValueError."""
    quota, period = _parts(text)
    return UNLIMITED if quota is None else _per_period(quota, period)


def weight(shares: int) -> int:
    """The kubelet's formula."""
    bound = min(max(shares, LEAST_SHARES), MOST_SHARES)
    return 1 + (bound - LEAST_SHARES) * (_MOST_WEIGHT - 1) // (MOST_SHARES - LEAST_SHARES)


def shares_of_weight(cpu_weight: int) -> int:
    """The fewest shares that are this weight."""
    steps = max(cpu_weight, 1) - 1
    return LEAST_SHARES - (-steps * (MOST_SHARES - LEAST_SHARES) // (_MOST_WEIGHT - 1))


def memory_text(limit_bytes: int, file: str) -> str:
    if limit_bytes == UNLIMITED:
        return "max" if file == MEMORY_MAX else str(UNLIMITED)
    return str(limit_bytes)


def memory_of(text: str) -> int:
    """In bytes, UNLIMITED for no limit. Raises ValueError."""
    if text == "max":
        return UNLIMITED
    limit = int(text)
    return UNLIMITED if limit < 0 or limit >= _ALL_MEMORY else limit


def same(file: str, one: str, other: str) -> bool:
    """Whether two texts mean the same in this file. Raises ValueError for one without meaning."""
    if one == other:
        return True
    if file == MEMS:
        return nodes(one) == nodes(other)
    return _amount(file, one) == _amount(file, other)


def grows(file: str, old: str, new: str) -> bool:
    """Whether the group gets more, so that its parent must be written first; of NUMA nodes any
    further one, or the parent's (v2). Raises ValueError."""
    if file == MEMS:
        return not new or not nodes(new) <= nodes(old)
    return _amount(file, new) > _amount(file, old)


def _amount(file: str, text: str) -> Fraction | int:
    if file == MAX:
        from fractions import Fraction  # most nodes compare none: 0.1 MB

        quota, period = _parts(text)
        return _ENDLESS if quota is None else Fraction(quota, period)
    if file == QUOTA:
        quota = int(text)
        return _ENDLESS if quota < 0 else quota
    if file in (MEMORY, MEMORY_MAX):
        limit = memory_of(text)
        return _ENDLESS if limit == UNLIMITED else limit // resource.getpagesize()
    if file == SHARES:
        return min(max(int(text), LEAST_SHARES), MOST_SHARES)
    if file in (WEIGHT, MIGRATE):
        return int(text)
    raise ValueError(f"{file!r} is no file of limits")


@lru_cache(maxsize=256)
def nodes(text: str) -> CpuSet:
    """NUMA nodes as a Linux list. Raises CpuSetError, a ValueError."""
    return CpuSet.parse(text)


def _scaled(quota_microseconds: int, period: int) -> int | None:
    """None for no limit."""
    if quota_microseconds == UNLIMITED:
        return None
    if period < 1:
        raise ValueError(f"{period} is no period")
    return max(LEAST_QUOTA_MICROSECONDS, -(-quota_microseconds * period // PERIOD_MICROSECONDS))


def _per_period(quota: int, period: int) -> int:
    if period < 1:
        raise ValueError(f"{period} is no period")
    return -(-quota * PERIOD_MICROSECONDS // period)


def _parts(text: str) -> tuple[int | None, int]:
    """Quota and period of `cpu.max`."""
    quota, _, period = text.partition(" ")
    length = int(period)
    if length < 1:
        raise ValueError(f"{text!r} has no period")
    return (None if quota == "max" else int(quota)), length
