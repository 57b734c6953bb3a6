"""Which container uses which GPU, and how much of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from agent.model.devices.gpus import GpuReading
from agent.model.pod.pods import Pod

GroupOf = Callable[[int], str | None]
"""The cgroup of a process, None if the process has ended or is hidden."""


class GpuUse(msgspec.Struct, frozen=True):
    """The use of one card by one container; pod and container are empty for processes outside known
    containers. None: the driver does not report the value."""

    uuid: str
    pod: str = ""
    """The pod's title."""
    container: str = ""
    memory_bytes: int | None = None
    sm_percent: int | None = None


def users(
    readings: Iterable[GpuReading], pods: Iterable[Pod], group_of: GroupOf
) -> tuple[GpuUse, ...]:
    """The sums over the processes of each container, sorted. A process may be in a cgroup below
    that of its container."""
    owners = {
        each.group: (pod.title, each.name)
        for pod in pods
        for each in pod.containers
        if each.group is not None
    }
    found: dict[tuple[str, str, str], GpuUse] = {}
    for reading in readings:
        for process in reading.processes or ():
            title, name = _owner(group_of(process.pid), owners)
            key = reading.uuid, title, name
            before = found.get(key, GpuUse(*key))
            found[key] = msgspec.structs.replace(
                before,
                memory_bytes=_sum(before.memory_bytes, process.memory_bytes),
                sm_percent=_sum(before.sm_percent, process.sm_percent),
            )
    return tuple(found[key] for key in sorted(found))


def _owner(group: str | None, owners: dict[str, tuple[str, str]]) -> tuple[str, str]:
    while group:
        if group in owners:
            return owners[group]
        group = group.rpartition("/")[0]
    return "", ""


def _sum(one: int | None, other: int | None) -> int | None:
    return one if other is None else other + (one or 0)
