"""The agent's part of the audit trail: what a pass decided, by comparing two snapshots, and what it
wrote. A pass appends its records together, at its end.

Other processes change what the agent has set in cgroups: single changes happen, for example when a
runtime restarts; REPEATED changes of one file within LASTING_SECONDS mean that another program
decides the same values."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from agent.allocate.node_local.claim import Move
from agent.cgroup.limits import MAX, QUOTA
from agent.cgroup.order import (
    GroupChange,
    ValueChange,
    ValueOutcome,
    WriteOutcome,
    WriteState,
    parent,
)
from agent.model.audit import SANDBOX, AuditEvent, Record, WriteReason, of_pod
from agent.model.cpu.cpuset import CpuSet
from agent.model.devices.visibility import Visibility
from agent.model.pod.pods import Container, Pod
from agent.model.pod.qos import POOLS, Pool
from agent.model.snapshot import Owner, PodWanted, Snapshot, Wanted
from agent.telemetry.metrics import AgentMetrics, ForeignChange

LASTING_SECONDS: Final = 60.0
REPEATED: Final = 3
_MOST: Final = 1024
_KINDS: Final = {"cpuset.cpus": ForeignChange.CPUS, "cpuset.mems": ForeignChange.MEMORY_NODES}


class OtherWriters:
    """Counts the changes by other processes, and knows those of the last LASTING_SECONDS."""

    def __init__(self, metrics: AgentMetrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics = metrics
        self._clock = clock
        self._changes: deque[tuple[float, Record]] = deque(maxlen=_MOST)

    def changed(self, record: Record) -> None:
        """Counts the change that the agent's write in `record` undid."""
        self._metrics.foreign_changes(_KINDS.get(record.field, ForeignChange.LIMIT))
        self._changes.append((self._clock(), record))

    def lasting(self) -> tuple[str, ...]:
        """The files that are changed again and again, as sentences without numbers."""
        since = self._clock() - LASTING_SECONDS
        while self._changes and self._changes[0][0] < since:
            self._changes.popleft()
        return tuple(
            f"another process keeps changing {file}"
            for file in repeated(record for _, record in self._changes)
        )


def repeated(changes: Iterable[Record]) -> dict[str, int]:
    """The files with REPEATED changes, with pod and container, and the number of changes of each,
    sorted."""
    numbers = Counter(_file(each) for each in changes)
    return {file: number for file, number in sorted(numbers.items()) if number >= REPEATED}


def _file(record: Record) -> str:
    owner = " ".join(filter(None, (record.title, record.container))) or record.group
    return f"{record.field} of {owner}"


CPUSET: Final = "cpuset.cpus"
Append = Callable[[Sequence[Record]], None]
_OWNS: Final = "the pod owns these CPUs"
_NAMED: Final = 2
"""The most owners that one message names."""
_RESTORES: Final = (
    WriteReason.SANDBOX_MADE,
    WriteReason.EXCLUDED,
    WriteReason.LIMIT_ENDED,
    WriteReason.RESTORE,
)


class Written(msgspec.Struct, frozen=True):
    """What a stage of a pass wrote for one reason."""

    reason: str
    cpusets: WriteOutcome = WriteOutcome()
    values: ValueOutcome = ValueOutcome()


_Change = tuple[str, str, GroupChange | ValueChange]
"""Reason, file and change."""


class _Subject(msgspec.Struct, frozen=True):
    """The pod or container that a cgroup belongs to."""

    title: str
    """The title of the pod."""
    uid: str = ""
    container: str = ""
    """Empty for the pod itself and its sandbox."""
    role: str = ""
    """Why it has its CPUs, empty if that is unknown."""


