"""The values of LinuxResources in the files of a group on cgroup v1 and v2.

| value  | v1                                              | v2              |
|--------|-------------------------------------------------|-----------------|
| quota  | `cpu.cfs_quota_us`, for `cpu.cfs_period_us`     | `cpu.max`, both |
| shares | `cpu.shares`                                    | `cpu.weight`    |
| memory | `memory.limit_in_bytes`                         | `memory.max`    |
| mems   | `cpuset.mems`                                   | `cpuset.mems`   |

A group's period is kept: a quota is scaled to it. Shares are a weight by the kubelet's formula. The
kernel rounds memory down to pages. Texts have no line end. `cgroup.writer` writes cpusets.

On v1 the pages of a group move with its memory nodes only if `cpuset.memory_migrate` is 1; on v2
they always do.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec

from agent.cgroup.hierarchy import MEMS, CgroupError, Controller, Controllers
from agent.model.cpu.cpuset import CpuSet
from agent.model.linux_resources import (
    LEAST_QUOTA_MICROSECONDS,
    LEAST_SHARES,
    MAX_SHARES,
    NO_QUOTA,
    NO_RESOURCES,
    UNLIMITED,
    CpuQuota,
    LinuxResources,
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
_MOVES: Final = "1"

_ALL_MEMORY: Final = 2**63 - 2**20
"""A group without a limit has the largest number of whole pages on v1, which is at least this."""
_ENDLESS: Final = 2**64
_MAX_WEIGHT: Final = 10_000


def parsed(controllers: Controllers, group: str, texts: Mapping[str, str]) -> LinuxResources:
    """The values that these contents of the group's files mean. A v2 weight means the fewest shares
    that give it. Raises CgroupError, GroupGone."""
    values = {}
    for name in _FILES.keys() & texts.keys():
        file = _FILES[name]
        try:
            values[file.value] = file.parsed(_with_period(controllers, group, name, texts[name]))
        except ValueError as error:
            raise CgroupError(f"cannot understand {name} of {group!r}: {error}") from error
    return msgspec.structs.replace(NO_RESOURCES, **values)


def files(
    controllers: Controllers, resources: LinuxResources, *, migrate: bool = False
) -> Iterator[str]:
    """The files of the values that are set, without those whose controller the machine does not
    have.

    `migrate`: also the file that lets pages move with memory nodes."""
    for name, file in _FILES.items():
        version = controllers.version(file.controller)
        if version in file.versions and getattr(resources, file.value) is not None:
            yield name
            if migrate and name == MEMS and version == 1:
                yield MIGRATE


def lifts(resources: LinuxResources, file: str) -> bool:
    """Whether the resources lift the limit of this file."""
    if file not in _FILES:
        return False
    value = _FILES[file].value
    return getattr(resources, value) in (NO_QUOTA, UNLIMITED)


def text(
    controllers: Controllers, group: str, file: str, resources: LinuxResources, old: str
) -> str:
    """The wanted content of the file, whose content is `old`. Raises CgroupError, ValueError."""
    if file == MIGRATE:
        return _MOVES
    value = getattr(resources, _FILES[file].value)
    if file == MEMS and not value and controllers.version("cpuset") == 1:
        raise ValueError("no memory nodes are wanted, and cgroup v1 can't inherit")
    return _FILES[file].text(value, _with_period(controllers, group, file, old))


def _with_period(controllers: Controllers, group: str, file: str, text: str) -> str:
    """The content of a quota's file as in `cpu.max`, which has the period too. Raises CgroupError,
    GroupGone."""
    if file != QUOTA:
        return text
    period = controllers.read(group, _PERIOD)
    if period is None:
        raise CgroupError(f"{group!r} has no {_PERIOD}")
    return f"{text} {period}"


def quota_text(quota: CpuQuota, present: str) -> str:
    """The content of `cpu.cfs_quota_us`.

    `present`: the present quota and period.

    Raises ValueError."""
    scaled = _scaled(quota, _parts(present)[1])
    return str(UNLIMITED if scaled is None else scaled)


def max_text(quota: CpuQuota, present: str) -> str:
    """The content of `cpu.max`, whose content is `present`. Raises ValueError."""
    period = _parts(present)[1]
    scaled = _scaled(quota, period)
    return f"{'max' if scaled is None else scaled} {period}"


def quota_of(text: str) -> CpuQuota:
    """From quota and period. Raises ValueError."""
    quota, period = _parts(text)
    return NO_QUOTA if quota is None else CpuQuota(quota, period)


def weight(shares: int) -> int:
    """The v2 weight of v1 shares (kubelet: pkg/kubelet/cm/cgroup_manager_linux.go,
    getCPUWeight)."""
    bound = min(max(shares, LEAST_SHARES), MAX_SHARES)
    return 1 + (bound - LEAST_SHARES) * (_MAX_WEIGHT - 1) // (MAX_SHARES - LEAST_SHARES)


def shares_of_weight(text: str) -> int:
    """The fewest shares that give this weight. Raises ValueError."""
    steps = max(int(text), 1) - 1
    return LEAST_SHARES - (-steps * (MAX_SHARES - LEAST_SHARES) // (_MAX_WEIGHT - 1))


def memory_of(text: str) -> int:
    """In bytes, UNLIMITED for no limit. Raises ValueError."""
    if text == "max":
        return UNLIMITED
    limit = int(text)
    return UNLIMITED if limit < 0 or limit >= _ALL_MEMORY else limit


def same(file: str, one: str, other: str) -> bool:
    """Whether two contents of this file mean the same. Raises ValueError for an invalid one."""
    return one == other or _amount(file, one) == _amount(file, other)


def grows(file: str, old: str, new: str) -> bool:
    """Whether the group gets more, so that its parent must be written first: for NUMA nodes, if any
    is added, or if it inherits (v2). Raises ValueError."""
    if file == MEMS and not new:
        return True
    return not _amount(file, new) <= _amount(file, old)


def _amount(file: str, text: str) -> Any:
    if file == MIGRATE:
        return int(text)
    if file not in _FILES:
        raise ValueError(f"{file!r} is not a file of limits")
    return _FILES[file].amount(text)


def _quota_amount(text: str) -> int:
    quota = int(text)
    return _ENDLESS if quota < 0 else quota


def _max_amount(text: str) -> Fraction | int:
    from fractions import Fraction  # most nodes compare none: 0.1 MB

    quota, period = _parts(text)
    return _ENDLESS if quota is None else Fraction(quota, period)


def _shares_amount(text: str) -> int:
    return min(max(int(text), LEAST_SHARES), MAX_SHARES)


def _memory_amount(text: str) -> int:
    limit = memory_of(text)
    return _ENDLESS if limit == UNLIMITED else limit // resource.getpagesize()


@lru_cache(maxsize=256)
def nodes(text: str) -> CpuSet:
    """NUMA nodes as a Linux list. Raises CpuSetError, a ValueError."""
    return CpuSet.parse(text)


def _scaled(quota: CpuQuota, period: int) -> int | None:
    """The quota for another period, None for no limit."""
    if quota == NO_QUOTA:
        return None
    scaled = -(-quota.microseconds * period // quota.period_microseconds)
    return max(LEAST_QUOTA_MICROSECONDS, scaled)


def _parts(text: str) -> tuple[int | None, int]:
    """Quota and period, as `cpu.max` has them."""
    quota, _, period = text.partition(" ")
    length = int(period)
    if length < 1:
        raise ValueError(f"{text!r} has no period")
    return (None if quota == "max" or int(quota) < 0 else int(quota)), length


def _plain_text(value: object, present: str) -> str:
    return str(value)


def _weight_text(shares: int, present: str) -> str:
    return str(weight(shares))


def _memory_max_text(limit_bytes: int, present: str) -> str:
    return "max" if limit_bytes == UNLIMITED else str(limit_bytes)


class _File(NamedTuple):
    """How a file has a value."""

    value: str
    """The field of LinuxResources."""
    controller: Controller
    versions: tuple[Literal[1, 2], ...]
    parsed: Callable[[str], object]
    text: Callable[[Any, str], str]
    """From the value and the present content."""
    amount: Callable[[str], Any]
    """From a content: what two contents are compared by."""


_FILES: Final = {
    QUOTA: _File("quota", "cpu", (1,), quota_of, quota_text, _quota_amount),
    MAX: _File("quota", "cpu", (2,), quota_of, max_text, _max_amount),
    SHARES: _File("shares", "cpu", (1,), int, _plain_text, _shares_amount),
    WEIGHT: _File("shares", "cpu", (2,), shares_of_weight, _weight_text, int),
    MEMORY: _File("memory_limit_bytes", "memory", (1,), memory_of, _plain_text, _memory_amount),
    MEMORY_MAX: _File(
        "memory_limit_bytes", "memory", (2,), memory_of, _memory_max_text, _memory_amount
    ),
    MEMS: _File("mems", "cpuset", (1, 2), str, _plain_text, nodes),
}
