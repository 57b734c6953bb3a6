"""Records of the audit trail for people: as a table, as sentences by pod, and as the last changes
on a node: decisions, moves, drift, refusals, the sizes of the shared pools, and since when each pod
has its CPUs. The number of changes that are kept is bounded."""

from __future__ import annotations

import datetime
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Final

import msgspec

from agent.model.audit import SANDBOX, AuditEvent, Record, WriteReason
from agent.model.cpu.cpuset import CpuSet, CpuSetError
from agent.view.format import printable, table

_DECISIONS: Final = frozenset(
    {
        AuditEvent.POD_DECIDED,
        AuditEvent.POD_ENDED,
        AuditEvent.CPUS_ASSIGNED,
        AuditEvent.CPUS_CHANGED,
        AuditEvent.CPUS_RELEASED,
        AuditEvent.CPUS_FREE,
        AuditEvent.CLAIM_PREPARED,
        AuditEvent.CLAIM_UNPREPARED,
        AuditEvent.DEVICES_CHANGED,
        AuditEvent.PROCESS_STARTED,
    }
)
_REFUSALS: Final = frozenset(
    {
        AuditEvent.CLAIM_NOT_HONORED,
        AuditEvent.CLAIM_NOT_PREPARED,
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


_HEAD: Final = ("TIME", "PROCESS", "EVENT", "POD", "CONTAINER", "CHANGE", "WHY")


def as_table(records: Iterable[Record], width: int, timezone: datetime.tzinfo | None = None) -> str:
    """A row for each record, with times in `timezone`; None: the local timezone."""
    rows = [
        (
            local(each.time, timezone).isoformat(" ", "milliseconds"),
            each.process,
            each.event,
            printable(each.title) or _numa_node(each),
            printable(each.container),
            printable(_change(each)),
            printable(_why(each)),
        )
        for each in records
    ]
    return "\n".join(table([_HEAD, *rows], width)) + "\n" if rows else "No records.\n"


def local(stamp: str, timezone: datetime.tzinfo | None = None) -> datetime.datetime:
    """The time of a record in `timezone` (None: the local timezone); 1970-01-01 for a text that is
    not a time."""
    try:
        return datetime.datetime.fromisoformat(stamp).astimezone(timezone)
    except (ValueError, OverflowError):
        return datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class PodHistory(msgspec.Struct, frozen=True):
    """What happened to one pod."""

    title: str
    uid: str
    sentences: tuple[tuple[str, str], ...]
    """Time of the record, and what happened."""


def pod_histories(records: Sequence[Record]) -> list[PodHistory]:
    """The histories of all pods in the records, which are sorted by time, in the order of their
    first records. A record without a uid belongs to the pod of its name that was named last."""
    by_pod: dict[tuple[str, str], list[tuple[str, str]]] = {}
    latest: dict[str, str] = {}
    for record in records:
        if not record.pod:
            continue
        uid = record.uid or latest.get(record.title, "")
        latest[record.title] = uid
        sentences = by_pod.setdefault((record.title, uid), [])
        text = sentence(record)
        if not sentences or sentences[-1][1] != text:
            sentences.append((record.time, text))
    return [PodHistory(title, uid, tuple(sentences)) for (title, uid), sentences in by_pod.items()]


class HourOfPod(msgspec.Struct, frozen=True):
    """The load of a pod in the last hour as text."""

    lines: tuple[str, ...]
    notes: Mapping[str, str]
    """By the time of a record: the load before and after it."""


_NO_HOUR: Final = HourOfPod((), {})


def cpu_changes(records: Iterable[Record]) -> dict[str, set[str]]:
    """By uid, the times at which the CPUs of a pod changed."""
    times: dict[str, set[str]] = {}
    for record in records:
        if record.event in _CPUS or _kind(record) == "move":
            times.setdefault(record.uid, set()).add(record.time)
    return times


def as_text(
    histories: Sequence[PodHistory],
    timezone: datetime.tzinfo | None = None,
    hours: Mapping[str, HourOfPod] = {},
) -> str:
    """The histories with a heading for each pod and each day, and times in `timezone`; None: the
    local timezone. `hours`: by uid."""
    lines = []
    for history in histories:
        lines.append(printable(f"Pod {history.title}, uid {history.uid or 'unknown'}"))
        hour = hours.get(history.uid, _NO_HOUR)
        lines += [f"  {line}" for line in hour.lines]
        days = groupby(history.sentences, key=lambda each: local(each[0], timezone).date())
        for day, sentences in days:
            lines.append(f"  {day:%A, %Y-%m-%d}")
            for stamp, text in sentences:
                moment = local(stamp, timezone)
                lines.append(
                    f"    {moment:%H:%M:%S}.{moment.microsecond // 1000:03}"
                    f"{moment:%z}  {printable(text)}"
                )
                if note := hour.notes.get(stamp):
                    lines.append(f"      {note}")
        lines.append("")
    return "\n".join(lines)


def sentence(record: Record) -> str:
    """The record as a sentence; an event that this version does not know as its name and fields."""
    write = _SENTENCES.get(record.event)
    text = write(record) if write else " ".join(filter(None, (record.event, _change(record))))
    by = "" if record.process in ("agent", "") else f", by topolet {record.process}"
    return f"{text[:1].upper()}{text[1:]}{by}."


def _decided(record: Record) -> str:
    where = f", on CPUs {record.after}" if record.after else ""
    return f"the agent sees the pod for the first time: {record.message or 'no class'}{where}"


_SOURCES: Final = {
    "ResourceStatus": "as its annotation resource-status says",
    "Kubelet": "as the kubelet assigned them",
    "CPUPolicy": "by the node's own CPU policy",
    "ResourceClaim": "by its ResourceClaims",
}


def _source(record: Record) -> str:
    text = _SOURCES.get(record.reason, record.reason)
    return f", {text}" if text else ""


def _written(record: Record) -> str:
    why = record.message.removeprefix(SANDBOX).removeprefix("; ")
    if record.reason == WriteReason.SANDBOX_ANNOUNCED:
        why = "its sandbox must not start on CPUs of other pods"
    if record.field == "cpuset.cpus":
        text = f"{_subject(record)} moves to CPUs {record.after or 'of its parent'}"
    else:
        text = f"the file {record.field} of {_subject(record)} becomes {record.after}"
    text += _former_value(record)
    return f"{text}: {why}" if why else text


def _subject(record: Record) -> str:
    if record.container:
        return f"container {record.container}"
    return SANDBOX if record.message.startswith(SANDBOX) else "the pod's cgroup"


def _former_value(record: Record) -> str:
    return f" (before: {record.before})" if record.before else ""


_RESTORED: Final[dict[str, str]] = {
    WriteReason.SANDBOX_MADE: "its sandbox has CPUs of its own",
    WriteReason.EXCLUDED: "it is excluded",
    WriteReason.LIMIT_ENDED: "the limit does not apply any more",
    WriteReason.RESTORE: "everything is restored",
}


def _restored(record: Record) -> str:
    text = f"the file {record.field} of {_subject(record)} has its original value again"
    value = f" ({record.after})" if record.after else ""
    return f"{text}{value}: {_RESTORED.get(record.reason, record.reason)}"


def _admitted(record: Record) -> str:
    changes = f" with CPUs {record.after}" if record.field == "cpus" and record.after else ""
    requested = f" (requested: {record.before})" if changes and record.before else ""
    tail = f": {record.message}" if record.message else ""
    return f"container {record.container} may be created{changes}{requested}{tail}"


_SENTENCES: Final[dict[str, Callable[[Record], str]]] = {
    AuditEvent.POD_DECIDED: _decided,
    AuditEvent.POD_ENDED: lambda record: "the pod is gone",
    AuditEvent.CPUS_ASSIGNED: lambda record: f"the pod owns CPUs {record.after}{_source(record)}",
    AuditEvent.CPUS_CHANGED: lambda record: (
        f"the pod owns CPUs {record.after} instead of {record.before}{_source(record)}"
    ),
    AuditEvent.CPUS_RELEASED: lambda record: f"the pod does not own CPUs {record.before} any more",
    AuditEvent.CPUS_MOVED: lambda record: (
        f"container {record.container} gets CPUs {record.after} instead of {record.before}: "
        f"{record.message}"
    ),
    AuditEvent.CPUS_REBOUND: lambda record: (
        f"a rebind of the node planned CPUs {record.after} instead of {record.before} for the pod, "
        f"and ended as {record.reason}: {record.message}"
    ),
    AuditEvent.CPUS_IN_USE: lambda record: (
        f"its containers wait, because its CPUs are in use: {record.message}"
    ),
    AuditEvent.CPUS_FREE: lambda record: "its CPUs are free, so its containers may start",
    AuditEvent.CLAIM_NOT_HONORED: lambda record: (
        f"the pod does not get the CPUs that it claims: {record.message}"
    ),
    AuditEvent.DEVICES_CHANGED: lambda record: (
        f"container {record.container or 'of the pod'} sees {record.after or 'no devices'}"
        f"{_former_value(record)}"
    ),
    AuditEvent.DEVICES_REFUSED: lambda record: (
        f"container {record.container or 'of the pod'} gets no devices: {record.message}"
    ),
    AuditEvent.CLAIM_PREPARED: lambda record: f"{record.message} gets CPUs {record.after}",
    AuditEvent.CLAIM_NOT_PREPARED: lambda record: (
        f"the kubelet can't start the pod, because a claim gets no CPUs: {record.message}"
    ),
    AuditEvent.CLAIM_UNPREPARED: lambda record: f"{record.message} loses CPUs {record.before}",
    AuditEvent.CONTAINER_ADMITTED: _admitted,
    AuditEvent.START_CHANGED: lambda record: (
        f"container {record.container} will start with CPUs {record.after}{_former_value(record)}"
    ),
    AuditEvent.CONTAINER_REFUSED: lambda record: (
        f"container {record.container} is not created: {record.message}"
    ),
    AuditEvent.CGROUP_WRITTEN: _written,
    AuditEvent.CGROUP_RESTORED: _restored,
    AuditEvent.CGROUP_WRITE_FAILED: lambda record: (
        f"the file {record.field} of {_subject(record)} can't be set: {record.message}"
    ),
}


def _numa_node(record: Record) -> str:
    return f"NUMA node {record.numa_node}" if record.numa_node is not None else ""


def _change(record: Record) -> str:
    if record.before is None and record.after is None:
        return record.field
    values = f"{record.before or '-'} -> {record.after or '-'}"
    return f"{record.field} {values}" if record.field else values


def _why(record: Record) -> str:
    return ": ".join(each for each in (record.reason, record.message) if each)
