"""The outcomes of writes to groups."""

from __future__ import annotations

from enum import Enum

import msgspec

from agent.model.cpu.cpuset import CpuSet


class WriteState(Enum):
    """How one group ended."""

    RIGHT = "right"
    WRITTEN = "written"
    GONE = "gone"
    FAILED = "failed"


class GroupChange(msgspec.Struct, frozen=True):
    """`old` and `new` are own values as far as known; empty is a v2 group that inherits.

    `note` is the reason of a failure, or why `new` is not what was asked for.
    """

    group: str
    state: WriteState
    old: CpuSet | None = None
    new: CpuSet | None = None
    note: str | None = None


class WriteOutcome(msgspec.Struct, frozen=True):
    """A change for each group asked for, and `others`: ancestors and descendants that had to give
    or make room. Both sorted by group.

    `journal_error`: the values are right, but are missing in the journal."""

    changes: tuple[GroupChange, ...] = ()
    others: tuple[GroupChange, ...] = ()
    journal_error: str | None = None

    def having(self, state: WriteState) -> tuple[GroupChange, ...]:
        """The groups asked for that ended so."""
        return tuple(each for each in self.changes if each.state is state)

    @property
    def ok(self) -> bool:
        """Whether nothing failed; groups that are gone count as served."""
        return self.journal_error is None and all(
            each.state is not WriteState.FAILED for each in (*self.changes, *self.others)
        )


class ValueChange(msgspec.Struct, frozen=True):
    """One file of a group, other than its CPUs; `old` and `new` are its texts as far as known."""

    group: str
    file: str
    state: WriteState
    old: str | None = None
    new: str | None = None
    note: str | None = None


class ValueOutcome(msgspec.Struct, frozen=True):
    """A change for each file of each group asked for, sorted; as WriteOutcome otherwise."""

    changes: tuple[ValueChange, ...] = ()
    journal_error: str | None = None

    def having(self, state: WriteState) -> tuple[ValueChange, ...]:
        """The files that ended so."""
        return tuple(each for each in self.changes if each.state is state)

    @property
    def ok(self) -> bool:
        """Whether nothing failed; groups that are gone count as served."""
        return self.journal_error is None and not self.having(WriteState.FAILED)
