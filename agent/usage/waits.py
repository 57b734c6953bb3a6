"""What pods wait for, by counters of the kernel: CPU time beyond their quota, and stalls (PSI,
Documentation/accounting/psi.rst), also by limits of memory of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import msgspec

Stalls: TypeAlias = Mapping[tuple[str, ...], float]
"""Seconds by resource (cpu, memory, io) and kind: `some` task waited, or `full`, all of them."""
NOTHING_OF_THE_MACHINE: Final = ("cpu", "full")
"""For the machine the kernel writes 0 here, without a meaning."""
_RESOURCES: Final = ("cpu", "memory", "io")
_KINDS: Final = ("some", "full")
_LIMITS: Final = ("high", "max")


class Throttling(msgspec.Struct, frozen=True):
    """The counters of one quota."""

    periods: int
    """The periods in which the group ran."""
    throttled_periods: int
    seconds: float
    """The time without CPU, of each CPU on which the group had to wait: several in a second."""


class Waits(msgspec.Struct, frozen=True):
    """The newest counters."""

    machine: Stalls = {}
    pods: Mapping[str, Stalls] = {}
    """By uid."""
    quotas: Mapping[tuple[str, str], Throttling] = {}
    """By uid and name of the container; an empty name is the quota of the pod. The kernel counts
    for each quota alone, and not for the groups above it."""
    limits: Mapping[str, int] = {}
    """By uid, how often the pod or a container of it was at its own `memory.high` or `memory.max`;
    only of pods whose waits for memory are known."""


def throttling(stat: str) -> Throttling | None:
    """From the text of cpu.stat of v1 or v2; None for a group that has not had a quota."""
    words = stat.split()
    values = dict(zip(words[::2], words[1::2], strict=False))
    v2 = "throttled_usec" in values
    try:
        counters = Throttling(
            int(values["nr_periods"]),
            int(values["nr_throttled"]),
            int(values["throttled_usec" if v2 else "throttled_time"]) / (1e6 if v2 else 1e9),
        )
    except (KeyError, ValueError):
        return None
    return counters if counters.periods else None


def limits_reached(events: str) -> int | None:
    """How often a group, or one in it, was at its own limit, from the text of memory.events: the
    kernel counts there what is in the group, and not what a limit above it does. None if a field is
    missing."""
    words = events.split()
    values = dict(zip(words[::2], words[1::2], strict=False))
    try:
        return sum(int(values[name]) for name in _LIMITS)
    except (KeyError, ValueError):
        return None


def stalls(text_of: Callable[[str], str]) -> Stalls:
    """`text_of`: the text of a resource's PSI file; empty without one."""
    seconds: dict[tuple[str, ...], float] = {}
    for resource in _RESOURCES:
        for line in text_of(resource).splitlines():
            kind, _, averages = line.partition(" ")
            total = averages.rpartition("total=")[2]
            if kind in _KINDS and total.isdecimal():
                seconds[resource, kind] = int(total) / 1e6
    return seconds
