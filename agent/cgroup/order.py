"""Which `cpuset.cpus` to write, and in which order; and the outcomes of writes.

The rule of cgroup v1: the kernel refuses a cpuset that is not within the parent's (EACCES) or does
not contain every child's (EBUSY). cgroup v2 refuses nothing. There a group uses only those of its
CPUs that its parent has (`effective`), and all of the parent's CPUs if its own value has none of
them.

The final values:

* a wanted group gets exactly the wanted CPUs;
* an ancestor that lacks some of them grows (own | wanted) and never shrinks;
* a descendant with more CPUs is cut to (own & wanted), or to wanted if nothing would be left. Only
  v1 needs that: on v2 the kernel cuts the effective CPUs.

The writes are in two steps. After every single write, the CPUs of each group are within those of
its parent, and no group is without CPUs:

1. Shrink, bottom-up. A group gives up the CPUs that it loses, except those that its children still
   have. A group that both loses and gains CPUs does so only if another group gains what it loses;
   otherwise its final value is written once, in step 2. A group that keeps none of its CPUs waits
   for step 2, as a cpuset can't be empty.
2. Grow, top-down. The final value is written at once. If a child still has CPUs that the group
   loses, (old | new) is written first and the final value after the children.

So a CPU that moves leaves the old group before it enters the new one. Groups that step 1 could not
change are written before those that wait for their CPUs. If groups wait for each other in a cycle,
one of them is written first and shares a CPU for some writes."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import lru_cache

import msgspec

from agent.model.cpu.cpuset import EMPTY, CpuSet


class WriteState(Enum):
    """The result for one group."""

    RIGHT = "right"
    WRITTEN = "written"
    GONE = "gone"
    FAILED = "failed"


class GroupChange(msgspec.Struct, frozen=True):
    """The change of a group's cpuset, in own values: None if unknown, empty for a v2 group that
    inherits."""

    group: str
    state: WriteState
    old: CpuSet | None = None
    new: CpuSet | None = None
    note: str | None = None
    """The reason of a failure, or why `new` is not the requested value."""


class WriteOutcome(msgspec.Struct, frozen=True):
    """What was written to cpusets, sorted by group."""

    changes: tuple[GroupChange, ...] = ()
    """One for each requested group."""
    others: tuple[GroupChange, ...] = ()
    """Ancestors that had to grow and descendants that had to shrink."""
    journal_error: str | None = None
    """Why restored entries are still in the journal, although the values are correct."""

    def having(self, state: WriteState) -> tuple[GroupChange, ...]:
        """The requested groups with this result."""
        return tuple(each for each in self.changes if each.state is state)

    @property
    def ok(self) -> bool:
        """Whether nothing failed; a removed group does not count as a failure."""
        return self.journal_error is None and all(
            each.state is not WriteState.FAILED for each in (*self.changes, *self.others)
        )


class ValueChange(msgspec.Struct, frozen=True):
    """The change of one file of a group, other than its CPUs. Contents are None if unknown."""

    group: str
    file: str
    state: WriteState
    old: str | None = None
    new: str | None = None
    note: str | None = None
    refused: bool = False
    """The state of the group does not allow the value."""
    errno: int | None = None
    """The error of the kernel, if it is one."""


class ValueOutcome(msgspec.Struct, frozen=True):
    """What was written to other files of groups."""

    changes: tuple[ValueChange, ...] = ()
    """One for each requested file, sorted by group and file."""
    journal_error: str | None = None
    """Why restored entries are still in the journal, None if they are not."""

    def having(self, state: WriteState) -> tuple[ValueChange, ...]:
        """The files with this result."""
        return tuple(each for each in self.changes if each.state is state)

    @property
    def ok(self) -> bool:
        """Whether nothing failed; a removed group does not count as a failure."""
        return self.journal_error is None and not self.having(WriteState.FAILED)


class Write(msgspec.Struct, frozen=True):
    """One write of `cpuset.cpus`; never an empty set."""

    group: str
    cpus: CpuSet


class GroupTree(msgspec.Struct, frozen=True):
    """The present CPUs of groups."""

    cpus: Mapping[str, CpuSet]
    """The own values by group: of `/` (its effective CPUs), of every wanted group, and of the
    groups on which its change depends: its ancestors, and on v1 its descendants. On v1 a group that
    only loses CPUs needs no ancestors, and one that only gains CPUs no descendants."""
    inherits: bool
    """The groups are in cgroup v2, where a group with an empty value has the CPUs of its parent."""


def parent(group: str) -> str:
    """The parent group; the root is its own parent."""
    return group.rpartition("/")[0] or "/"


@lru_cache(maxsize=1_024)
def ancestors(group: str) -> tuple[str, ...]:
    """The ancestors from the top down to the group's parent, without the root."""
    parts = group.split("/")
    return tuple("/".join(parts[:end]) for end in range(2, len(parts)))


