"""One pass over the hierarchy: request, read, write, outcome. A failed write does not end the pass,
but the writes that depend on it are skipped: those that take a CPU which the failed group still
holds, and those that the kernel's rule now forbids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from agent.cgroup.hierarchy import CgroupError, GroupGone, Hierarchy
from agent.cgroup.order import GroupTree, Write, ancestors, effective, parent, plan
from agent.cgroup.outcome import GroupChange, WriteOutcome, WriteState
from agent.model.cpuset import CpuSet


class Round:
    """Used once: `ask` for each group, then `plan`, `run`, `read_back`, `outcome`. Only `own`
    raises for the state of the machine; otherwise the outcome reports it."""

    def __init__(self, hierarchy: Hierarchy) -> None:
        self._hierarchy = hierarchy
        self._inherits = hierarchy.version == 2
        self._own: dict[str, CpuSet] = {}  # as first read
        self._values: dict[str, CpuSet] = {}  # the tree that is planned, as it stands
        self._asked: dict[str, CpuSet] = {}
        self._right: dict[str, CpuSet] = {}
        self._notes: dict[str, str] = {}
        self._changes: dict[str, GroupChange] = {}
        self._others: dict[str, GroupChange] = {}

    def own(self, group: str) -> CpuSet:
        """The own value, read once; of the root what the machine has. Raises CgroupError."""
        own = self._own.get(group)
        if own is None:
            top = group == "/"  # on v2 the root has no own value
            read = self._hierarchy.effective_cpus if top else self._hierarchy.own_cpus
            own = self._own[group] = read(group)
        return own

    def target(self, group: str) -> CpuSet | None:
        """What the group is to hold at the end, if it was asked for and may still get it."""
        return self._asked.get(group) or self._right.get(group)

    def asked(self) -> list[str]:
        """The groups that are not right yet, nor settled."""
        return list(self._asked)

    def ask(self, group: str, cpus: CpuSet, note: str | None = None) -> None:
        """Give the group these CPUs, none of them beyond those of another group asked for above.

        A group that has them costs one read (on v2 two) and no more.
        """
        if note is not None:
            self._notes[group] = note
        try:
            if group == "/" or not cpus:
                self.fail(group, f"{group!r} can't be given the cpuset '{cpus}'")
            elif self.own(group) == cpus and self._is_effective(group, cpus):
                self._right[group] = cpus
                self.settle(group, WriteState.RIGHT)
            elif cpus <= self.own("/"):
                self._asked[group] = cpus
            else:
                offline = cpus - self.own("/")
                self.fail(group, f"CPUs '{offline}' are not among the machine's '{self.own('/')}'")
        except CgroupError as error:
            self.fail(group, error)

    def settle(
        self, group: str, state: WriteState, new: CpuSet | None = None, note: str | None = None
    ) -> None:
        """Records the result of the group; `new` when it differs from the value first read."""
        old = self._own.get(group)
        note = note or self._notes.get(group)
        self._changes[group] = GroupChange(group, state, old, old if new is None else new, note)

    def fail(self, group: str, reason: CgroupError | str) -> None:
        """Note that the group ended without what was asked, and ask no more for it."""
        self._asked.pop(group, None)
        self._changes[group] = self._failure(group, reason)

    def plan(self) -> list[Write]:
        """Read what the groups asked for depend on, and put the writes in order."""
        for group in sorted(self._asked):  # what is above comes first, and reads all below it
            try:
                own = self._values[group] = self.own(group)
                # On v1 what is above holds no less than the group, and what is below no more.
                if self._inherits or not self._asked[group] <= own:
                    for each in ancestors(group):
                        if each not in self._values:
                            self._values[each] = self.own(each)
                if not self._inherits and not own <= self._asked[group]:
                    self._read_below(group)
            except CgroupError as error:
                self.fail(group, error)
        if not self._asked:
            return []
        self._values["/"] = self.own("/")
        wishes = {group: cpus for group in self._values if (cpus := self.target(group)) is not None}
        return plan(GroupTree(self._values, self._inherits), wishes)

    def before(self, writes: Sequence[Write]) -> dict[str, CpuSet]:
        """The own values that the writes are going to replace, by group."""
        return {each.group: self._own[each.group] for each in writes}

    def run(self, writes: Sequence[Write]) -> None:
        """Write in this order."""
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
        for group, goal in goals.items():
            if group in self._asked:
                continue
            if group in self._changes:  # failed before, and cut with what is above it
                if group not in errors:
                    failed = self._changes[group]
                    self._changes[group] = msgspec.structs.replace(failed, new=goal)
            elif group in errors:
                self._others[group] = self._failure(group, errors[group])
            else:
                self._others[group] = GroupChange(group, WriteState.WRITTEN, self._own[group], goal)
        for group in [each for each in self._asked if each in errors]:
            self.fail(group, errors[group])

    def read_back(self) -> None:
        """Settle the groups asked for by what the kernel made of their values."""
        for group, cpus in list(self._asked.items()):
            self._read_back(group, cpus)

    def outcome(self) -> WriteOutcome:
        """What has come of it all."""
        changes, others = (
            tuple(each[group] for group in sorted(each)) for each in (self._changes, self._others)
        )
        return WriteOutcome(changes, others)

    def _is_effective(self, group: str, cpus: CpuSet) -> bool:
        return not self._inherits or self._hierarchy.effective_cpus(group) == cpus

    def _read_below(self, group: str) -> None:
        """Skips groups that are removed in between: they hold nothing any more."""
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
        """Raises CgroupError if the write would rest on one that failed.

        `failed`: what the failed groups should hold by now, at most.
        """
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
            for each, held in self._values.items():
                if parent(each) == group and not held <= cpus and each != "/":
                    raise CgroupError(f"not written: {each!r} still holds CPUs '{held}'")

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
