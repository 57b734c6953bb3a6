"""The original values of cgroups: the agent journals a value before its first write.

A frontend replaces values before the container has a cgroup; they are recorded as soon as it has
one. Excluded containers get their values back while the agent runs, all containers with
`topolet restore`, while it is stopped.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from agent.cgroup import limits as limit_files
from agent.cgroup import values, writer
from agent.cgroup.hierarchy import CgroupError, Controllers, Hierarchy
from agent.cgroup.journal import Journal, JournalError, Original, OriginalValue
from agent.cgroup.order import parent
from agent.cgroup.outcome import ValueOutcome, WriteOutcome, WriteState
from agent.cri.client import Cri
from agent.host import locks
from agent.host.locks import AGENT_LOCK, Lock, LockedError
from agent.model import snapshot as snapshots
from agent.model.audit import WriteReason
from agent.model.cpu.cpuset import EMPTY, CpuSet, CpuSetError
from agent.model.notifications import Created, RequestedResources
from agent.model.pod.pods import Container, ContainerState
from agent.model.settings import options
from agent.model.settings.agent import RestoreSettings
from agent.model.snapshot import (
    LEAST_SHARES,
    NOTHING,
    UNLIMITED,
    CgroupLimits,
    Snapshot,
    Wanted,
)
from agent.node.audit import Append, Written, write_records
from agent.node.runtime_view import CgroupLocator, RuntimeView
from agent.rpc.grpc import RpcError

log = logging.getLogger(__name__)


class OriginalValues:
    """Keeps the values that a frontend replaced at creation until the container has a cgroup, for
    which the journal then records them."""

    def __init__(self, hierarchy: Hierarchy, controllers: Controllers, journal: Journal) -> None:
        self._hierarchy = hierarchy
        self._controllers = controllers
        self._journal = journal
        self._replaced: dict[str, Created] = {}
        self._resized: dict[str, RequestedResources] = {}

    def created(self, notification: Created) -> None:
        """A frontend let the runtime create a container with replaced values."""
        self._replaced[notification.container_id] = notification

    def resized(self, container_id: str, requested: RequestedResources) -> None:
        """A frontend forwarded an update of a container that requested these values."""
        self._resized[container_id] = requested

    def restore_excluded(self, unmanaged: tuple[Container, ...]) -> tuple[Written, list[str]]:
        """Restores the original values of containers that are excluded. Returns also the
        failures."""
        failures: list[str] = []
        outcome, others = WriteOutcome(), ValueOutcome()
        groups = {each.group for each in unmanaged if each.group is not None}
        if cpusets := {group for group in groups if group in self._journal}:
            outcome = writer.restore(self._hierarchy, self._journal, only=cpusets)
            for change in outcome.having(WriteState.WRITTEN):
                log.info("%s is excluded: cpuset restored to %s", change.group, change.new)
            failures += (f"{each.group}: {each.note}" for each in outcome.having(WriteState.FAILED))
        # The sandbox of an excluded pod has no name; the pod's group is the parent of its group.
        groups |= {
            parent(each.group) for each in unmanaged if each.group is not None and not each.name
        }
        files = {(group, file) for group, file in self._journal.values if group in groups}
        if files:
            others = values.restore(self._controllers, self._journal, only=files)
            for value in others.having(WriteState.WRITTEN):
                log.info("%s is excluded: %s restored to %s", value.group, value.file, value.new)
            failures += (
                f"{each.group} {each.file}: {each.note}"
                for each in others.having(WriteState.FAILED)
            )
        return Written(WriteReason.EXCLUDED, outcome, others), failures

    def record(self, containers: Iterable[Container]) -> list[str]:
        """Records the values that a frontend replaced, for containers that have a cgroup now: a
        restore writes them back. `containers`: all that are listed. Returns the failures."""
        groups = {each.id: each.group for each in containers}
        for unlisted in self._replaced.keys() - groups.keys():
            del self._replaced[unlisted]
        placed = {each: group for each, group in groups.items() if group and each in self._replaced}
        originals = [
            Original(group, str(cpus))
            for each, group in placed.items()
            if (cpus := self._requested_cpus(self._replaced[each].requested.cpuset, group))
        ]
        others = [
            one
            for each, group in placed.items()
            for one in _replaced(self._controllers, group, self._replaced[each])
        ]
        others += [
            one
            for each, requested in self._resized.items()
            if (group := groups.get(each))
            for one in _resized(self._controllers, group, requested)
        ]
        # When a container was created and updated since the last pass, the update counts.
        others = list({(one.group, one.file): one for one in others}.values())
        try:
            # The frontend's value wins over the one that a write found before the notification.
            if originals:
                gone = [one for one in self._journal.originals if not self._hierarchy.exists(one)]
                self._journal.update(originals, gone + [each.group for each in originals])
            if others:
                ended = [one for one in self._journal.values if not self._controllers.has(*one)]
                self._journal.update_values(
                    others, ended + [(one.group, one.file) for one in others]
                )
        except JournalError as error:
            return [str(error)]
        for each in placed:
            del self._replaced[each]
        self._resized = {}
        return []

    def _requested_cpus(self, requested: str, group: str) -> CpuSet:
        try:
            return CpuSet.parse(requested) or self._hierarchy.effective_cpus(parent(group))
        except (CpuSetError, CgroupError):
            return EMPTY


_UNTIL_SANDBOX: Final = "until its sandbox has CPUs of its own"


class AnnouncedPods:
    """Takes the CPUs of other pods from the cgroup of an announced pod: the runtime makes a sandbox
    with those of the pod. Once the sandbox has a cpuset of its own, the pod's cgroup gets its
    original CPUs back: they must contain whatever its containers get later. It keeps every other
    CPU, because a runtime may run the monitor of a container there (CRI-O: conmon, on
    `infra_ctr_cpuset`).

    The journal marks these cgroups, so that the next agent gives them back too.
    """

    def __init__(self, hierarchy: Hierarchy, journal: Journal) -> None:
        self._hierarchy = hierarchy
        self._journal = journal
        self._narrowed = {
            group for group, each in journal.originals.items() if each.note == _UNTIL_SANDBOX
        }

    def narrow(self, others: Mapping[str, CpuSet]) -> tuple[dict[str, CpuSet], list[str]]:
        """`others`: by group, the CPUs that its sandbox must not begin with. Journals the cgroups
        that have some of them. Returns the CPUs of those to write, and the failures."""
        new = []
        wanted = {}
        for group, taken in others.items():
            try:
                own = self._hierarchy.own_cpus(group)
                cpus = self._original(group)
            except CgroupError as error:
                log.debug("%s", error)
                continue
            if left := cpus - taken:
                wanted[group] = left
            # A v1 cgroup without CPUs could not be given back: it can't inherit.
            can_return = bool(own) or self._hierarchy.version == 2
            if left and left != cpus and group not in self._narrowed and can_return:
                new.append(Original(group, str(own), _UNTIL_SANDBOX))
        failures = []
        try:
            self._journal.update(new, remove=[each.group for each in new])
            self._narrowed.update(each.group for each in new)
        except JournalError as error:
            failures.append(str(error))
        return {group: wanted[group] for group in wanted.keys() & self._narrowed}, failures

    def _original(self, group: str) -> CpuSet:
        """The CPUs of the group while none is taken from it. Raises CgroupError."""
        if group not in self._narrowed:
            return self._hierarchy.effective_cpus(group)
        own = CpuSet.parse(self._journal.originals[group].cpus)
        return own or self._hierarchy.effective_cpus(parent(group))

    def widen(
        self, sandboxes: Mapping[str, CpuSet], announced: Collection[str]
    ) -> tuple[WriteOutcome, WriteOutcome, list[str]]:
        """Gives the cgroups other than `announced` their original CPUs back, after the sandboxes in
        them got theirs. Returns what was written to sandboxes, what to the others, and the
        failures."""
        over = self._narrowed.difference(announced)
        if not over:
            return WriteOutcome(), WriteOutcome(), []
        own = {group: cpus for group, cpus in sandboxes.items() if parent(group) in over}
        if self._hierarchy.version == 1:  # the sandbox began with a copy of its pod's CPUs
            of_pods = self._journal.originals
            own = {group: cpus for group, cpus in own.items() if parent(group) in of_pods}
            try:
                self._journal.update(Original(each, of_pods[parent(each)].cpus) for each in own)
            except JournalError as error:
                return WriteOutcome(), WriteOutcome(), [str(error)]
        written = writer.apply(self._hierarchy, self._journal, own)
        back = writer.restore(self._hierarchy, self._journal, only=over)
        failed = {
            each.group: f"{each.group}: {each.note}" for each in back.having(WriteState.FAILED)
        }
        self._narrowed -= over - failed.keys()
        errors = [] if back.journal_error is None else [back.journal_error]
        return written, back, [*failed.values(), *errors]


def _replaced(controllers: Controllers, group: str, created: Created) -> tuple[OriginalValue, ...]:
    """The originals of the files whose value differs; none when the group can't be read. Values
    that the request omits are those of runtimes: no limit, and the minimum shares. A value that the
    frontend passed on unchanged has no original."""
    requested = created.requested
    try:
        mems: CpuSet | None = CpuSet.parse(requested.mems)
    except CpuSetError:
        mems = None
    original = CgroupLimits(
        quota_microseconds=requested.quota_microseconds or UNLIMITED,
        shares=requested.shares or LEAST_SHARES,
        memory_limit_bytes=requested.memory_limit_bytes or UNLIMITED,
        mems=mems,
    )
    original = msgspec.structs.replace(original, **dict.fromkeys(created.kept))
    return _values(controllers, group, original)


def _resized(
    controllers: Controllers, group: str, requested: RequestedResources
) -> tuple[OriginalValue, ...]:
    """As `_replaced`, for the quota alone, which the agent lifts: an update omits what stays."""
    quota = requested.quota_microseconds or None
    return _values(controllers, group, CgroupLimits(quota_microseconds=quota))


def _values(
    controllers: Controllers, group: str, original: CgroupLimits
) -> tuple[OriginalValue, ...]:
    found = []
    for file in limit_files.files(controllers, original):
        try:
            present = controllers.read(group, file)
            if present is None:
                continue
            text = limit_files.text(controllers, group, file, original, present)
        except (CgroupError, ValueError):
            continue
        if text != present:
            found.append(OriginalValue(group, file, text))
    return tuple(found)


class Restored(msgspec.Struct, frozen=True):
    """`outcome` of cpusets, `values` of other files. `unchecked`: why a container that was created
    on CPUs of the agent's choice could not be checked, or ""."""

    outcome: WriteOutcome
    values: ValueOutcome
    unchecked: str


