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
    """`old`, `new`: own values, None if not known; empty for a v2 group that inherits. `note`: the
    reason of a failure, or why `new` is not the requested value."""

    group: str
    state: WriteState
    old: CpuSet | None = None
    new: CpuSet | None = None
    note: str | None = None


class WriteOutcome(msgspec.Struct, frozen=True):
    """`changes`: one for each requested group; `others`: ancestors that had to grow and descendants
    that had to shrink. Both sorted by group. `journal_error`: why restored entries are still in the
    journal; the values themselves are correct."""

    changes: tuple[GroupChange, ...] = ()
    others: tuple[GroupChange, ...] = ()
    journal_error: str | None = None

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
    """One file of a group, other than its CPUs. `old`, `new`: its contents, None if not known.
    `refused`: it failed because the state of the group does not allow the value."""

    group: str
    file: str
    state: WriteState
    old: str | None = None
    new: str | None = None
    note: str | None = None
    refused: bool = False


class ValueOutcome(msgspec.Struct, frozen=True):
    """`changes`: one for each file of each requested group, sorted by group and file.
    `journal_error`: as in WriteOutcome."""

    changes: tuple[ValueChange, ...] = ()
    journal_error: str | None = None

    def having(self, state: WriteState) -> tuple[ValueChange, ...]:
        """The files with this result."""
        return tuple(each for each in self.changes if each.state is state)

    @property
    def ok(self) -> bool:
        """Whether nothing failed; a removed group does not count as a failure."""
        return self.journal_error is None and not self.having(WriteState.FAILED)
