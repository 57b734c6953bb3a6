"""Wanted cpusets made true: read, plan, note the originals, write, read back; and the way back.

Nothing here raises for what a machine does: a group that vanished, a refused write or a full disk
becomes part of the outcome, and the other groups are still served as far as the order allows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import msgspec

from agent.cgroup.hierarchy import CgroupError, Hierarchy, Populated
from agent.cgroup.journal import Journal, JournalError, Original
from agent.cgroup.order import ancestors, parent
from agent.cgroup.outcome import WriteOutcome, WriteState
from agent.cgroup.round import Round
from agent.model.cpuset import CpuSet


def apply(hierarchy: Hierarchy, journal: Journal, wanted: Mapping[str, CpuSet]) -> WriteOutcome:
    """Give each group its CPUs; before a group is first written, its value is journalled.

    Where all is right, this costs one read of each group (on v2 two) and no write. A journal that
    can't be written stops every write: no value is taken that could not be given back.
    """
    round_ = write(hierarchy, journal, wanted)
    round_.read_back()
    return round_.outcome()


def write(hierarchy: Hierarchy, journal: Journal, wanted: Mapping[str, CpuSet]) -> Round:
    """The part of `apply` up to the last write; `read_back` is what remains to be done."""
    round_ = Round(hierarchy)
    for group, cpus in sorted(wanted.items()):
        conflict = _conflict(wanted, group)
        if conflict is None:
            round_.ask(group, cpus)
        else:
            round_.fail(group, conflict)
    writes = round_.plan()
    before = round_.before(writes)
    try:
        _remember(hierarchy, journal, before)
    except JournalError as error:
        for group in round_.asked():
            round_.fail(group, str(error))
        return round_
    round_.run(writes)
    return round_


def restore(
    hierarchy: Hierarchy,
    journal: Journal,
    chosen: Mapping[str, CpuSet] | None = None,
    only: Collection[str] | None = None,
) -> WriteOutcome:
    """Restores the original value of every journalled group, or of those in `only`, and removes the
    restored entries. `chosen` adds groups whose value was ours from their creation on, and
    overrides the journal; on v2 an empty set lets the group inherit; when the kernel refuses that,
    it gets every CPU of the parent, and the note says so. On v1 a value beyond the parent's is cut
    to the parent's, which the note says, and a group whose value was empty (so that it had no
    process) keeps its value."""
    values = {
        group: CpuSet.parse(each.cpus)
        for group, each in journal.originals.items()
        if only is None or group in only
    }
    values.update(chosen or {})
    round_ = Round(hierarchy)
    for group in sorted(values, key=lambda each: (each.count("/"), each)):
        try:
            if hierarchy.version == 2:
                _put(hierarchy, round_, group, values[group])
            else:
                _ask_back(round_, group, values[group])
        except CgroupError as error:
            round_.fail(group, error)
    round_.run(round_.plan())
    round_.read_back()
    outcome = round_.outcome()
    try:
        journal.forget(
            each.group for each in outcome.changes if each.state is not WriteState.FAILED
        )
    except JournalError as error:
        return msgspec.structs.replace(outcome, journal_error=str(error))
    return outcome


def _conflict(wanted: Mapping[str, CpuSet], group: str) -> str | None:
    cpus = wanted[group]
    for above in ancestors(group):
        if above in wanted and not cpus <= wanted[above]:
            return f"'{cpus}' is beyond '{wanted[above]}', which {above!r} is to get"
    return None


def _remember(hierarchy: Hierarchy, journal: Journal, before: Mapping[str, CpuSet]) -> None:
    new = [Original(group, str(own)) for group, own in before.items() if group not in journal]
    if new:
        journal.update(new, forget=_vanished(hierarchy, journal.originals))


def _vanished(hierarchy: Hierarchy, groups: Iterable[str]) -> list[str]:
    return [group for group in groups if not hierarchy.exists(group)]


def _put(hierarchy: Hierarchy, round_: Round, group: str, cpus: CpuSet) -> None:
    """v2 refuses no order, and cuts what is effective by itself."""
    if round_.own(group) == cpus:
        round_.settle(group, WriteState.RIGHT)
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
    round_.settle(group, WriteState.WRITTEN, cpus, note)


def _ask_back(round_: Round, group: str, cpus: CpuSet) -> None:
    """Called top-down: what is above has its target already."""
    if not cpus:
        round_.own(group)
        round_.settle(group, WriteState.RIGHT, note="was empty, keeps what it has")
        return
    room = round_.own("/")
    for above in ancestors(group):
        room = round_.target(above) or (round_.own(above) & room) or room
    within = (cpus & room) or room
    cut = None if within == cpus else f"'{cpus}' is beyond what is above ('{room}')"
    round_.ask(group, within, cut)
