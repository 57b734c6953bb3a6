"""The last hour of load and pressure of the machine, its NUMA nodes, its pools and its pods, with a
mean for each minute."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Mapping
from math import isnan, nan
from typing import Final, TypeAlias

import msgspec

MINUTES: Final = 60
MINUTE_SECONDS: Final = 60.0

Values: TypeAlias = tuple[float | None, ...]
"""A mean for each minute, the oldest first; None for a minute without samples. Empty if none of the
minutes has samples."""


class PastLoad(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one part of the node used, and what it waited for."""

    cpus: Values = ()
    """How many CPUs were in use."""
    of_cpus: Values = ()
    """How many CPUs a pool had."""
    memory_bytes: Values = ()
    """Without page cache."""
    cpu_pressure: Values = ()
    """The part of time, from 0 to 1, in which at least one task waited for CPU (PSI, `some`)."""
    memory_pressure: Values = ()
    io_pressure: Values = ()
    throttled_cpus: Values = ()
    """The seconds of each second in which quotas of the pod and of its containers kept tasks from a
    CPU, added up over CPUs."""


QUANTITIES: Final = PastLoad.__struct_fields__
NOTHING: Final = PastLoad()


class PastPool(msgspec.Struct, frozen=True):
    """A pool on one NUMA node."""

    kind: str
    """The title of the pool, or OWN."""
    node: int
    load: PastLoad


class PastHour(msgspec.Struct, frozen=True):
    """The last hour of a node."""

    begin: float
    """When the first of the MINUTES began, in seconds since 1970."""
    machine: PastLoad = NOTHING
    numa_nodes: Mapping[int, PastLoad] = {}
    pools: tuple[PastPool, ...] = ()
    pods: Mapping[str, PastLoad] = {}
    """By uid."""
    disturbed: Mapping[str, tuple[str, ...]] = {}
    """By uid, what disturbs a pod now and who does it, in sentences."""


Part: TypeAlias = tuple[str | int, ...]
"""A part of the node: one of these, alone or with a uid, a NUMA node, or a kind and a NUMA node."""
MACHINE: Final[Part] = ("machine",)
NUMA_NODE: Final = "numa-node"
POOL: Final = "pool"
POD: Final = "pod"
OWN: Final = "own"
"""The kind of pool that has the CPUs that pods own."""


class LoadHistory:
    """Keeps the last hour of each part of the node, in two kilobytes."""

    def __init__(self) -> None:
        self._hours: dict[Part, _Hour] = {}

    def add(self, at: float, samples: Mapping[Part, Mapping[str, float]]) -> None:
        """Adds the values of all parts by name of the quantity. A part that is not among them is
        dropped. `at`: seconds of a clock that does not jump."""
        minute = int(at // MINUTE_SECONDS)
        self._hours = {part: self._hours.get(part) or _Hour(minute) for part in samples}
        for part, values in samples.items():
            self._hours[part].add(minute, values)

    def hour(self, at: float, wall: float) -> PastHour:
        """The hour before `at`, which is the time `wall` in seconds since 1970. The last minute has
        not ended."""
        minute = int(at // MINUTE_SECONDS)
        begin = wall - (at - (minute - MINUTES + 1) * MINUTE_SECONDS)
        loads = {part: hour.load(minute) for part, hour in self._hours.items()}
        of_pools = ((part, load) for part, load in loads.items() if part[0] == POOL)
        return PastHour(
            begin,
            loads.get(MACHINE, NOTHING),
            {int(part[1]): load for part, load in loads.items() if part[0] == NUMA_NODE},
            tuple(PastPool(str(part[1]), int(part[2]), load) for part, load in of_pools),
            {str(part[1]): load for part, load in loads.items() if part[0] == POD},
        )


class _Hour:
    __slots__ = ("_counts", "_minute", "_values")

    def __init__(self, minute: int) -> None:
        self._minute = minute
        self._values = array("f", [nan]) * (MINUTES * len(QUANTITIES))
        self._counts = array("I", [0]) * len(QUANTITIES)
        """The samples of each quantity in the minute."""

    def add(self, minute: int, values: Mapping[str, float]) -> None:
        for passed in range(max(self._minute, minute - MINUTES) + 1, minute + 1):
            for place in _places(passed):
                self._values[place] = nan
        if minute != self._minute:
            self._minute = minute
            self._counts = array("I", [0]) * len(QUANTITIES)
        for quantity, place in enumerate(_places(minute)):
            if (value := values.get(QUANTITIES[quantity])) is not None:
                self._counts[quantity] += 1
                mean = self._values[place] if self._counts[quantity] > 1 else 0.0
                self._values[place] = mean + (value - mean) / self._counts[quantity]

    def load(self, minute: int) -> PastLoad:
        rows = [
            _places(at) if at <= self._minute else range(0)
            for at in range(minute - MINUTES + 1, minute + 1)
        ]
        return PastLoad(*(self._of(quantity, rows) for quantity in range(len(QUANTITIES))))

    def _of(self, quantity: int, rows: Collection[range]) -> Values:
        values = [self._values[row[quantity]] if row else nan for row in rows]
        if all(map(isnan, values)):
            return ()
        return tuple(None if isnan(value) else round(value, 3) for value in values)


def _places(minute: int) -> range:
    start = minute % MINUTES * len(QUANTITIES)
    return range(start, start + len(QUANTITIES))