def effective(tree: GroupTree, group: str) -> CpuSet:
    """The CPUs in force in a group: on v1 its own value."""
    if not tree.inherits:
        return tree.cpus[group]
    cpus = tree.cpus["/"]
    for each in (*ancestors(group), group) if group != "/" else ():
        cpus = (tree.cpus.get(each, EMPTY) & cpus) or cpus
    return cpus


def plan(tree: GroupTree, wanted: Mapping[str, CpuSet]) -> list[Write]:
    """The writes that bring `tree` to `wanted`, in order. Raises ValueError for an impossible
    request: an empty set, the root, a group missing from the tree, or CPUs beyond those of a wanted
    ancestor. CPUs that the root lacks are not checked: the kernel refuses them."""
    targets = _targets(tree, wanted)
    changed = [group for group in _top_down(targets) if targets[group] != tree.cpus[group]]
    return list(_ordered(tree, targets, changed))


def _top_down(groups: Mapping[str, CpuSet]) -> list[str]:
    return sorted(groups, key=lambda group: (group.count("/"), group))


def _targets(tree: GroupTree, wanted: Mapping[str, CpuSet]) -> dict[str, CpuSet]:
    """The final value of each group that has one; top-down."""
    need: dict[str, int] = {}
    for group, cpus in wanted.items():
        _check(tree, wanted, group)
        for each in ancestors(group):
            need[each] = need.get(each, 0) | cpus.mask
    targets: dict[str, CpuSet] = {}
    cut: set[str] = set()  # groups that must stay within a wanted one
    for group in _top_down(tree.cpus):
        own = tree.cpus[group]
        if group == "/":
            continue
        if group in wanted:
            cut.add(group)
            targets[group] = wanted[group]
        elif tree.inherits:
            targets[group] = _grown(own, need.get(group, 0)) if own else own
        else:
            above = parent(group)
            if above in cut:
                cut.add(group)
                if not own <= targets[above]:
                    own = (own & targets[above]) or targets[above]
            targets[group] = _grown(own, need.get(group, 0))
    return targets


def _grown(own: CpuSet, need: int) -> CpuSet:
    return CpuSet.from_int(own.mask | need) if need & ~own.mask else own


def _check(tree: GroupTree, wanted: Mapping[str, CpuSet], group: str) -> None:
    cpus = wanted[group]
    if group == "/" or not cpus:
        raise ValueError(f"{group!r} can't get the cpuset '{cpus}'")
    loses = not tree.inherits and group in tree.cpus and cpus <= tree.cpus[group]
    for each in (*ancestors(group), group):
        if each not in tree.cpus and not loses:
            raise ValueError(f"{group!r} can't be planned: the tree lacks {each!r}")
        if each in wanted and not cpus <= wanted[each]:
            raise ValueError(f"{group!r} wants '{cpus}', {each!r} above it only '{wanted[each]}'")


class _Changes(msgspec.Struct):
    """The groups that change, top-down, with their CPUs as masks."""

    groups: list[str]
    own: dict[str, int]
    """The own values after the writes so far."""
    held: dict[str, int]
    """The effective values after the writes so far."""
    goals: dict[str, int]
    """The final values."""
    above: dict[str, str]
    """By group, its nearest ancestor that changes."""
    below: dict[str, list[str]]
    """By ancestor, the groups that have it in `above`."""


def _changes(tree: GroupTree, targets: Mapping[str, CpuSet], changed: list[str]) -> _Changes:
    own = {group: tree.cpus[group].mask for group in changed}
    held = {group: effective(tree, group).mask for group in changed}
    goals = {group: targets[group].mask for group in changed}
    above: dict[str, str] = {}
    below: dict[str, list[str]] = {}
    for group in changed:
        for each in reversed(ancestors(group)):
            if each in own:
                above[group] = each
                below.setdefault(each, []).append(group)
                break
    return _Changes(changed, own, held, goals, above, below)


