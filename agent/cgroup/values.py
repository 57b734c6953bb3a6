"""Applies limits of cgroups: reads the files, journals the original values, writes in a legal
order, reads back; and restores the original values.

Nothing that happens on the machine raises an error: a group that vanished, a refused write or a
full disk becomes part of the outcome. The other writes follow a failed one: the kernel refuses
those that depend on it.

* A file whose value means the same already is not written.
* On v1 a child's quota or memory nodes can't exceed its parent's (EINVAL, EACCES, EBUSY). So values
  that grow are written first, from the top down, then values that shrink, from the bottom up.
  Groups that were not requested are never written.
* With swap accounting, v1 refuses a memory limit above the limit of memory and swap (EINVAL).
  Runtimes set both to the same value when a container may not swap, so the second is raised first.
* A memory limit below the present use is not written: v2 would kill processes, and v1 reclaims for
  half a second before it refuses (EBUSY).
* A change that failed because of the group's own processes, its parent or its other values is
  marked as refused: a pod's author can cause that, and it concerns that pod alone. For example, the
  kernel refuses a quota beyond the parent's (v1), and any weight while `cpu.idle` is set.
* v2 moves pages whenever memory nodes change; v1 does with `migrate`, which is written first. v2
  accepts nodes that the parent does not have; they have no effect, and count as written.
* The groups that pods share belong to the kubelet (pkg/kubelet/cm,
  qos_container_manager_linux.go, UpdateCgroups): values for them fail."""

from __future__ import annotations

import errno
from collections.abc import Collection, Iterator, Mapping

import msgspec

from agent.cgroup import limits as limit_files
from agent.cgroup.hierarchy import MEMS, CgroupError, Controllers, GroupGone
from agent.cgroup.journal import Journal, JournalError, OriginalValue
from agent.cgroup.limits import (
    MAX,
    MEMORY,
    MEMORY_AND_SWAP,
    MIGRATE,
    QUOTA,
    USE,
)
from agent.cgroup.order import ancestors, parent
from agent.cgroup.outcome import ValueChange, ValueOutcome, WriteState
from agent.model.linux_resources import NO_QUOTA, LinuxResources
from agent.model.pod.qos import is_qos_root

_EFFECTIVE_MEMS = "cpuset.mems.effective"
_REFUSALS = frozenset({errno.EBUSY, errno.EINVAL, errno.ERANGE})
"""Errors for a value that the state of the group does not allow. All other errors are faults."""


class _UnfitValueError(CgroupError):
    """The value was not written, because the state of the group does not allow it."""


class ValueWrite(msgspec.Struct, frozen=True):
    """One write, and the content of the file before all of them."""

    group: str
    file: str
    old: str
    new: str


