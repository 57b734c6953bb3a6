"""Limits of a group (CgroupLimits) in the files of cgroup v1 and v2: conversion to and from texts.

| limit  | v1                                              | v2              |
|--------|-------------------------------------------------|-----------------|
| quota  | `cpu.cfs_quota_us`, for `cpu.cfs_period_us`     | `cpu.max`, both |
| shares | `cpu.shares`                                    | `cpu.weight`    |
| memory | `memory.limit_in_bytes`                         | `memory.max`    |
| mems   | `cpuset.mems`                                   | `cpuset.mems`   |
| migrate| `cpuset.memory_migrate`                         | none: always    |

A group's period is kept: a quota is scaled to it. Shares are a weight by the kubelet's formula. The
kernel rounds memory down to pages. Texts have no line end.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import msgspec

from agent.cgroup.hierarchy import MEMS, CgroupError, Controller, Controllers
from agent.model.cpu.cpuset import CpuSet
from agent.model.snapshot import (
    LEAST_QUOTA_MICROSECONDS,
    LEAST_SHARES,
    MAX_SHARES,
    PERIOD_MICROSECONDS,
    UNLIMITED,
    CgroupLimits,
)

if TYPE_CHECKING:
    from fractions import Fraction

QUOTA: Final = "cpu.cfs_quota_us"
_PERIOD: Final = "cpu.cfs_period_us"
SHARES: Final = "cpu.shares"
MEMORY: Final = "memory.limit_in_bytes"
MEMORY_AND_SWAP: Final = "memory.memsw.limit_in_bytes"
MAX: Final = "cpu.max"
WEIGHT: Final = "cpu.weight"
MEMORY_MAX: Final = "memory.max"
USE: Final = {MEMORY: "memory.usage_in_bytes", MEMORY_MAX: "memory.current"}
"""By the file of a memory limit: the file with the bytes in use."""
MIGRATE: Final = "cpuset.memory_migrate"
_MEMORY: Final = (MEMORY, MEMORY_MAX)

_ALL_MEMORY: Final = 2**63 - 2**20
"""A group without a limit has the largest number of whole pages on v1, which is at least this."""
_ENDLESS: Final = 2**64
_MAX_WEIGHT: Final = 10_000


class _Field(msgspec.Struct, frozen=True):
    """One field of CgroupLimits and its file in each version; None if it does not have one."""

    name: str
    controller: Controller
    v1: str
    v2: str | None


_FIELDS: Final = (
    _Field("quota_microseconds", "cpu", QUOTA, MAX),
    _Field("shares", "cpu", SHARES, WEIGHT),
    _Field("memory_limit_bytes", "memory", MEMORY, MEMORY_MAX),
    _Field("mems", "cpuset", MEMS, MEMS),
    _Field("migrate", "cpuset", MIGRATE, None),
)


def parsed(controllers: Controllers, group: str, texts: Mapping[str, str]) -> CgroupLimits:
    """The limits that these contents of the group's files mean; None for limits without a file. A
    v2 weight means the fewest shares that give it. Raises CgroupError, GroupGone."""
    values = {}
    for field in _FIELDS:
        for file in {field.v1, field.v2 or field.v1} & texts.keys():
            try:
                values[field.name] = _value(controllers, group, file, texts[file])
            except ValueError as error:
                raise CgroupError(f"cannot understand {file} of {group!r}: {error}") from error
    return msgspec.structs.replace(CgroupLimits(), **values)


def files(controllers: Controllers, limits: CgroupLimits) -> Iterator[str]:
    """The files of the limits that are set. Omits files whose controller the machine does not
    have."""
    for field in _FIELDS:
        version = controllers.version(field.controller)
        if version is not None and getattr(limits, field.name) is not None:
            file = field.v1 if version == 1 else field.v2
            if file is not None:
                yield file


def lifts(limits: CgroupLimits, file: str) -> bool:
    """Whether the limits lift the one of this file."""
    if file in (QUOTA, MAX):
        return limits.quota_microseconds == UNLIMITED
    return file in _MEMORY and limits.memory_limit_bytes == UNLIMITED


def text(controllers: Controllers, group: str, file: str, limits: CgroupLimits, old: str) -> str:
    """The wanted content of the file, whose content is `old`. Raises CgroupError, ValueError."""
    quota, shares, memory = limits.quota_microseconds, limits.shares, limits.memory_limit_bytes
    if file == QUOTA and quota is not None:
        return quota_text(quota, _period(controllers, group))
    if file == MAX and quota is not None:
        return max_text(quota, old)
    if file == SHARES and shares is not None:
        return str(shares)
    if file == WEIGHT and shares is not None:
        return str(weight(shares))
    if file in _MEMORY and memory is not None:
        return memory_text(memory, file)
    if file == MEMS and limits.mems is not None:
        if not limits.mems and controllers.version("cpuset") == 1:
            raise ValueError("no memory nodes are wanted, and cgroup v1 can't inherit")
        return str(limits.mems)
    if file == MIGRATE and limits.migrate is not None:
        return str(int(limits.migrate))
    raise ValueError(f"{file!r} is not wanted")


def _value(controllers: Controllers, group: str, file: str, text: str) -> object:
    if file == QUOTA:
        return quota_of(text, _period(controllers, group))
    if file == MAX:
        return quota_of_max(text)
    if file == SHARES:
        return int(text)
    if file == WEIGHT:
        return shares_of_weight(int(text))
    if file in _MEMORY:
        return memory_of(text)
    if file == MEMS:
        return nodes(text)
    return text != "0"


def _period(controllers: Controllers, group: str) -> str:
    period = controllers.read(group, _PERIOD)
    if period is None:
        raise CgroupError(f"{group!r} has no {_PERIOD}")
    return period


def quota_text(quota_microseconds: int, period: str) -> str:
    """The content of `cpu.cfs_quota_us`. Raises ValueError for an invalid period."""
    scaled = _scaled(quota_microseconds, int(period))
    return str(UNLIMITED if scaled is None else scaled)


def max_text(quota_microseconds: int, present: str) -> str:
    """The content of `cpu.max`, which has the period too. Raises ValueError."""
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
    """The v2 weight of v1 shares (kubelet: pkg/kubelet/cm/cgroup_manager_linux.go,
    getCPUWeight)."""
    bound = min(max(shares, LEAST_SHARES), MAX_SHARES)
    return 1 + (bound - LEAST_SHARES) * (_MAX_WEIGHT - 1) // (MAX_SHARES - LEAST_SHARES)


def shares_of_weight(cpu_weight: int) -> int:
    """The fewest shares that give this weight."""
    steps = max(cpu_weight, 1) - 1
    return LEAST_SHARES - (-steps * (MAX_SHARES - LEAST_SHARES) // (_MAX_WEIGHT - 1))


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
    """Whether two contents of this file mean the same. Raises ValueError for an invalid one."""
    if one == other:
        return True
    if file == MEMS:
        return nodes(one) == nodes(other)
    return _amount(file, one) == _amount(file, other)


def grows(file: str, old: str, new: str) -> bool:
    """Whether the group gets more, so that its parent must be written first: for NUMA nodes, if any
    is added, or if it inherits (v2). Raises ValueError."""
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
        return min(max(int(text), LEAST_SHARES), MAX_SHARES)
    if file in (WEIGHT, MIGRATE):
        return int(text)
    raise ValueError(f"{file!r} is not a file of limits")


@lru_cache(maxsize=256)
def nodes(text: str) -> CpuSet:
    """NUMA nodes as a Linux list. Raises CpuSetError, a ValueError."""
    return CpuSet.parse(text)


def _scaled(quota_microseconds: int, period: int) -> int | None:
    """None for no limit."""
    if quota_microseconds == UNLIMITED:
        return None
    if period < 1:
        raise ValueError(f"{period} is not a valid CPU period")
    return max(LEAST_QUOTA_MICROSECONDS, -(-quota_microseconds * period // PERIOD_MICROSECONDS))


def _per_period(quota: int, period: int) -> int:
    if period < 1:
        raise ValueError(f"{period} is not a valid CPU period")
    return -(-quota * PERIOD_MICROSECONDS // period)


def _parts(text: str) -> tuple[int | None, int]:
    """Quota and period of `cpu.max`."""
    quota, _, period = text.partition(" ")
    length = int(period)
    if length < 1:
        raise ValueError(f"{text!r} has no period")
    return (None if quota == "max" else int(quota)), length
