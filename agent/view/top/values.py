"""The state of a node at one moment, as the screen shows it, and the sizes of its pools over
time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from agent.model import audit
from agent.model.cpu.cpuset import CpuSet, union
from agent.model.pod.qos import POOLS
from agent.view.history import PoolSize, Recent, local
from agent.view.live import UNKNOWN, Attention, LiveNode, drift

POOL_KINDS: Final = tuple(kind.title for kind in POOLS.values() if not kind.dedicated)
KINDS: Final = ("own", *POOL_KINDS)
"""The kinds of CPUs: first the CPUs that pods own, then those of each pool that is not
dedicated."""

_DRIFT_SECONDS: Final = 3_600.0


class Usage(msgspec.Struct, frozen=True):
    """The use of a pod's cgroup: CPUs, as the mean since the previous reading, and memory. None:
    unknown."""

    cpus: float | None = None
    memory_bytes: int | None = None


class Sample(msgspec.Struct, frozen=True):
    """The number of CPUs of each kind at a time (seconds since 1970), and their load from 0 to
    1."""

    time: float
    counts: Mapping[str, int]
    loads: Mapping[str, float | None]


class NodeObservation(msgspec.Struct, frozen=True):
    """What is known of the node at one moment."""

    time: float
    """Seconds since 1970."""
    node: LiveNode
    problems: tuple[str, ...] = ()
    """What could not be read, and why."""
    decided_seconds: float | None = None
    """The age of the agent's decision, None if there is none."""
    loads: bytes = b""
    """One byte for each CPU of `node`: its load in percent, or UNKNOWN."""
    usage: Mapping[str, Usage] = {}
    """By the uid of a pod."""
    recent: Recent = Recent({}, (), ())
    """The changes of the last day."""
    samples: tuple[Sample, ...] = ()
    """By time, since the command began."""

    @property
    def attention(self) -> tuple[Attention, ...]:
        """The node's problems, and the drift of the last hour."""
        begin = audit.stamp(self.time - _DRIFT_SECONDS)
        return (*self.node.attention, *drift(self.recent, begin))

    @property
    def load_by_cpu(self) -> dict[int, float | None]:
        """By CPU, from 0 to 1; None: unknown."""
        return {
            cpu.id: None if percent == UNKNOWN else percent / 100
            for cpu, percent in zip(self.node.cpus, self.loads, strict=False)
        }


class Group(msgspec.Struct, frozen=True):
    """A cgroup of a pod."""

    of: str
    """The name of its container, "" for the pod's own cgroup."""
    path: str
    files: Mapping[str, str]
    """The content of its files by name."""


class Opened(msgspec.Struct, frozen=True):
    """What is read of a pod when its details are opened: only labels and annotations that decisions
    use."""

    uid: str
    problem: str = ""
    """What could not be read, "" if all was."""
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    containers: tuple[tuple[str, str], ...] = ()
    """Name and state of each."""
    groups: tuple[Group, ...] = ()


def cpus_by_kind(node: LiveNode) -> dict[str, CpuSet]:
    by_kind = {"own": union(CpuSet.parse(pod.own) for pod in node.pods)}
    for kind in POOL_KINDS:
        by_kind[kind] = union(CpuSet.parse(each.cpus) for each in node.pools if each.kind == kind)
    return by_kind


def mean_load(cpus: Iterable[int], loads: Mapping[int, float | None]) -> float | None:
    """The mean load of the CPUs whose load is known."""
    measured = [load for cpu in cpus if (load := loads.get(cpu)) is not None]
    return sum(measured) / len(measured) if measured else None


def sample(observed: NodeObservation) -> Sample:
    loads = observed.load_by_cpu
    by_kind = cpus_by_kind(observed.node)
    return Sample(
        observed.time,
        {kind: len(cpus) for kind, cpus in by_kind.items()},
        {kind: mean_load(cpus, loads) for kind, cpus in by_kind.items()},
    )


Points = list[tuple[float, float | None]]
"""Values from a time on (seconds since 1970), by time."""


def pool_sizes(observed: NodeObservation, kind: str) -> Points:
    """The number of CPUs of a kind over time: from the audit trail, then from the samples."""
    points = _of_trail([each for each in observed.recent.pools if each.kind == kind])
    for each in observed.samples:
        if not points or points[-1][1] != each.counts[kind]:
            points.append((each.time, each.counts[kind]))
    return points


def _of_trail(changes: Sequence[PoolSize]) -> Points:
    counts: dict[int, int] = {}
    points: Points = []
    for each in changes:
        counts[each.node] = each.cpus
        points.append((local(each.time).timestamp(), sum(counts.values())))
    return points


def over_time(points: Points, end: float, seconds: float, columns: int) -> list[float | None]:
    """One value for each column of a chart of the last `seconds` before `end`: the last value that
    began before the column's end, None before the first value."""
    values: list[float | None] = []
    place = 0
    value: float | None = None
    for column in range(columns):
        until = end - seconds * (columns - 1 - column) / columns
        while place < len(points) and points[place][0] <= until:
            value = points[place][1]
            place += 1
        values.append(value)
    return values
