"""The `oom_score_adj` of the processes of a group (proc(5)), journalled as if it were a file of the
group.

A process begins with the value of its parent, and may set another. So the value of a group is that
of its oldest process when it is first replaced, and only processes that have it, or one that the
agent wrote, are changed: a value that a process has chosen for itself stays. A process that the
runtime starts in the group has the runtime's own value for a moment.

The journal has the value of the group, and as `written` those of the agent that its processes have
or get, before they get it: so an agent that was killed knows which processes have its value. What
is journalled of a group does not grow with its processes."""

from __future__ import annotations

import contextlib
import errno
import math
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

import msgspec

from agent.cgroup.hierarchy import OOM_SCORE_ADJ, CgroupError, Controllers, GroupGone
from agent.cgroup.journal import Journal, JournalError, OriginalValue
from agent.cgroup.order import ValueChange, WriteState

MOST_PROCESSES: Final = 1_024
"""So many processes of a group have the value at most; the children of these begin with it."""
_AT_ONCE: Final = 64
"""So many processes have their file open at the same time."""
_START_TIME: Final = 19
"""The index of the field behind the name in /proc/PID/stat, in ticks (proc_pid_stat(5))."""
_ENDED: Final = frozenset({errno.ENOENT, errno.ESRCH})


class _Plan(msgspec.Struct, frozen=True):
    """What changes in one group."""

    group: str
    replaced: frozenset[int]
    new: int
    pids: tuple[int, ...]
    """The processes that have a replaced value."""
    entry: OriginalValue
    """What the journal must have before."""


def apply(
    controllers: Controllers, journal: Journal, wanted: Mapping[str, str]
) -> Iterator[ValueChange]:
    """Gives the processes of groups, and of the groups in them, these values."""
    entries, plans, new = journal.values, [], []
    for group, text in sorted(wanted.items()):
        entry = entries.get((group, OOM_SCORE_ADJ))
        try:
            plan = _plan(group, _scores(controllers, group), int(text), entry)
        except (CgroupError, ValueError) as error:
            yield _failed(group, error)
            continue
        if plan.pids and plan.entry != entry:
            new.append(plan.entry)
        plans.append(plan)
    try:
        journal.update_values(new, [(entry.group, entry.file) for entry in new])
    except JournalError as error:
        yield from (_failed(plan.group, error) for plan in plans if plan.pids)
        plans = [plan for plan in plans if not plan.pids]
    for plan in plans:
        yield _changed(controllers, plan)


def differing(controllers: Controllers, wanted: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The groups whose processes `apply` would change, with the value that these have; a group that
    can't be read is left out. Writes nothing."""
    for group, text in sorted(wanted.items()):
        with contextlib.suppress(CgroupError):
            plan = _plan(group, _scores(controllers, group), int(text), None)
            if plan.pids:
                yield group, " ".join(map(str, plan.replaced))


def present(controllers: Controllers, group: str) -> str:
    """The values that its processes have. Raises CgroupError, GroupGone."""
    return " ".join(map(str, sorted(set(_scores(controllers, group).values()))))


def original(entry: OriginalValue, values: str) -> str:
    """The values, as `present` returns them, that the processes would have after `restore`."""
    texts = [entry.value if text in entry.written else text for text in values.split()]
    return " ".join(dict.fromkeys(texts))


def restore(controllers: Controllers, entries: Iterable[OriginalValue]) -> Iterator[ValueChange]:
    """Gives the processes of groups that have a value of the agent the earlier one."""
    for entry in entries:
        group = entry.group
        try:
            original, written = int(entry.value), set(map(int, entry.written))
            scores = _scores(controllers, group)
        except (CgroupError, ValueError) as error:
            yield _failed(group, error)
            continue
        replaced = frozenset(written - {original})
        pids = tuple(pid for pid, score in scores.items() if score in replaced)
        yield _changed(controllers, _Plan(group, replaced, original, pids, entry))


def _plan(group: str, scores: Mapping[int, int], wanted: int, entry: OriginalValue | None) -> _Plan:
    """Raises ValueError for an entry that has no number."""
    if entry is None:
        original, written = scores[min(scores, key=_started)], []
    else:
        original, written = int(entry.value), [int(text) for text in entry.written]
    replaced = frozenset((original, *written)) - {wanted}
    pids = tuple(pid for pid, score in scores.items() if score in replaced)
    # An agent may have been killed between two values, so that processes have an older one.
    present = set(scores.values()) - {wanted}
    kept = (*(score for score in written if score in present), wanted)
    after = OriginalValue(group, OOM_SCORE_ADJ, str(original), tuple(map(str, kept)))
    return _Plan(group, replaced, wanted, pids, after)


def _started(pid: int) -> float:
    """In ticks; later than all for a process that has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[_START_TIME])
    except OSError:
        return math.inf


def _scores(controllers: Controllers, group: str) -> Mapping[int, int]:
    """By process. Raises CgroupError and GroupGone, also if no process is seen."""
    scores = {}
    for pid in controllers.processes(group, MOST_PROCESSES):
        try:
            with open(f"/proc/{pid}/{OOM_SCORE_ADJ}", "rb") as file:
                scores[pid] = int(file.read())
        except OSError as error:
            if error.errno not in _ENDED:
                raise CgroupError(f"process {pid} of {group!r}: {error.strerror}") from error
    if not scores and not controllers.has(group, OOM_SCORE_ADJ):
        raise GroupGone(f"{group!r} does not exist")
    if not scores:
        raise CgroupError(f"no process of {group!r} is in the agent's PID namespace")
    return scores


def _changed(controllers: Controllers, plan: _Plan) -> ValueChange:
    if not plan.pids:
        return ValueChange(plan.group, OOM_SCORE_ADJ, WriteState.RIGHT)
    failures = []
    for first in range(0, len(plan.pids), _AT_ONCE):
        try:
            failures += _write(controllers, plan, plan.pids[first : first + _AT_ONCE])
        except CgroupError as error:
            return _failed(plan.group, error)
    if failures:
        return _failed(plan.group, failures[0])
    old = " ".join(map(str, sorted(plan.replaced)))
    return ValueChange(plan.group, OOM_SCORE_ADJ, WriteState.WRITTEN, old, str(plan.new))


def _write(controllers: Controllers, plan: _Plan, pids: Collection[int]) -> list[str]:
    """Returns the failures. Raises CgroupError, GroupGone."""
    failures, opened = [], {}
    try:
        for pid in pids:
            try:
                opened[pid] = os.open(f"/proc/{pid}/{OOM_SCORE_ADJ}", os.O_RDWR | os.O_CLOEXEC)
            except OSError as error:
                if error.errno not in _ENDED:
                    failures.append(f"process {pid}: {error.strerror}")
        # An open file stays that of its process, also if a process of another group gets the
        # number: those that are in the group after the opening are its own.
        for pid in opened.keys() & set(controllers.processes(plan.group, MOST_PROCESSES)):
            try:
                if int(os.pread(opened[pid], 16, 0)) in plan.replaced:
                    os.write(opened[pid], str(plan.new).encode("ascii"))
            except OSError as error:
                if error.errno not in _ENDED:
                    failures.append(f"process {pid}: {error.strerror}")
    finally:
        for number in opened.values():
            os.close(number)
    return failures


def _failed(group: str, reason: Exception | str) -> ValueChange:
    state = WriteState.GONE if isinstance(reason, GroupGone) else WriteState.FAILED
    return ValueChange(group, OOM_SCORE_ADJ, state, note=str(reason))
