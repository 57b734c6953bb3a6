"""The last changes on a node, from the audit trail: decisions, moves, drift, refusals, the sizes of
the shared pools, and since when each pod has its CPUs.

Records are added one by one as the trail grows; the number of changes that are kept is bounded."""

from __future__ import annotations

from collections import deque
from typing import Final

import msgspec

from agent.model.audit import AuditEvent, Record, WriteReason
from agent.model.cpu.cpuset import CpuSet, CpuSetError
from agent.view.history import sentence

_DECISIONS: Final = frozenset(
    {
        AuditEvent.POD_DECIDED,
        AuditEvent.POD_ENDED,
        AuditEvent.CPUS_ASSIGNED,
        AuditEvent.CPUS_CHANGED,
        AuditEvent.CPUS_RELEASED,
        AuditEvent.CPUS_FREE,
        AuditEvent.DEVICES_CHANGED,
        AuditEvent.PROCESS_STARTED,
    }
)
_REFUSALS: Final = frozenset(
    {
        AuditEvent.CLAIM_NOT_HONORED,
        AuditEvent.CONTAINER_REFUSED,
        AuditEvent.DEVICES_REFUSED,
        AuditEvent.UPDATE_REFUSED,
        AuditEvent.CPUS_IN_USE,
    }
)
_MAX_DECISIONS: Final = 240
_MAX_MOVES: Final = 160
_MAX_SIZES: Final = 2_000
_CPUSET: Final = "cpuset.cpus"


class RecentChange(msgspec.Struct, frozen=True, omit_defaults=True):
    """A change that the page and `topolet top` list."""

    time: str
    kind: str
    """decision, move, drift or refusal."""
    text: str
    pod: str = ""
    """The title of the pod."""
    uid: str = ""


class PoolSize(msgspec.Struct, frozen=True):
    """How many CPUs a shared pool has on one NUMA node from `time` on."""

    time: str
    kind: str
    """The title of the pool, for example LS."""
    node: int
    cpus: int


class Recent(msgspec.Struct, frozen=True):
    """The changes from some time on."""

    since: dict[str, str]
    """The time at which each pod (by uid) got its CPUs."""
    pools: tuple[PoolSize, ...]
    """By time; the first entry of each pool has its size at the begin, if that is known."""
    changes: tuple[RecentChange, ...]
    """The newest first."""


class RecentChanges:
    """Collects the changes from the records of all processes. Records of one process are added in
    order of time."""

    def __init__(self) -> None:
        self._since: dict[str, str] = {}
        self._pools: deque[PoolSize] = deque(maxlen=_MAX_SIZES)
        self._pools_seen: set[tuple[str, int]] = set()
        self._decisions: deque[RecentChange] = deque(maxlen=_MAX_DECISIONS)
        self._moves: deque[RecentChange] = deque(maxlen=_MAX_MOVES)

    def add(self, record: Record) -> bool:
        """Returns whether the record changed what `since` returns."""
        event = record.event
        if event == AuditEvent.POOL_CHANGED:
            self._add_pool(record)
            return True
        if record.uid and event == AuditEvent.POD_DECIDED:
            self._since.setdefault(record.uid, record.time)
        elif record.uid and event in _CPUS:
            self._since[record.uid] = record.time
        elif event == AuditEvent.POD_ENDED:
            self._since.pop(record.uid, None)
        kind = _kind(record)
        if kind:
            change = RecentChange(record.time, kind, sentence(record), record.title, record.uid)
            (self._moves if kind == "move" else self._decisions).append(change)
        return bool(kind)

    def since(self, begin: str) -> Recent:
        """The pools and changes from `begin` on, a time as `audit.stamp` writes it."""
        changes = [each for each in (*self._decisions, *self._moves) if each.time >= begin]
        changes.sort(key=lambda each: each.time, reverse=True)
        # A pool's last entry before `begin` has its size then.
        before: dict[tuple[str, int], PoolSize] = {}
        later = []
        for each in self._pools:
            if each.time < begin:
                before[each.kind, each.node] = msgspec.structs.replace(each, time=begin)
            else:
                later.append(each)
        return Recent(dict(self._since), (*before.values(), *later), tuple(changes))

    def _add_pool(self, record: Record) -> None:
        kind, node = record.field.removesuffix("-pool").upper(), record.numa_node
        if node is None:
            return
        if (kind, node) not in self._pools_seen:
            self._pools_seen.add((kind, node))
            if record.before is not None:
                self._pools.append(PoolSize("", kind, node, _count(record.before)))
        self._pools.append(PoolSize(record.time, kind, node, _count(record.after)))


_CPUS: Final = frozenset(
    {AuditEvent.CPUS_ASSIGNED, AuditEvent.CPUS_CHANGED, AuditEvent.CPUS_RELEASED}
)


def _count(cpus: str | None) -> int:
    try:
        return len(CpuSet.parse(cpus or ""))
    except CpuSetError:
        return 0


def _kind(record: Record) -> str:
    """The kind of the change, "" if it is not listed: most records repeat for each file what a
    decision says."""
    if record.event in _DECISIONS:
        return "decision"
    if record.event in _REFUSALS:
        return "refusal"
    if record.reason == WriteReason.CHANGED_BY_OTHER or record.event in (
        AuditEvent.CGROUP_WRITE_FAILED,
        AuditEvent.RECORDS_LOST,
    ):
        return "drift"
    if record.event in (AuditEvent.CPUS_MOVED, AuditEvent.START_CHANGED):
        return "move"
    moved = record.event == AuditEvent.CGROUP_WRITTEN and record.field == _CPUSET
    return "move" if moved and record.container else ""
