"""Wanted limits made true: read, note the originals, write in order, read back; and the way back.

Nothing here raises for what a machine does: a group that vanished, a refused write or a full disk
becomes part of the outcome, and the other files are still served.

* No write where what is there means the same.
* On v1 a child's quota or memory nodes may not be beyond its parent's (EINVAL, EACCES, EBUSY). So
  what grows is written from the top, and then what shrinks from the bottom. Groups that were not
  asked for are never written.
* A memory limit below what is in use makes v2 kill processes; it is not written there, and said. v1
  reclaims and refuses (EBUSY).
* v2 moves pages whenever memory nodes change; v1 does with `migrate`, which is written first. v2
  keeps nodes that the parent has not, and they are not in force: that is not looked at.
* The groups that pods have in common belong to the kubelet (pkg/kubelet/cm,
  qos_container_manager_linux.go, UpdateCgroups): values for them are refused.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from agent.cgroup import limits as fields
from agent.cgroup.controllers import Controllers
from agent.cgroup.journal import Journal, JournalError, OriginalValue
from agent.cgroup.notation import MAX, QUOTA
from agent.cgroup.outcome import ValueOutcome, WriteState
from agent.cgroup.valueround import ValueRound
from agent.model.qos import is_qos_root
from agent.model.wanted import UNLIMITED, CgroupLimits

read: Final = fields.read


def apply(
    controllers: Controllers, journal: Journal, wanted: Mapping[str, CgroupLimits]
) -> ValueOutcome:
    """Give each group its limits; before a file is first written, its value is journalled.

    Where all is right, this costs one read of each file (of a v1 quota a second, for its period)
    and no write. A journal that can't be written stops every write.
    """
    round_ = ValueRound(controllers)
    lifts = set()
    for group, limits in sorted(wanted.items()):
        shared = group == "/" or is_qos_root(group)
        for file in fields.files(controllers, limits):
            if shared:
                round_.fail(group, file, f"{group!r} is shared by pods, and the kubelet's own")
            else:
                round_.ask(group, file, limits)
                lifted = limits.quota_microseconds == UNLIMITED and limits.shares is None
                if lifted and file in (QUOTA, MAX):
                    lifts.add((group, file))
    try:
        _remember(controllers, journal, round_, lifts)
    except JournalError as error:
        for step in round_.steps():
            round_.fail(step.group, step.file, str(error))
    round_.run()
    return ValueOutcome(round_.changes())


def restore(
    controllers: Controllers, journal: Journal, only: Collection[tuple[str, str]] | None = None
) -> ValueOutcome:
    """Restores the original value of every journalled file, or of those in `only` (group and name),
    and removes the restored entries. Empty memory nodes become empty again on v2; when the kernel
    refuses that, they become those of the parent, and the note says so. On v1 such a group keeps
    its nodes."""
    round_ = ValueRound(controllers)
    for (group, file), original in journal.values.items():
        if only is None or (group, file) in only:
            round_.ask_back(group, file, original.value)
    round_.run()
    changes = round_.changes()
    settled = [(each.group, each.file) for each in changes if each.state is not WriteState.FAILED]
    try:
        journal.update_values((), settled)
    except JournalError as error:
        return ValueOutcome(changes, str(error))
    return ValueOutcome(changes)


def _remember(
    controllers: Controllers,
    journal: Journal,
    round_: ValueRound,
    lifts: Collection[tuple[str, str]],
) -> None:
    """When another process wrote a limit that was lifted for good, as a kubelet does with every
    resize, that value becomes the original."""
    new = [
        OriginalValue(step.group, step.file, step.old)
        for step in round_.steps()
        if (step.group, step.file) not in journal or (step.group, step.file) in lifts
    ]
    if new:
        forget = [key for key in journal.values if not controllers.has(*key)]
        journal.update_values(new, forget + [(each.group, each.file) for each in new])
