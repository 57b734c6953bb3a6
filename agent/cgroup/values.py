"""Wanted limits made true: read, note the originals, write in order, read back; and the way back.

Nothing here raises for what a machine does: a group that vanished, a refused write or a full disk
becomes part of the outcome, and the other files are still served.

* No write where what is there means the same.
* On v1 a child's quota or memory nodes may not be beyond its parent's (EINVAL, EACCES, EBUSY). So
  what grows is written from the top, and then what shrinks from the bottom. Groups that were not
  asked for are never written.
* A memory limit below what is in use makes v2 kill processes; it is not written there, and said. v1
  reclaims and refuses (EBUSY).
* v2 moves pages whenever memory nodes change; v1 does with `migrate`, which is written first.
* The groups that pods have in common are the kubelet's and refused (koordinator.md §2.8).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from agent.cgroup.controllers import Controller, Controllers
from agent.cgroup.journal import Journal
from agent.cgroup.notation import (
    MAX,
    MEMORY,
    MEMORY_MAX,
    MEMS,
    MIGRATE,
    QUOTA,
    SHARES,
    WEIGHT,
)
from agent.cgroup.outcome import ValueOutcome
from agent.model.limits import Limits

_FILES: Final[Mapping[str, tuple[Controller, str, str | None]]] = {
    "quota_microseconds": ("cpu", QUOTA, MAX),
    "shares": ("cpu", SHARES, WEIGHT),
    "memory_limit_bytes": ("memory", MEMORY, MEMORY_MAX),
    "mems": ("cpuset", MEMS, MEMS),
    "migrate": ("cpuset", MIGRATE, None),
}
"""By field of Limits: the controller, its file on v1, its file on v2."""


def read(controllers: Controllers, group: str) -> Limits:
    """What the group has; None for what the machine does not know. Raises CgroupError, GroupGone.

    Shares of a v2 weight are the fewest that it may stand for.
    """
    raise NotImplementedError


def apply(controllers: Controllers, journal: Journal, wanted: Mapping[str, Limits]) -> ValueOutcome:
    """Give each group its limits; before a file is first written, its value is journalled.

    Where all is right, this costs one read of each file (of a v1 quota a second, for its period)
    and no write. A journal that can't be written stops every write.
    """
    raise NotImplementedError


def restore(
    controllers: Controllers, journal: Journal, only: Collection[str] | None = None
) -> ValueOutcome:
    """Give every journalled file its original value back, and drop the entries so settled; of the
    groups in `only`, where it is given.

    Memory nodes that were empty come back so on v2; where the kernel refuses that, as those of what
    is above, which the note says. On v1 such a group keeps what it has.
    """
    raise NotImplementedError
