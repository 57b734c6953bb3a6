"""The original values of cgroups: the agent journals each value before it first writes another.

A frontend replaces values before the container has a cgroup; they are journalled as soon as it has
one. The agent restores the values of containers that become excluded, and of announced pods;
`topolet restore` restores all values while no agent runs.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from agent.cgroup import limits as limit_files
from agent.cgroup import writer
from agent.cgroup.hierarchy import CgroupError, Controllers, GroupValues, Hierarchy
from agent.cgroup.journal import Journal, JournalError, Original, OriginalValue
from agent.cgroup.order import ValueOutcome, WriteOutcome, WriteState, parent
from agent.cri.client import Cri
from agent.hooks.agent_client import read_snapshot
from agent.host import locks
from agent.host.locks import AGENT_LOCK, Lock, LockedError
from agent.model import snapshot as snapshots
from agent.model.audit import WriteReason
from agent.model.cpu.cpuset import EMPTY, CpuSet, CpuSetError
from agent.model.linux_resources import RUNTIME_DEFAULTS, LinuxResources
from agent.model.notifications import Created
from agent.model.pod.pods import Container, ContainerState
from agent.model.settings import options
from agent.model.settings.agent import RestoreSettings
from agent.model.snapshot import NOTHING, Snapshot, Wanted
from agent.model.verdict import Code
from agent.node.audit import Append, Written, write_records
from agent.node.cpu_notices import CpuNotices, Key
from agent.node.runtime_view import CgroupLocator, RuntimeView
from agent.rpc.grpc import RpcError

if TYPE_CHECKING:
    from agent.cgroup.core_scheduling import CoreGroups
    from agent.cgroup.resctrl import ControlGroups

log = logging.getLogger(__name__)


class OriginalValues:
    """Keeps the values that frontends replaced in requests until the container has a cgroup, and
    then journals them as the originals of this cgroup."""

    def __init__(self, hierarchy: Hierarchy, controllers: Controllers, journal: Journal) -> None:
        self._hierarchy = hierarchy
        self._controllers = controllers
        self._journal = journal
        self._replaced: dict[str, Created] = {}
        self._resized: dict[str, LinuxResources] = {}

    def created(self, notification: Created) -> None:
        """Keeps the values of a request to create a container, which a frontend has replaced."""
        self._replaced[notification.container_id] = notification

    def resized(self, container_id: str, requested: LinuxResources) -> None:
        """Keeps the values of a request to update a container."""
        self._resized[container_id] = requested

    def restore_excluded(self, unmanaged: tuple[Container, ...]) -> tuple[Written, list[str]]:
        """Restores the original values of excluded containers. Returns what was written, and the
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
            others = limit_files.restore(self._controllers, self._journal, only=files)
            for value in others.having(WriteState.WRITTEN):
                log.info("%s is excluded: %s restored to %s", value.group, value.file, value.new)
            failures += (
                f"{each.group} {each.file}: {each.note}"
                for each in others.having(WriteState.FAILED)
            )
        return Written(WriteReason.EXCLUDED, outcome, others), failures

    def record(self, containers: Iterable[Container]) -> list[str]:
        """Journals the values that a frontend replaced, for containers that have a cgroup now.
        Returns the failures.

        `containers`: all containers that the runtime lists."""
        groups = {container.id: container.group for container in containers}
        for unlisted in self._replaced.keys() - groups.keys():
            del self._replaced[unlisted]
        placed = {
            container_id: group
            for container_id, group in groups.items()
            if group and container_id in self._replaced
        }
        originals = [
            Original(group, str(cpus))
            for container_id, group in placed.items()
            if (cpus := self._requested_cpus(self._replaced[container_id].requested.cpuset, group))
        ]
        others = [
            one
            for container_id, group in placed.items()
            for one in _replaced(self._controllers, group, self._replaced[container_id])
        ]
        others += [
            one
            for container_id, requested in self._resized.items()
            if (group := groups.get(container_id))
            for one in _resized(self._controllers, group, requested)
        ]
        # When a container was created and updated since the last pass, the update counts.
        others = list({(one.group, one.file): one for one in others}.values())
        try:
            # They replace an original that the agent read from the cgroup before the notification.
            if originals:
                gone = [one for one in self._journal.originals if not self._hierarchy.exists(one)]
                self._journal.update(originals, gone + [original.group for original in originals])
            if others:
                ended = [one for one in self._journal.values if not self._controllers.has(*one)]
                self._journal.update_values(
                    others, ended + [(one.group, one.file) for one in others]
                )
        except JournalError as error:
            return [str(error)]
        for container_id in placed:
            del self._replaced[container_id]
        self._resized = {}
        return []

    def _requested_cpus(self, requested: str | None, group: str) -> CpuSet:
        try:
            return CpuSet.parse(requested or "") or self._hierarchy.effective_cpus(parent(group))
        except (CpuSetError, CgroupError):
            return EMPTY