def restore(settings: RestoreSettings, append: Append) -> Restored:
    """Updates the runtime with the original values of its containers, so that it does not write the
    agent's values again, and restores every journalled file. A container that the proxy created
    with CPUs of the agent's choice is not in the journal: it gets the CPUs of its parent. Then
    removes the snapshot, so that the proxy rewrites no more requests. `append`: to the audit trail.
    Raises LockedError while an
    agent or an NRI plugin runs, CgroupError, OSError."""
    state = Path(settings.state_dir)
    lock = Lock(str(state / AGENT_LOCK))
    try:
        no_plugin = locks.lock_for_restore(settings.state_dir)
    except LockedError:
        lock.release()
        raise
    hierarchy = Hierarchy(settings.cgroup_root, os.path.join(settings.root, "proc"))
    controllers = Controllers(settings.cgroup_root, hierarchy.handles)
    journal = Journal(state / "journal")
    path = state / "snapshot.json"
    unchecked = ""
    chosen: dict[str, CpuSet] = {}
    cri = Cri(options.socket_path(settings.runtime_endpoint))
    last = _last_snapshot(path)
    try:
        managed = _managed(last, cri, hierarchy) if last else []
    except RpcError as error:
        managed, unchecked = [], str(error)
    for container in managed:
        try:
            if container.group is not None:
                cri.update(
                    container.id, _original_values(hierarchy, controllers, journal, container)
                )
            if container.state is ContainerState.CREATED:
                cri.update(container.id, Wanted(str(hierarchy.effective_cpus("/"))))
            elif container.group is not None and container.group not in journal:
                chosen[container.group] = _parent_cpus(hierarchy, container.group)
        except (RpcError, CgroupError) as error:
            unchecked = f"container {container.id}: {error}"
    cri.close()
    outcome = writer.restore(hierarchy, journal, chosen)
    others = values.restore(controllers, journal)
    written = Written(WriteReason.RESTORE, outcome, others)
    append(write_records(written, last.pods if last else {}))
    hierarchy.close()
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    no_plugin.release()
    lock.release()
    return Restored(outcome, others, unchecked)


