"""Applies cpusets: reads the hierarchy, plans, journals the original values, writes, reads back;
and restores the original values.

Nothing that happens on the machine raises an error: a group that vanished, a refused write or a
full disk becomes part of the outcome. After a failed write only the writes that depend on it are
skipped: those that take a CPU which the failed group still has, and those that the kernel would
refuse."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from agent.cgroup.hierarchy import CgroupError, GroupGone, Hierarchy, NotNested, Populated
from agent.cgroup.journal import Journal, JournalError, Original
from agent.cgroup.order import (
    GroupChange,
    GroupTree,
    Write,
    WriteOutcome,
    WriteState,
    ancestors,
    effective,
    parent,
    plan,
)
from agent.model.cpu.cpuset import CpuSet


class CpusetPass:
    """Writes cpusets once: `request` for each group, `plan` and `run` until nothing is left to do,
    `read_back`, `outcome`. Only `own` raises an error for what happens on the machine; the outcome
    has all others."""

    def __init__(self, hierarchy: Hierarchy) -> None:
        self._hierarchy = hierarchy
        self._inherits = hierarchy.version == 2
        self._own: dict[str, CpuSet] = {}  # own values as first read
        self._values: dict[str, CpuSet] = {}  # present own values of the planned tree
        self._requested: dict[str, CpuSet] = {}
        self._right: dict[str, CpuSet] = {}
        self._notes: dict[str, str] = {}
        self._changes: dict[str, GroupChange] = {}
        self._others: dict[str, GroupChange] = {}
        self._refused: set[str] = set()  # v1: because of groups above them or in them

    def own(self, group: str) -> CpuSet:
        """The own value, read once; for the root the machine's CPUs. Raises CgroupError."""
        own = self._own.get(group)
        if own is None:
            top = group == "/"  # on v2 the root has no own value
            own = self._hierarchy.machine_cpus() if top else self._hierarchy.own_cpus(group)
            self._own[group] = own
        return own

    def target(self, group: str) -> CpuSet | None:
        """The requested CPUs of the group, None if there are none or the request failed."""
        return self._requested.get(group) or self._right.get(group)

    def requested(self) -> list[str]:
        """The groups whose request is still to be written."""
        return list(self._requested)

    def request(self, group: str, cpus: CpuSet, note: str | None = None) -> None:
        """Requests these CPUs for the group; a requested group above it must have all of them.
        Costs one read (on v2 two) for a group that has them already."""
        if note is not None:
            self._notes[group] = note
        try:
            if group == "/" or not cpus:
                self.fail(group, f"{group!r} can't get the cpuset '{cpus}'")
            elif self.own(group).mask == cpus.mask and self._is_effective(group, cpus):
                self._right[group] = cpus
                self.settle(group, WriteState.RIGHT)
            elif cpus <= self.own("/"):
                self._requested[group] = cpus
            else:
                offline = cpus - self.own("/")
                self.fail(group, f"CPUs '{offline}' are not among the machine's '{self.own('/')}'")
        except CgroupError as error:
            self.fail(group, error)

    def settle(
        self, group: str, state: WriteState, new: CpuSet | None = None, note: str | None = None
    ) -> None:
        """Records the result of the group.

        `new`: its own value, None if it is the one that was first read."""
        old = self._own.get(group)
        note = note or self._notes.get(group)
        self._changes[group] = GroupChange(group, state, old, old if new is None else new, note)

    def fail(self, group: str, reason: CgroupError | str) -> None:
        """Records that the group does not get its wanted CPUs, and drops its request."""
        self._requested.pop(group, None)
        self._changes[group] = self._failure(group, reason)

    def plan(self) -> list[Write]:
        """Reads the groups on which the requested ones depend, and returns the writes in order."""
        for group in sorted(self._requested):  # parents first: they read all groups below them
            try:
                self._values.setdefault(group, self._own[group])
                if self._inherits or group in self._refused:
                    for each in ancestors(group):
                        if each not in self._values:
                            self._values[each] = self.own(each)
                if group in self._refused:
                    self._read_below(group)
            except CgroupError as error:
                self.fail(group, error)
        if not self._requested:
            return []
        self._values["/"] = self.own("/")
        right = {group: cpus for group, cpus in self._right.items() if group in self._values}
        return plan(GroupTree(self._values, self._inherits), right | self._requested)

    def before(self, writes: Sequence[Write]) -> dict[str, CpuSet]:
        """The own values that the writes replace, by group."""
        return {each.group: self._own[each.group] for each in writes}

    def run(self, writes: Sequence[Write]) -> bool:
        """Writes in this order. Returns False if the rest is to be planned again: v1 refused a
        write because of groups above or below. The plan reads these only then, because few pods
        lack CPUs and few containers have groups in them."""
        goals = {each.group: each.cpus for each in writes}
        errors: dict[str, CgroupError] = {}
        for each in writes:
            if each.group in errors:
                continue
            try:
                if errors:
                    self._check(each, {group: goals[group] for group in errors})
                self._hierarchy.write(each.group, each.cpus)
                self._values[each.group] = each.cpus
            except CgroupError as error:
                errors[each.group] = error
                if isinstance(error, GroupGone):
                    self._drop(each.group)
        refused = {group for group, error in errors.items() if isinstance(error, NotNested)}
        again = bool(refused & self._requested.keys() - self._refused)
        self._refused |= refused
        for group, goal in goals.items():
            if group in self._requested or (again and group in errors):
                continue
            if group in self._changes:  # its request failed, and it was cut with its parent
                if group not in errors:
                    failed = self._changes[group]
                    self._changes[group] = msgspec.structs.replace(failed, new=goal)
            elif group in errors:
                self._others[group] = self._failure(group, errors[group])
            else:
                self._others[group] = GroupChange(group, WriteState.WRITTEN, self._own[group], goal)
        for group in [each for each in self._requested if each in errors and not again]:
            self.fail(group, errors[group])
        return not again

    def read_back(self) -> None:
        """Settles the requested groups by the values that the kernel reports now."""
        for group, cpus in list(self._requested.items()):
            self._read_back(group, cpus)

    def outcome(self) -> WriteOutcome:
        changes, others = (
            tuple(each[group] for group in sorted(each)) for each in (self._changes, self._others)
        )
        return WriteOutcome(changes, others)

    def _is_effective(self, group: str, cpus: CpuSet) -> bool:
        return not self._inherits or self._hierarchy.effective_cpus(group) == cpus

    def _read_below(self, group: str) -> None:
        """Reads the own values of all groups below, except those that are removed meanwhile."""
        stack = list(self._hierarchy.children(group))
        while stack:
            each = stack.pop()
            if each in self._values:
                continue
            try:
                self._values[each] = self.own(each)
                stack += self._hierarchy.children(each)
            except GroupGone:
                self._drop(each)

    def _drop(self, group: str) -> None:
        for each in [one for one in self._values if f"{one}/".startswith(f"{group}/")]:
            del self._values[each]

    def _check(self, write: Write, failed: Mapping[str, CpuSet]) -> None:
        """Raises CgroupError if the write depends on one that failed.

        `failed`: the CPUs that were to be written to each failed group."""
        now = GroupTree(self._values, self._inherits)
        group, cpus = write.group, write.cpus
        if group not in self._values:
            raise GroupGone(f"{group!r} ended with a group above it")
        gain = cpus - effective(now, group)
        for other, goal in failed.items():
            if other in self._values and (stuck := (effective(now, other) - goal) & gain):
                raise CgroupError(f"not written: {other!r} failed to give up CPUs '{stuck}'")
        above = parent(group)
        room = effective(now, above) if self._inherits or above in self._values else cpus
        if not cpus <= room:
            raise CgroupError(f"not written: {parent(group)!r} has only CPUs '{room}'")
        if not self._inherits:
            for below, held in self._values.items():
                if parent(below) == group and not held <= cpus and below != "/":
                    raise CgroupError(f"not written: {below!r} still holds CPUs '{held}'")

    def _read_back(self, group: str, cpus: CpuSet) -> None:
        try:
            own = self._hierarchy.own_cpus(group)
            if own == cpus and self._is_effective(group, cpus):
                same = own == self._own[group]
                self.settle(group, WriteState.RIGHT if same else WriteState.WRITTEN, own)
            else:
                counts = self._hierarchy.effective_cpus(group)
                self.fail(group, f"'{cpus}' was written, '{own}' read back ('{counts}' effective)")
        except CgroupError as error:
            self.fail(group, error)

    def _failure(self, group: str, reason: CgroupError | str) -> GroupChange:
        state = WriteState.GONE if isinstance(reason, GroupGone) else WriteState.FAILED
        return GroupChange(group, state, self._own.get(group), None, str(reason))