_UNTIL_SANDBOX: Final = "until its sandbox has CPUs of its own"


class AnnouncedPodGroups:
    """Removes the CPUs that other pods own from the cgroups of announced pods: the runtime makes a
    sandbox with the CPUs of the pod's cgroup. Once the sandbox has a cpuset of its own, the pod's
    cgroup gets its original CPUs again, because it must contain all CPUs that its containers get
    later. All other CPUs stay in the cgroup: a runtime may run the monitor of a container there
    (CRI-O: conmon, on `infra_ctr_cpuset`).

    The journal marks these cgroups, so that an agent that starts later restores them.
    """

    def __init__(self, hierarchy: Hierarchy, journal: Journal) -> None:
        self._hierarchy = hierarchy
        self._journal = journal
        self._narrowed = {
            group for group, each in journal.originals.items() if each.note == _UNTIL_SANDBOX
        }

    def narrow(self, others: Mapping[str, CpuSet]) -> tuple[dict[str, CpuSet], list[str]]:
        """Journals the cgroups that have CPUs of other pods. Returns, by group, the CPUs to write,
        and the failures.

        `others`: by group, the CPUs with which its sandbox must not begin."""
        # The journal drops the entry of a removed group; one of its name is another group.
        self._narrowed.intersection_update(self._journal.originals)
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
            # A v1 cgroup that has no CPUs can't be restored: a v1 cgroup can't inherit.
            can_return = bool(own) or self._hierarchy.version == 2
            if left and left != cpus and group not in self._narrowed and can_return:
                new.append(Original(group, str(own), _UNTIL_SANDBOX))
        failures = []
        try:
            self._journal.update(new, remove=[original.group for original in new])
            self._narrowed.update(original.group for original in new)
        except JournalError as error:
            failures.append(str(error))
        return {group: wanted[group] for group in wanted.keys() & self._narrowed}, failures

    def _original(self, group: str) -> CpuSet:
        """The CPUs that the group has without `narrow`. Raises CgroupError."""
        if group not in self._narrowed:
            return self._hierarchy.effective_cpus(group)
        own = CpuSet.parse(self._journal.originals[group].cpus)
        return own or self._hierarchy.effective_cpus(parent(group))

    def widen(
        self, sandboxes: Mapping[str, CpuSet], announced: Collection[str]
    ) -> tuple[WriteOutcome, WriteOutcome, list[str]]:
        """Restores the original CPUs of all cgroups but those in `announced`, after it has written
        the cpusets of the `sandboxes` in them. Returns what was written to sandboxes, what was
        restored, and the failures."""
        ready = self._narrowed.difference(announced)
        if not ready:
            return WriteOutcome(), WriteOutcome(), []
        own = {group: cpus for group, cpus in sandboxes.items() if parent(group) in ready}
        if self._hierarchy.version == 1:  # the sandbox began with a copy of its pod's CPUs
            of_pods = self._journal.originals
            own = {group: cpus for group, cpus in own.items() if parent(group) in of_pods}
            try:
                self._journal.update(Original(each, of_pods[parent(each)].cpus) for each in own)
            except JournalError as error:
                return WriteOutcome(), WriteOutcome(), [str(error)]
        written = writer.apply(self._hierarchy, self._journal, own)
        restored = writer.restore(self._hierarchy, self._journal, only=ready)
        failed = {
            each.group: f"{each.group}: {each.note}" for each in restored.having(WriteState.FAILED)
        }
        self._narrowed -= ready - failed.keys()
        errors = [] if restored.journal_error is None else [restored.journal_error]
        return written, restored, [*failed.values(), *errors]


def _replaced(controllers: Controllers, group: str, created: Created) -> tuple[OriginalValue, ...]:
    """The requested values, for the files that have another value; none when the group can't be
    read. Values that the frontend passed on unchanged (`kept`) are left out."""
    original = created.requested.over(RUNTIME_DEFAULTS).without(*created.kept)
    return _values(controllers, group, original)