def _ordered(tree: GroupTree, targets: Mapping[str, CpuSet], changed: list[str]) -> Iterator[Write]:
    changes = _changes(tree, targets, changed)
    yield from _shrink(changes, targets)
    yield from _sequence(_growing(changes, targets))


def _shrink(changes: _Changes, targets: Mapping[str, CpuSet]) -> Iterator[Write]:
    own, held, goals, below = changes.own, changes.held, changes.goals, changes.below
    gained = 0
    for group in changes.groups:
        gained |= goals[group] & ~held[group]
    for group in reversed(changes.groups):
        goal, now = goals[group], held[group]
        lost = now & ~goal
        if goal & ~now and not lost & gained:
            continue
        least = goal
        for descendant in below.get(group, ()):
            least |= held[descendant]
        least &= now
        if least and least != own[group]:
            yield Write(group, targets[group] if least == goal else CpuSet.from_int(least))
            own[group] = held[group] = least


class _Task(msgspec.Struct):
    """A write of step 2."""

    write: Write
    after: set[int]
    """The tasks that must come before it, by index."""
    waits: set[int] = msgspec.field(default_factory=set)
    """The tasks that free CPUs which this one adds, and should come before it."""


def _growing(changes: _Changes, targets: Mapping[str, CpuSet]) -> list[_Task]:
    """Step 2: the writes of the groups that step 1 did not bring to their final value."""
    own, held, goals, below = changes.own, changes.held, changes.goals, changes.below
    tasks: list[_Task] = []
    grown: dict[str, int] = {}  # group -> its task on the way down
    final: dict[str, int] = {}  # group -> its last task
    deferred: list[str] = []
    for group in changes.groups:
        goal, now = goals[group], held[group]
        if now == goal:
            continue
        fits = all(not held[each] & ~goal for each in below.get(group, ()))
        value = goal if fits else now | goal
        if fits or (goal & ~now and value != own[group]):
            ancestor = changes.above.get(group)
            final[group] = grown[group] = len(tasks)
            cpus = targets[group] if fits else CpuSet.from_int(value)
            after = {grown[ancestor]} if ancestor in grown else set()
            tasks.append(_Task(Write(group, cpus), after))
        if not fits:
            deferred.append(group)
    for group in reversed(deferred):
        after = {final[each] for each in below.get(group, ()) if each in final}
        if group in grown:
            after.add(grown[group])
        final[group] = len(tasks)
        tasks.append(_Task(Write(group, targets[group]), after))

    losers = [(final[each], lost) for each in final if (lost := held[each] & ~goals[each])]
    for group, index in grown.items():
        gain = goals[group] & ~held[group]
        tasks[index].waits = {loser for loser, lost in losers if lost & gain and loser != index}
    return tasks


def _sequence(tasks: list[_Task]) -> Iterator[Write]:
    """Writes each task after those in its `after` and `waits`. In a cycle, a task with nothing in
    `after` does not wait."""
    followers: list[list[int]] = [[] for _ in tasks]
    for index, task in enumerate(tasks):
        for before in task.after | task.waits:
            followers[before].append(index)
    left = dict.fromkeys(range(len(tasks)))
    ready = [index for index in left if not tasks[index].after | tasks[index].waits]
    while left:
        if not ready:
            first = _in_cycle(tasks, next(iter(left)))
            tasks[first].waits.clear()
            ready.append(first)
        index = heapq.heappop(ready)
        del left[index]
        yield tasks[index].write
        for follower in followers[index]:
            if follower in left:
                tasks[follower].after.discard(index)
                tasks[follower].waits.discard(index)
                if not tasks[follower].after | tasks[follower].waits:
                    heapq.heappush(ready, follower)


def _in_cycle(tasks: list[_Task], start: int) -> int:
    """A task that waits, through others, for itself, and has nothing in `after`."""
    path: dict[int, int] = {}
    at = start
    while at not in path:
        path[at] = len(path)
        at = min(tasks[at].after or tasks[at].waits)
    cycle = list(path)[path[at] :]
    return min(index for index in cycle if not tasks[index].after)
