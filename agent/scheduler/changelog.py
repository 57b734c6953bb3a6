"""Which nodes changed since when, for caches of what was answered about them."""

from __future__ import annotations

from typing import Final

import msgspec

MOST_NAMES: Final = 100_000


class Changes(msgspec.Struct, frozen=True):
    """`names` of nodes that changed; None: any may have. `serial`: what to ask with next."""

    serial: int
    names: frozenset[str] | None


class ChangeLog:
    """The last change of each name, in their order: no longer than there are names. One thread at
    a time."""

    def __init__(self, most_names: int = MOST_NAMES) -> None:
        """Of more names than that the oldest changes are forgotten."""
        self._most = most_names
        self._last: dict[str, int] = {}
        self._forgotten = 0
        self.serial = 0

    def add(self, name: str) -> None:
        """One more change."""
        self.serial += 1
        self._last.pop(name, None)
        self._last[name] = self.serial
        if len(self._last) > self._most:
            oldest = next(iter(self._last))
            self._forgotten = self._last.pop(oldest)

    def since(self, serial: int) -> Changes:
        """Those after the change of that serial; all where the log does not reach back to it."""
        if serial < self._forgotten:
            return Changes(self.serial, None)
        names = []
        for name in reversed(self._last):
            if self._last[name] <= serial:
                break
            names.append(name)
        return Changes(self.serial, frozenset(names))