def _resized(
    controllers: Controllers, group: str, requested: LinuxResources
) -> tuple[OriginalValue, ...]:
    """The requested quota, if the file has another value: it is what the agent lifts. An update
    omits values that do not change."""
    return _values(controllers, group, LinuxResources(quota=requested.quota))


def _values(
    controllers: Controllers, group: str, original: LinuxResources
) -> tuple[OriginalValue, ...]:
    differing = []
    for file in limit_files.files(controllers, original):
        try:
            present = controllers.read(group, file)
            if present is None:
                continue
            text = limit_files.text(controllers, group, file, original, present)
        except (CgroupError, ValueError):
            continue
        if text != present:
            differing.append(OriginalValue(group, file, text, (present,)))
    return tuple(differing)


def control_groups(root: str, hierarchy: Hierarchy) -> Callable[[], ControlGroups]:
    """Returns what gives the groups of resctrl of the host below `root`, always the same."""

    @functools.cache
    def groups() -> ControlGroups:
        from agent.cgroup.resctrl import FOLDER, ControlGroups  # few nodes need it

        return ControlGroups(os.path.join(root, FOLDER), hierarchy)

    return groups


def core_groups(
    hierarchy: Hierarchy, entries: Callable[[], Mapping[tuple[str, str], OriginalValue]]
) -> Callable[[], CoreGroups]:
    """The same of core scheduling.

    `entries`: returns the values of the journal."""

    @functools.cache
    def groups() -> CoreGroups:
        from agent.cgroup.core_scheduling import CoreGroups  # few nodes need it

        return CoreGroups(hierarchy, entries)

    return groups


def group_values(
    root: str,
    hierarchy: Hierarchy,
    entries: Callable[[], Mapping[tuple[str, str], OriginalValue]],
) -> dict[str, Callable[[], GroupValues]]:
    """What Controllers have beside the files of cgroups, by the first word of its names.

    `root`: is where the host's files are.
    `entries`: returns the values of the journal."""

    @functools.cache
    def machine_files() -> GroupValues:
        from agent.cgroup.machine_files import MachineFiles  # few nodes need it

        return MachineFiles(root)

    @functools.cache
    def slices() -> GroupValues:
        from agent.cgroup.host_slices import SliceCpus  # few nodes need it

        return SliceCpus(hierarchy)

    @functools.cache
    def irqbalance() -> GroupValues:
        from agent.cgroup.irqbalance import Irqbalance  # few nodes need it

        return Irqbalance(root, entries)

    return {
        "resctrl": control_groups(root, hierarchy),
        "core_sched": core_groups(hierarchy, entries),
        "slice": slices,
        "irqbalance": irqbalance,
        **dict.fromkeys(limit_files.KINDS_OF_MACHINE, machine_files),
    }


class Restored(msgspec.Struct, frozen=True):
    outcome: WriteOutcome
    """What was written to cpusets."""
    values: ValueOutcome
    """What was written to other files."""
    not_updated: tuple[str, ...]
    """Why the runtime could not be asked, or what it answered for each container that it did not
    update and that has not ended meanwhile: it may write the agent's values again."""


def restore(settings: RestoreSettings, append: Append) -> Restored:
    """Updates the runtime with the original values of its containers, so that it does not write the
    agent's values again, restores every journalled file, and removes the snapshot, so that the
    proxy rewrites no more requests. Containers that read their CPUs in a file get the new ones.

    `append`: adds records to the audit trail.

    Raises LockedError while an agent or an NRI plugin runs, CgroupError, OSError."""
    state = Path(settings.state_dir)
    lock = Lock(str(state / AGENT_LOCK))
    try:
        no_plugin = locks.lock_for_restore(settings.state_dir)
    except LockedError:
        lock.release()
        raise
    hierarchy = Hierarchy(settings.cgroup_root, os.path.join(settings.root, "proc"))
    journal = Journal(state / "journal")
    controllers = Controllers(
        settings.cgroup_root,
        hierarchy.handles,
        group_values(settings.root, hierarchy, lambda: journal.values),
    )
    path = state / snapshots.FILE
    last = _last_snapshot(path)
    cri = Cri(options.socket_path(settings.runtime_endpoint))
    managed, unlisted = _managed(last, cri, hierarchy) if last else ([], "")
    containers = [container for _, container in managed]
    chosen, failed = _restore_runtime(cri, containers, hierarchy, controllers, journal)
    cri.close()
    # Partitions end first: a group that can't inherit again gets the CPUs that its parent has.
    others = limit_files.restore(controllers, journal)
    outcome = writer.restore(hierarchy, journal, chosen)
    written = Written(WriteReason.RESTORE, outcome, others)
    append(write_records(written, last.pods if last else {}))
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    CpuNotices(settings.state_dir).restored(dict(_effective(managed, hierarchy)))
    hierarchy.close()
    no_plugin.release()
    lock.release()
    return Restored(outcome, others, (*filter(None, [unlisted]), *failed))