def _last_snapshot(path: Path) -> Snapshot | None:
    try:
        return snapshots.decode(path.read_bytes())
    except (FileNotFoundError, snapshots.SnapshotError):
        return None


def _managed(last: Snapshot, cri: Cri, hierarchy: Hierarchy) -> list[Container]:
    """The containers for which the last snapshot has a cpuset."""
    observed = RuntimeView(cri, CgroupLocator(hierarchy)).observe()
    return [
        container
        for pod in observed.pods
        for container in pod.containers
        if not last.containers.get(container.id, NOTHING).unmanaged
    ]


def _original_values(
    hierarchy: Hierarchy, controllers: Controllers, journal: Journal, container: Container
) -> Wanted:
    """The values with which the runtime is updated. A group that inherited its CPUs gets the
    effective ones."""
    group = container.group or "/"
    original = journal.originals.get(group)
    cpuset = original.cpus if original else ""
    texts = {file: each.value for (of, file), each in journal.values.items() if of == group}
    limits = limit_files.parsed(controllers, group, texts)
    return Wanted(cpuset or str(hierarchy.effective_cpus("/")), limits=limits)


def _parent_cpus(hierarchy: Hierarchy, group: str) -> CpuSet:
    """Empty on v2: the group inherits."""
    if hierarchy.version == 2:
        return EMPTY
    return hierarchy.own_cpus(group.rpartition("/")[0] or "/")