class LimitsPass:
    """Writes files once: `request` or `request_original` for each file, then `run`, then
    `changes`. Raises no error for what happens on the machine."""

    def __init__(self, controllers: Controllers) -> None:
        self._controllers = controllers
        self._steps: dict[tuple[str, str], ValueWrite] = {}
        self._changes: dict[tuple[str, str], ValueChange] = {}
        self._notes: dict[tuple[str, str], str] = {}

    def request(self, group: str, file: str, resources: LinuxResources) -> None:
        """Requests the value that the resources have for the file. On v2 a group for which its
        parent does not enable the controller does not have a limit to remove."""
        try:
            if limit_files.lifts(resources, file) and self._controllers.read(group, file) is None:
                self._settle(group, file, WriteState.RIGHT)
                return
            old = self._present(group, file)
            new = limit_files.text(self._controllers, group, file, resources, old)
            self._compare(group, file, old, new)
        except (CgroupError, ValueError) as error:
            self.fail(group, file, error)

    def request_original(self, group: str, file: str, original: str) -> None:
        """Requests the original content of the file."""
        try:
            old = self._present(group, file)
            if file == MEMS and not original and self._controllers.version("cpuset") == 1:
                note = "was empty: its value stays"
                self._settle(group, file, WriteState.RIGHT, old, old, note)
            else:
                self._compare(group, file, old, original)
        except (CgroupError, ValueError) as error:
            self.fail(group, file, error)

    def steps(self) -> list[ValueWrite]:
        """The writes to be done, by group and file."""
        return list(self._steps.values())

    def fail(self, group: str, file: str, reason: Exception | str) -> None:
        """Records that the file does not get its wanted content, and drops its write."""
        step = self._steps.pop((group, file), None)
        state = WriteState.GONE if isinstance(reason, GroupGone) else WriteState.FAILED
        old = step.old if step else None
        self._settle(group, file, state, old, note=str(reason), refused=_refused(reason))

    def run(self) -> None:
        """Writes in order, and records the content of each file afterwards."""
        for step in _ordered(self.steps(), self._controllers.version("cpuset") == 1):
            if (step.group, step.file) in self._steps:
                try:
                    self._write(step)
                except (CgroupError, ValueError) as error:
                    self.fail(step.group, step.file, error)
        for step in self.steps():
            try:
                self._read_back(step)
            except (CgroupError, ValueError) as error:
                self.fail(step.group, step.file, error)

    def changes(self) -> tuple[ValueChange, ...]:
        """The outcome of all files, sorted."""
        return tuple(self._changes[key] for key in sorted(self._changes))

    def _present(self, group: str, file: str) -> str:
        text = self._controllers.read(group, file)
        if text is None:
            raise CgroupError(f"{group!r} has no {file}")
        return text

    def _compare(self, group: str, file: str, old: str, new: str) -> None:
        if limit_files.same(file, old, new):
            self._settle(group, file, WriteState.RIGHT, old, old)
        else:
            self._steps[group, file] = ValueWrite(group, file, old, new)

    def _write(self, step: ValueWrite) -> None:
        if step.file in USE and not limit_files.grows(step.file, step.old, step.new):
            used = int(self._present(step.group, USE[step.file]))
            if used > limit_files.memory_of(step.new):
                raise _UnfitValueError(f"{step.group!r} uses more than {step.new} bytes")
        if step.file == MEMORY:
            both = self._controllers.read(step.group, MEMORY_AND_SWAP)
            if both is not None and limit_files.grows(MEMORY, both, step.new):
                self._controllers.write(step.group, MEMORY_AND_SWAP, step.new)
        try:
            self._controllers.write(step.group, step.file, step.new)
        except CgroupError as error:
            cause = error.__cause__
            clears = step.file == MEMS and not step.new
            if not (clears and isinstance(cause, OSError) and cause.errno == errno.ENOSPC):
                raise
            self._write_nodes_above(step)

    def _write_nodes_above(self, step: ValueWrite) -> None:
        """Writes the parent's nodes to a v2 group with processes: the kernel (as 6.1) refuses to
        let it inherit again."""
        above = parent(step.group)
        nodes = self._present(above, _EFFECTIVE_MEMS)
        self._controllers.write(step.group, step.file, nodes)
        self._steps[step.group, step.file] = msgspec.structs.replace(step, new=nodes)
        self._notes[step.group, step.file] = f"is used, so it got every node of {above!r}"

    def _read_back(self, step: ValueWrite) -> None:
        group, file = step.group, step.file
        now = self._present(group, file)
        if not limit_files.same(file, now, step.new):
            raise CgroupError(f"'{step.new}' was written to {file}, '{now}' read back")
        del self._steps[group, file]
        self._settle(group, file, WriteState.WRITTEN, step.old, now, self._notes.get((group, file)))

    def _settle(
        self,
        group: str,
        file: str,
        state: WriteState,
        old: str | None = None,
        new: str | None = None,
        note: str | None = None,
        *,
        refused: bool = False,
    ) -> None:
        self._changes[group, file] = ValueChange(group, file, state, old, new, note, refused)


def _refused(reason: Exception | str) -> bool:
    if not isinstance(reason, CgroupError):
        return False
    cause = reason.__cause__
    by_kernel = isinstance(cause, OSError) and cause.errno in _REFUSALS
    return by_kernel or isinstance(reason, _UnfitValueError)