class PassAudit:
    """Collects the records of a pass and appends them at its end.

    Between passes it keeps the last value that was written to each file, to detect values that
    another process has set since, and the last failures: a failure that lasts is recorded once.

    `foreign`: called with the record of each write that undid another process's change."""

    def __init__(
        self, append: Append, foreign: Callable[[Record], None] = lambda record: None
    ) -> None:
        self._append = append
        self._foreign = foreign
        self._decisions: list[Record] = []
        self._cause = ""
        self._writes: list[_Change] = []
        self._created: list[Record] = []
        self._set: dict[tuple[str, str], str] = {}
        self._failed: frozenset[tuple[str, str, str]] = frozenset()

    def decided(
        self, before: Snapshot | None, after: Snapshot | None, moves: Iterable[Move]
    ) -> None:
        """Adds what the pass decided.

        `before`, `after`: the last snapshot of this boot, before and after the pass published one.
        `moves`: the moves of containers to other CPUs."""
        if after is not None and before is not after:
            self._decisions = decisions(before, after, moves)
            self._cause = cause(before, after)

    def written(self, writes: Iterable[Written], created: Iterable[Record] = ()) -> None:
        """Adds what the pass wrote.

        `created`: records of containers that the runtime will start with other values."""
        self._created += created
        self._writes += [change for of in writes for change in _changes(of)]

    def end(self, pods: Iterable[Pod], wanted: Mapping[str, PodWanted]) -> None:
        """Appends the records at the end of a pass, also of one that failed.

        `pods`: the pods of the runtime.
        `wanted`: the decision by pod uid."""
        writes, records = self._writes, [*self._decisions, *self._created]
        self._decisions, self._created, self._writes = [], [], []
        failed = {
            (change.group, field, change.note or "")
            for _, field, change in writes
            if change.state is WriteState.FAILED
        }
        subjects: dict[str, _Subject] = {}
        if (
            any(change.state is WriteState.WRITTEN for _, _, change in writes)
            or failed - self._failed
        ):
            subjects = _subjects(pods, wanted)
            self._set = {key: text for key, text in self._set.items() if key[0] in subjects}
        for reason, field, change in writes:
            if change.state is WriteState.WRITTEN or (
                change.state is WriteState.FAILED
                and (change.group, field, change.note or "") not in self._failed
            ):
                subject = subjects.get(change.group) or _of_group(change.group, wanted)
                records.append(self._record(reason, field, change, subject))
        self._failed = frozenset(failed)
        self._append(records)
        self._cause = ""

    def _record(
        self,
        reason: str,
        field: str,
        change: GroupChange | ValueChange,
        subject: _Subject | None,
    ) -> Record:
        record = write_record(reason, field, change)
        if subject is not None:
            message = change.note or self._message(field, subject)
            record = msgspec.structs.replace(record, **_about(subject), message=message)
        if change.state is WriteState.WRITTEN and reason is WriteReason.DECISION:
            last = self._set.get((change.group, field))
            if last is not None and record.before is not None and record.before != last:
                message = f"another process had set it to {record.before or 'nothing'}"
                record = msgspec.structs.replace(
                    record, reason=WriteReason.CHANGED_BY_OTHER, message=message
                )
                self._foreign(record)
            self._set[change.group, field] = record.after or ""
        return record

    def _message(self, field: str, subject: _Subject) -> str:
        if field in (QUOTA, MAX):
            return "a pod that owns CPUs has no CPU quota"
        if field != CPUSET:
            return ""
        because = "" if subject.role == _OWNS else self._cause
        return "; ".join(each for each in (subject.role, because) if each)


def decisions(before: Snapshot | None, after: Snapshot, moves: Iterable[Move]) -> list[Record]:
    """Records of what differs between two snapshots: pools, pods, their CPUs and devices, and
    refusals; the ends of pods last.

    `before`: None if there was no snapshot."""
    records = [*_of_pools(before, after)]
    former = before.pods if before else {}
    if former != after.pods:
        for uid in sorted(former.keys() | after.pods.keys()):
            if former.get(uid) != after.pods.get(uid):
                records += _of_pod(uid, former.get(uid), after.pods.get(uid))
    records += _of_owners(before, after)
    records += (_of_move(move, after) for move in moves)
    return sorted(records, key=lambda record: record.event == AuditEvent.POD_ENDED)


def _of_pools(before: Snapshot | None, after: Snapshot) -> Iterator[Record]:
    text = cause(before, after)
    for name in POOLS:
        old = _by_node(before.pools.get(name, ()) if before else ())
        new = _by_node(after.pools.get(name, ()))
        for node in sorted(old | new):
            if old.get(node) != new.get(node):
                yield Record(
                    event=AuditEvent.POOL_CHANGED,
                    field=f"{name}-pool",
                    numa_node=node,
                    before=old.get(node),
                    after=new.get(node),
                    message=text,
                )