def _restore_runtime(
    cri: Cri,
    containers: Iterable[Container],
    hierarchy: Hierarchy,
    controllers: Controllers,
    journal: Journal,
) -> tuple[dict[str, CpuSet], list[str]]:
    """Updates the runtime with the original values of the containers. Returns the cpusets of groups
    that are not in the journal, because a frontend created the container with CPUs of the agent's
    choice: they get the CPUs of their parent, also when the update fails. Also returns
    `not_updated`."""
    not_updated = []
    chosen: dict[str, CpuSet] = {}
    for container in containers:
        group = container.group
        try:
            if group is not None and group not in journal:
                chosen[group] = _parent_cpus(hierarchy, group)
            if group is not None:
                cri.update(
                    container.id, _original_values(hierarchy, controllers, journal, container)
                )
            if container.state is ContainerState.CREATED:
                cri.update(container.id, LinuxResources(str(hierarchy.machine_cpus())))
        except (RpcError, CgroupError) as error:
            if not _has_ended(hierarchy, container, error):
                not_updated.append(f"container {container.id}: {error}")
    return chosen, not_updated


def _has_ended(hierarchy: Hierarchy, container: Container, error: RpcError | CgroupError) -> bool:
    """Whether that is why its runtime did not update a container."""
    if isinstance(error, RpcError) and error.code == Code.NOT_FOUND:
        return True
    return container.group is not None and not hierarchy.exists(container.group)


def _last_snapshot(path: Path) -> Snapshot | None:
    try:
        return read_snapshot(str(path))
    except (FileNotFoundError, snapshots.SnapshotError):
        return None


def _managed(
    last: Snapshot, cri: Cri, hierarchy: Hierarchy
) -> tuple[list[tuple[Key, Container]], str]:
    """The containers for which the last snapshot has a cpuset. Also returns why the runtime could
    not be asked, empty if it answered."""
    try:
        observed = RuntimeView(cri, CgroupLocator(hierarchy)).observe()
    except RpcError as error:
        return [], str(error)
    managed = [
        ((pod.uid, container.name), container)
        for pod in observed.pods
        for container in pod.containers
        if not _last_wanted(last, pod.uid, container).unmanaged
    ]
    return managed, ""


def _last_wanted(last: Snapshot, uid: str, container: Container) -> Wanted:
    """A container that was created after the agent had listed the others for the last time began
    with the values of its pod."""
    of_pod = last.pods.get(uid)
    default = of_pod.of(container.name) if of_pod is not None else NOTHING
    return last.containers.get(container.id, default)


def _effective(
    managed: Iterable[tuple[Key, Container]], hierarchy: Hierarchy
) -> Iterator[tuple[Key, CpuSet]]:
    """The CPUs that containers run on, without containers that have ended meanwhile."""
    for key, container in managed:
        if container.group is not None:
            with contextlib.suppress(CgroupError):
                yield key, hierarchy.effective_cpus(container.group)


def _original_values(
    hierarchy: Hierarchy, controllers: Controllers, journal: Journal, container: Container
) -> LinuxResources:
    """The original values of a container, for an update of the runtime. A group that inherited its
    CPUs gets those of the machine."""
    group = container.group or "/"
    original = journal.originals.get(group)
    cpuset = original.cpus if original else ""
    texts = {
        file: limit_files.original(entry, controllers.read(group, file) or "")
        for (of, file), entry in journal.values.items()
        if of == group and not limit_files.is_of_strategies(file)
    }
    return msgspec.structs.replace(
        limit_files.parsed(controllers, group, texts),
        cpuset=cpuset or str(hierarchy.machine_cpus()),
    )


def _parent_cpus(hierarchy: Hierarchy, group: str) -> CpuSet:
    """The CPUs of the parent group; empty on v2, where the group inherits."""
    if hierarchy.version == 2:
        return EMPTY
    return hierarchy.own_cpus(group.rpartition("/")[0] or "/")