def _ordered(steps: list[ValueWrite], nested_nodes: bool) -> Iterator[ValueWrite]:
    """First the files that others depend on, then values that grow, from the top, then values that
    shrink, from the bottom.

    `nested_nodes`: a group's memory nodes must contain those of every group in it, as on v1. If a
    group gets other nodes and a group below it changes too, it has the old and the new nodes until
    that group has changed.
    """
    top_down = sorted(steps, key=lambda step: (step.group.count("/"), step.group))
    above = {ancestor for step in steps if step.file == MEMS for ancestor in ancestors(step.group)}
    shrinking = []
    yield from (step for step in top_down if step.file == MIGRATE)
    for step in top_down:
        if step.file == MIGRATE:
            continue
        if not limit_files.grows(step.file, step.old, step.new):
            shrinking.append(step)
        elif nested_nodes and step.file == MEMS and step.group in above:
            both = limit_files.nodes(step.old) | limit_files.nodes(step.new)
            if both != limit_files.nodes(step.new):
                shrinking.append(step)
            yield msgspec.structs.replace(step, new=str(both))
        else:
            yield step
    yield from reversed(shrinking)


def apply(
    controllers: Controllers,
    journal: Journal,
    wanted: Mapping[str, LinuxResources],
    *,
    migrate: bool = False,
) -> ValueOutcome:
    """Gives each group its values, except its cpuset. Journals the value of a file before its first
    write. If all values are correct, this costs one read of each file (for a v1 quota a second, of
    its period) and no write. If the journal can't be written, no other file is written.

    `migrate`: on v1, the pages of a group move when its memory nodes change."""
    pass_ = LimitsPass(controllers)
    lifts = set()
    for group, resources in sorted(wanted.items()):
        shared = group == "/" or is_qos_root(group)
        for file in limit_files.files(controllers, resources, migrate=migrate):
            if shared:
                pass_.fail(group, file, f"{group!r} is shared by pods, and the kubelet's own")
            else:
                pass_.request(group, file, resources)
                lifted = resources.quota == NO_QUOTA and resources.shares is None
                if lifted and file in (QUOTA, MAX):
                    lifts.add((group, file))
    try:
        _journal_originals(controllers, journal, pass_, lifts)
    except JournalError as error:
        for step in pass_.steps():
            pass_.fail(step.group, step.file, str(error))
    pass_.run()
    return ValueOutcome(pass_.changes())


def restore(
    controllers: Controllers, journal: Journal, only: Collection[tuple[str, str]] | None = None
) -> ValueOutcome:
    """Restores the original value of every journalled file, or of those in `only` (group and name),
    and removes the restored entries. Empty memory nodes become empty again on v2; when the kernel
    refuses that, they become those of the parent, and the note says so. On v1 such a group keeps
    its nodes."""
    pass_ = LimitsPass(controllers)
    for (group, file), original in journal.values.items():
        if only is None or (group, file) in only:
            pass_.request_original(group, file, original.value)
    pass_.run()
    changes = pass_.changes()
    settled = [(each.group, each.file) for each in changes if each.state is not WriteState.FAILED]
    try:
        journal.update_values((), settled)
    except JournalError as error:
        return ValueOutcome(changes, str(error))
    return ValueOutcome(changes)


def _journal_originals(
    controllers: Controllers,
    journal: Journal,
    pass_: LimitsPass,
    lifts: Collection[tuple[str, str]],
) -> None:
    """Journals the values that the writes replace. If another process sets a quota again that the
    agent lifts, as a kubelet does with every resize, that value becomes the original.

    `lifts`: group and file of these quotas.

    Raises JournalError."""
    new = [
        OriginalValue(step.group, step.file, step.old)
        for step in pass_.steps()
        if (step.group, step.file) not in journal or (step.group, step.file) in lifts
    ]
    if new:
        ended = [key for key in journal.values if not controllers.has(*key)]
        journal.update_values(new, ended + [(value.group, value.file) for value in new])