def _of_move(move: Move, after: Snapshot) -> Record:
    pod = after.pods.get(move.uid)
    title = pod.title if pod else ""
    return msgspec.structs.replace(
        of_pod(title, AuditEvent.CPUS_MOVED, uid=move.uid, container=move.name),
        field="cpus",
        before=str(move.source),
        after=str(move.target),
        reason="".join(each.capitalize() for each in move.reason.name.split("_")),
        message=move.reason.value,
    )


def cause(before: Snapshot | None, after: Snapshot) -> str:
    """A sentence about the owners of CPUs that are new, have other CPUs or have ended; "" for
    none."""
    old, new = _owners(before), _owners(after)
    texts = [
        f"pod {owner.title} owns {f'CPUs {owner.claimed}' if uid in new else 'no CPUs any more'}"
        for uid, owner in (old | new).items()
        if uid not in old or uid not in new or old[uid].claimed != new[uid].claimed
    ]
    more = [f"{len(texts) - _NAMED} more owners changed"] if len(texts) > _NAMED else []
    return ", ".join(texts[:_NAMED] + more)


def write_record(reason: str, field: str, change: GroupChange | ValueChange) -> Record:
    """The record of a change to a cgroup, without its pod."""
    event = AuditEvent.CGROUP_WRITTEN
    if change.state is WriteState.FAILED:
        event = AuditEvent.CGROUP_WRITE_FAILED
    elif reason in _RESTORES:
        event = AuditEvent.CGROUP_RESTORED
    return Record(
        event=event,
        field=field,
        group=change.group,
        before=None if change.old is None else str(change.old),
        after=None if change.new is None else str(change.new),
        reason=reason,
        message=change.note or "",
    )


def write_records(written: Written, pods: Mapping[str, PodWanted]) -> list[Record]:
    """Records of what was written or failed.

    `pods`: the pods by uid that the groups may belong to."""
    records = []
    for reason, field, change in _changes(written):
        if change.state in (WriteState.WRITTEN, WriteState.FAILED):
            record = write_record(reason, field, change)
            subject = _of_group(change.group, pods)
            about = _about(subject) if subject else {}
            records.append(msgspec.structs.replace(record, **about))
    return records


def _changes(written: Written) -> list[_Change]:
    """The changes, without those to groups that had the right value already."""
    right, related = WriteState.RIGHT, WriteReason.RELATED_GROUP
    changes: list[_Change] = [
        (written.reason, CPUSET, change)
        for change in written.cpusets.changes
        if change.state is not right
    ]
    changes += [
        (related, CPUSET, change) for change in written.cpusets.others if change.state is not right
    ]
    changes += [
        (written.reason, change.file, change)
        for change in written.values.changes
        if change.state is not right
    ]
    return changes


def _subjects(pods: Iterable[Pod], wanted: Mapping[str, PodWanted]) -> dict[str, _Subject]:
    subjects = {}
    for pod in pods:
        decided = wanted.get(pod.uid)
        for each in (*pod.sandboxes, *pod.containers):
            if each.group is not None:
                subjects[parent(each.group)] = _Subject(pod.title, pod.uid)
                subjects[each.group] = _Subject(pod.title, pod.uid, each.name, _role(decided, each))
    return subjects


def _of_group(group: str, wanted: Mapping[str, PodWanted]) -> _Subject | None:
    """The pod whose uid is in the group's name, for a group that no container or sandbox has."""
    plain = group.replace("-", "_")
    for uid, pod in wanted.items():
        if f"pod{uid.replace('-', '_')}" in plain:
            return _Subject(pod.title, uid)
    return None


def _role(pod: PodWanted | None, container: Container) -> str:
    if pod is None:
        return ""
    if not container.name:
        return SANDBOX
    wanted = pod.of(container.name)
    if wanted.kubelet:
        return "the kubelet assigned these CPUs"
    if wanted.exclusive:
        return _OWNS
    by_devices = f" on NUMA nodes {wanted.numa_nodes}, by its devices" if wanted.numa_nodes else ""
    return f"a container of class {pod.qos.value} shares its pool{by_devices}"