def apply(hierarchy: Hierarchy, journal: Journal, wanted: Mapping[str, CpuSet]) -> WriteOutcome:
    """Gives each group its CPUs. Journals the value of a group before its first write.

    If all values are correct, this costs one read of each group (on v2 two) and no write. If the
    journal can't be written, no group is written: every changed value must be restorable.
    """
    pass_ = CpusetPass(hierarchy)
    for group, cpus in sorted(wanted.items()):
        conflict = _conflict(wanted, group)
        if conflict is None:
            pass_.request(group, cpus)
        else:
            pass_.fail(group, conflict)
    done = False
    while not done:
        writes = pass_.plan()
        try:
            _journal_originals(hierarchy, journal, pass_.before(writes))
            done = pass_.run(writes)
        except JournalError as error:
            for group in pass_.requested():
                pass_.fail(group, str(error))
    pass_.read_back()
    return pass_.outcome()


def restore(
    hierarchy: Hierarchy,
    journal: Journal,
    chosen: Mapping[str, CpuSet] | None = None,
    only: Collection[str] | None = None,
) -> WriteOutcome:
    """Restores the original value of every journalled group, or of those in `only`, and removes the
    restored entries. On v2 an empty set lets the group inherit; when the kernel refuses that, it
    gets every CPU of the parent, with a note. On v1 a value beyond the parent's is cut to the
    parent's, with a note, and a group whose value was empty (so that it had no process) keeps its
    value.

    `chosen`: the values of groups that are not in the journal, because they began with a value of
        the agent; they override the journal."""
    values = {
        group: CpuSet.parse(original.cpus)
        for group, original in journal.originals.items()
        if only is None or group in only
    }
    values.update(chosen or {})
    pass_ = CpusetPass(hierarchy)
    for group in sorted(values, key=lambda group: (group.count("/"), group)):
        try:
            if hierarchy.version == 2:
                _write_original(hierarchy, pass_, group, values[group])
            else:
                _request_original(pass_, group, values[group])
        except CgroupError as error:
            pass_.fail(group, error)
    while not pass_.run(pass_.plan()):
        pass
    pass_.read_back()
    outcome = pass_.outcome()
    try:
        journal.remove(
            change.group for change in outcome.changes if change.state is not WriteState.FAILED
        )
    except JournalError as error:
        return msgspec.structs.replace(outcome, journal_error=str(error))
    return outcome


