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
    groups on which its change depends: on v2 its ancestors, on v1 ancestors that lack CPUs which it
    gains, and descendants that have CPUs which it loses."""
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
    mask = tree.cpus["/"].mask
    for each in (*ancestors(group), group) if group != "/" else ():
        mask = tree.cpus.get(each, EMPTY).mask & mask or mask
    return CpuSet.from_int(mask)


def plan(tree: GroupTree, wanted: Mapping[str, CpuSet]) -> list[Write]:
    """The writes that bring `tree` to `wanted`, in order. Raises ValueError for an impossible
    request: an empty set, the root, a group missing from the tree, or CPUs beyond those of a wanted
    ancestor. CPUs that the root lacks are not checked: the kernel refuses them."""
    targets = _targets(tree, wanted)
    changed = [group for group, cpus in targets.items() if cpus.mask != tree.cpus[group].mask]
    return list(_ordered(tree, targets, changed))


def _targets(tree: GroupTree, wanted: Mapping[str, CpuSet]) -> dict[str, CpuSet]:
    """The final value of each group that has one; top-down."""
    need = _needed(tree, wanted)
    targets: dict[str, CpuSet] = {}
    cut: set[str] = set()  # groups that must stay within a wanted one
    for group in sorted(sorted(tree.cpus), key=lambda group: group.count("/")):
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


def _needed(tree: GroupTree, wanted: Mapping[str, CpuSet]) -> dict[str, int]:
    """By ancestor of wanted groups, the CPUs that these want, as a mask. Raises ValueError for an
    impossible request."""
    need: dict[str, int] = {}
    for group, cpus in wanted.items():
        mask = cpus.mask
        if group == "/" or not mask:
            raise ValueError(f"{group!r} can't get the cpuset '{cpus}'")
        for each in ancestors(group):
            if tree.inherits and each not in tree.cpus:
                raise _lacks(group, each)
            if each in wanted and not cpus <= wanted[each]:
                text = f"{group!r} wants '{cpus}', {each!r} above it only '{wanted[each]}'"
                raise ValueError(text)
            need[each] = need.get(each, 0) | mask
        if group not in tree.cpus:
            raise _lacks(group, group)
    return need


def _lacks(group: str, missing: str) -> ValueError:
    return ValueError(f"{group!r} can't be planned: the tree lacks {missing!r}")


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
    held = {group: effective(tree, group).mask for group in changed} if tree.inherits else {**own}
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


class _Tasks(msgspec.Struct):
    """The writes of step 2, and by index those that come before one."""

    writes: list[Write] = []
    after: dict[int, set[int]] = {}
    """The writes that must come before it; no entry for none."""
    waits: dict[int, set[int]] = {}
    """The writes that free CPUs which this one adds, and should come before it; no entry for
    none."""

    def add(self, write: Write, after: set[int]) -> int:
        index = len(self.writes)
        self.writes.append(write)
        if after:
            self.after[index] = after
        return index

    def before(self, index: int) -> set[int]:
        return self.after.get(index, set()) | self.waits.get(index, set())


def _growing(changes: _Changes, targets: Mapping[str, CpuSet]) -> _Tasks:
    """Step 2: the writes of the groups that step 1 did not bring to their final value."""
    own, held, goals, below = changes.own, changes.held, changes.goals, changes.below
    tasks = _Tasks()
    grown: dict[str, int] = {}  # group -> its task on the way down
    final: dict[str, int] = {}  # group -> its last task
    deferred: list[str] = []
    for group in changes.groups:
        goal, now = goals[group], held[group]
        if now == goal:
            continue
        fits = group not in below or all(not held[each] & ~goal for each in below[group])
        value = goal if fits else now | goal
        if fits or (goal & ~now and value != own[group]):
            ancestor = changes.above.get(group)
            cpus = targets[group] if fits else CpuSet.from_int(value)
            after = {grown[ancestor]} if ancestor in grown else set()
            final[group] = grown[group] = tasks.add(Write(group, cpus), after)
        if not fits:
            deferred.append(group)
    for group in reversed(deferred):
        after = {final[each] for each in below.get(group, ()) if each in final}
        if group in grown:
            after.add(grown[group])
        final[group] = tasks.add(Write(group, targets[group]), after)

    losers = [(final[each], lost) for each in final if (lost := held[each] & ~goals[each])]
    for group, index in grown.items() if losers else ():
        gain = goals[group] & ~held[group]
        if waits := {loser for loser, lost in losers if lost & gain and loser != index}:
            tasks.waits[index] = waits
    return tasks


def _sequence(tasks: _Tasks) -> Iterator[Write]:
    """Writes each task after those in its `after` and `waits`. In a cycle, a task with nothing in
    `after` does not wait."""
    held_up = sorted(tasks.after.keys() | tasks.waits.keys())
    if not held_up:
        yield from tasks.writes
        return
    followers: dict[int, list[int]] = {}
    for index in held_up:
        for before in tasks.before(index):
            followers.setdefault(before, []).append(index)
    left = dict.fromkeys(range(len(tasks.writes)))
    ready = sorted(left.keys() - held_up)
    while left:
        if not ready:
            first = _in_cycle(tasks, next(iter(left)))
            tasks.waits.pop(first)
            ready.append(first)
        index = heapq.heappop(ready)
        del left[index]
        yield tasks.writes[index]
        for follower in followers.get(index, ()):
            if follower in left:
                tasks.after.get(follower, set()).discard(index)
                tasks.waits.get(follower, set()).discard(index)
                if not tasks.before(follower):
                    heapq.heappush(ready, follower)


def _in_cycle(tasks: _Tasks, start: int) -> int:
    """A task that waits, through others, for itself, and has nothing in `after`."""
    path: dict[int, int] = {}
    at = start
    while at not in path:
        path[at] = len(path)
        at = min(tasks.after.get(at) or tasks.waits[at])
    cycle = list(path)[path[at] :]
    return min(index for index in cycle if not tasks.after.get(index))
