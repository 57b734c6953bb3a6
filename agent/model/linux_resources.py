"""The Linux resources of a container as one value, with its encoding in the CRI.

Requests, decisions, the values that a runtime stores, and those of a cgroup are all of this type.
The other encodings are NRI's (`nri.messages`), the OCI spec (`cri.client`) and the files of a
cgroup (`cgroup.limits`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from itertools import islice
from typing import Final

import msgspec

from agent.model import wire
from agent.model.quantities import QuantityError, page_bytes

UNLIMITED: Final = -1
PERIOD_MICROSECONDS: Final = 100_000
"""The kernel's default period."""
LEAST_QUOTA_MICROSECONDS: Final = 1_000
LEAST_SHARES: Final = 2
MAX_SHARES: Final = 262_144
"""The kernel's bounds: it clamps shares to these, and refuses a smaller quota."""


class CpuQuota(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The CPU time that a group may use in each period."""

    microseconds: int
    """May be UNLIMITED."""
    period_microseconds: int = PERIOD_MICROSECONDS

    @classmethod
    def of(cls, microseconds: int, period_microseconds: int) -> CpuQuota | None:
        """The quota in a request or a spec, where 0 means that it does not set the quota or the
        period, and a negative quota means no limit."""
        if microseconds < 0:
            return NO_QUOTA
        if microseconds == 0:
            return None
        period = period_microseconds if period_microseconds > 0 else PERIOD_MICROSECONDS
        return cls(microseconds, period)

    def is_same(self, other: CpuQuota) -> bool:
        """Whether both give the same share of a CPU, also in different periods."""
        return (
            self.microseconds * other.period_microseconds
            == other.microseconds * self.period_microseconds
        )


NO_QUOTA: Final = CpuQuota(UNLIMITED)


class LinuxResources(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Values of a container or of its cgroup. None means that a request or spec does not set the
    value, that a change or decision leaves it, or that a cgroup has no file for it."""

    cpuset: str | None = None
    """A Linux list of CPUs."""
    mems: str | None = None
    """A Linux list of NUMA nodes. Of a cgroup, "" means the nodes of its parent."""
    shares: int | None = None
    quota: CpuQuota | None = None
    memory_limit_bytes: int | None = None
    """May be UNLIMITED."""
    hugepages: dict[int, int] | None = None
    """By page size, the limits in bytes. They are read, and never written."""

    @property
    def names(self) -> tuple[str, ...]:
        """The fields that are set."""
        return tuple(name for name in self.__struct_fields__ if getattr(self, name) is not None)

    @property
    def unset(self) -> tuple[str, ...]:
        """The other fields."""
        return tuple(name for name in self.__struct_fields__ if getattr(self, name) is None)

    def over(self, others: LinuxResources) -> LinuxResources:
        """These values, and those of `others` for the fields that are not set here."""
        return msgspec.structs.replace(others, **{name: getattr(self, name) for name in self.names})

    def without(self, *names: str) -> LinuxResources:
        """A copy in which these fields are not set."""
        if all(getattr(self, name) is None for name in names):
            return self
        return msgspec.structs.replace(self, **dict.fromkeys(names))

    def missing_in(self, present: LinuxResources) -> LinuxResources:
        """These values without those that a container has already. A field that `present` does not
        set has its value in RUNTIME_DEFAULTS.

        `present`: the values of its request, or those that its runtime stores."""
        missing = {}
        for name in self.__struct_fields__:
            value, other = getattr(self, name), getattr(present, name)
            if other is None:
                other = getattr(RUNTIME_DEFAULTS, name)
            if value is None or value == other:
                continue
            if not (isinstance(value, CpuQuota) and value.is_same(other)):
                missing[name] = value
        return LinuxResources(**missing) if missing else NO_RESOURCES


NO_RESOURCES: Final = LinuxResources()
RUNTIME_DEFAULTS: Final = LinuxResources(
    mems="", shares=LEAST_SHARES, quota=NO_QUOTA, memory_limit_bytes=UNLIMITED
)
"""The values of a container whose request does not set them."""

_CRI_TEXTS: Final = {6: "cpuset", 7: "mems"}
_CRI_NUMBERS: Final = {3: "shares", 4: "memory_limit_bytes"}
_CRI_PERIOD, _CRI_QUOTA, _CRI_HUGEPAGES = 1, 2, 8
_MAX_PAGE_SIZES: Final = 16


def hugepages(limits: Iterable[tuple[str, int]]) -> dict[int, int] | None:
    """The limits of a request or a spec. A kubelet sets a limit for each page size of the machine,
    0 for those that the container does not request."""
    by_size = {}
    for size, limit_bytes in islice(limits, _MAX_PAGE_SIZES):
        with contextlib.suppress(QuantityError):
            if limit_bytes > 0 and (page := page_bytes(size)) > 0:
                by_size[page] = limit_bytes
    return by_size or None


def from_cri(message: bytes) -> LinuxResources:
    """The values of a LinuxContainerResources, where "" and 0 mean that a field is not set. Raises
    WireError."""
    texts, numbers = wire.texts(message, _CRI_TEXTS), wire.numbers(message)
    return msgspec.structs.replace(
        NO_RESOURCES,
        quota=CpuQuota.of(numbers.get(_CRI_QUOTA, 0), numbers.get(_CRI_PERIOD, 0)),
        hugepages=hugepages(
            (wire.text(limit, 1), wire.number(limit, 2))
            for limit in wire.payloads(message, _CRI_HUGEPAGES)
        ),
        **{name: texts.get(field) or None for field, name in _CRI_TEXTS.items()},
        **{name: numbers.get(field) or None for field, name in _CRI_NUMBERS.items()},
    )


def to_cri(resources: LinuxResources) -> bytes:
    """A LinuxContainerResources with the values that are set. The period of NO_QUOTA is not."""
    values = {
        field: getattr(resources, name) for field, name in (_CRI_TEXTS | _CRI_NUMBERS).items()
    }
    quota = resources.quota
    if quota is not None:
        values[_CRI_QUOTA] = quota.microseconds
        values[_CRI_PERIOD] = None if quota == NO_QUOTA else quota.period_microseconds
    return b"".join(
        wire.patch((field,), value) for field, value in values.items() if value is not None
    )
