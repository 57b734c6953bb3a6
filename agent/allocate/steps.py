"""A budget of steps: the time that one decision may take, whatever a node reports.

The sets of NUMA nodes, devices and cores that a decision compares come from the report of a node.
A step stands for somewhat less than a microsecond. Each search states its steps before it takes
them. The same input always takes the same number, also if a cache has the result.
"""

from __future__ import annotations

from typing import Final

OFFER_STEPS: Final = 64_000
"""The limit of one offer, which takes about 50 milliseconds then. An offer on 8 NUMA nodes with 16
GPUs takes some thousand steps."""
MEMBER_STEPS: Final = 8_000
"""Added for each pod of a group, for the offers to all of them on one node."""


class TooComplexError(Exception):
    """A decision needs more steps than it may take."""


class Steps:
    """The steps that are left; `limit` None: they are not counted."""

    def __init__(self, limit: int | None = None) -> None:
        self._left = limit

    def take(self, count: int) -> None:
        """Raises TooComplexError if fewer steps are left."""
        if self._left is not None:
            self._left -= count
            if self._left < 0:
                raise TooComplexError


UNCOUNTED: Final = Steps()
