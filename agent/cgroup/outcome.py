"""The outcomes of writes to groups."""

from __future__ import annotations

from enum import Enum

import msgspec

from agent.model.cpu.cpuset import CpuSet


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
