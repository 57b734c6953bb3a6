"""What comes of one vector case: the same answer, a declared difference, or a disagreement."""

from __future__ import annotations

from typing import Any

import msgspec


class Difference(msgspec.Struct, frozen=True):
    """Where ours answers otherwise on purpose, because the other side's answer is wrong.

    `listed`: one of those that the vectors' own tables call wrong, counted apart; the others
    together may be at most 2 % of a set.
    """

    name: str
    reason: str
    listed: bool = False


class CaseVerdict(msgspec.Struct, frozen=True):
    """`ours` is our answer in the form of the case's `expect`; `declared` names a Difference and is
    set only where `ours` differs and its predicate over the case holds."""

    agrees: bool
    ours: Any
    declared: str | None = None