def _about(subject: _Subject) -> dict[str, str]:
    namespace, _, name = subject.title.partition("/")
    return {
        "namespace": namespace,
        "pod": name,
        "uid": subject.uid,
        "container": subject.container,
    }


def _by_node(pools: tuple[Pool, ...]) -> dict[int, str]:
    return {pool.node: pool.cpuset for pool in pools}


def _owners(snapshot: Snapshot | None) -> dict[str, Owner]:
    return {each.uid: each for each in snapshot.owners} if snapshot else {}


def _of_owners(before: Snapshot | None, after: Snapshot) -> list[Record]:
    old, new = _owners(before), _owners(after)
    if old == new:
        return []
    local = {each.uid for each in after.local_owners}
    records = []
    for uid, owner in sorted((old | new).items()):
        had, has = (each[uid].claimed if uid in each else CpuSet() for each in (old, new))
        if had == has:
            continue
        event = AuditEvent.CPUS_CHANGED if had and has else AuditEvent.CPUS_ASSIGNED
        if not has:
            event = AuditEvent.CPUS_RELEASED
        reason = "CPUPolicy" if uid in local else "ResourceStatus"
        if owner.kubelet or owner.claims:
            reason = "Kubelet" if owner.kubelet else "ResourceClaim"
        records.append(
            msgspec.structs.replace(
                of_pod(owner.title, event, uid=uid),
                field="cpus",
                before=str(had),
                after=str(has),
                reason=reason if has else "",
            )
        )
    return records


def _of_pod(uid: str, before: PodWanted | None, after: PodWanted | None) -> Iterator[Record]:
    """The records of one pod: that it is new, what has changed, or that it has ended."""
    if after is None:
        assert before is not None
        yield of_pod(before.title, AuditEvent.POD_ENDED, uid=uid)
        return
    if before is None:
        cpus = {
            container.cpuset
            for container in (after.each, *after.containers.values())
            if container.cpuset
        }
        record = of_pod(after.title, AuditEvent.POD_DECIDED, uid=uid)
        yield msgspec.structs.replace(
            record,
            field="cpus",
            after=str(CpuSet.parse(",".join(cpus))) if cpus else None,
            message=f"class {after.qos.value}",
        )
    if after.refused and (before is None or before.refused != after.refused):
        record = of_pod(after.title, AuditEvent.CLAIM_NOT_HONORED, uid=uid)
        yield msgspec.structs.replace(record, message=after.refused)
    old, new = _blocked(before), _blocked(after)
    if old != new:
        event = AuditEvent.CPUS_IN_USE if new else AuditEvent.CPUS_FREE
        yield msgspec.structs.replace(of_pod(after.title, event, uid=uid), message=new)
    for name in sorted(after.containers) or [""]:
        yield from _of_devices(
            of_pod(after.title, AuditEvent.DEVICES_CHANGED, uid=uid, container=name),
            _of_container(before, name).visible if before else None,
            _of_container(after, name).visible,
        )


def _of_container(pod: PodWanted, name: str) -> Wanted:
    return pod.of(name) if name else pod.each


def _blocked(pod: PodWanted | None) -> str:
    if pod is None:
        return ""
    return next((each.blocked for each in (pod.each, *pod.containers.values()) if each.blocked), "")


def _of_devices(
    record: Record, before: Visibility | None, after: Visibility | None
) -> Iterator[Record]:
    """The records never have values of the environment, which may be secrets."""
    if after is None or before == after:
        return
    if after.refused and (before is None or before.refused != after.refused):
        yield msgspec.structs.replace(
            record, event=AuditEvent.DEVICES_REFUSED, message=after.refused
        )
    old, new = _devices(before), _devices(after)
    if (old or "") != (new or ""):
        yield msgspec.structs.replace(record, field="devices", before=old, after=new)


def _devices(visible: Visibility | None) -> str | None:
    """The devices that a container sees, None if that is not decided."""
    if visible is None:
        return None
    nodes = [node.path for of_type in visible.nodes.values() for node in of_type]
    return ",".join([*(gpu.uuid for gpu in visible.gpus or ()), *nodes])