def _conflict(wanted: Mapping[str, CpuSet], group: str) -> str | None:
    cpus, nested = wanted[group], ancestors(group)
    for above in nested if not wanted.keys().isdisjoint(nested) else ():
        if above in wanted and not cpus <= wanted[above]:
            return f"'{cpus}' is beyond '{wanted[above]}', which {above!r} is to get"
    return None


def _journal_originals(
    hierarchy: Hierarchy, journal: Journal, before: Mapping[str, CpuSet]
) -> None:
    """Raises JournalError."""
    new = [Original(group, str(own)) for group, own in before.items() if group not in journal]
    if new:
        ended = [group for group in journal.originals if not hierarchy.exists(group)]
        journal.update(new, remove=ended)


def _write_original(hierarchy: Hierarchy, pass_: CpusetPass, group: str, cpus: CpuSet) -> None:
    """Writes at once: v2 accepts any order, and cuts the effective CPUs itself."""
    if pass_.own(group) == cpus:
        pass_.settle(group, WriteState.RIGHT)
        return
    note = None
    try:
        if cpus:
            hierarchy.write(group, cpus)
        else:
            hierarchy.inherit(group)
    except Populated:
        above = parent(group)
        cpus, note = hierarchy.effective_cpus(above), f"is used, so it got every CPU of {above!r}"
        hierarchy.write(group, cpus)
    pass_.settle(group, WriteState.WRITTEN, cpus, note)


def _request_original(pass_: CpusetPass, group: str, cpus: CpuSet) -> None:
    """Is called top-down, because it needs the targets of the groups above."""
    if not cpus:
        pass_.own(group)
        pass_.settle(group, WriteState.RIGHT, note="was empty: its value stays")
        return
    room = pass_.own("/")
    for above in ancestors(group):
        room = pass_.target(above) or (pass_.own(above) & room) or room
    within = (cpus & room) or room
    cut = None if within == cpus else f"'{cpus}' is not within the group above ('{room}')"
    pass_.request(group, within, cut)
