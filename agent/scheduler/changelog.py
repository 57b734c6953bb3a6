"""The nodes that changed since a serial, for caches of results per node."""

from __future__ import annotations

from typing import Final

import msgspec

MAX_NAMES: Final = 100_000


class ChangedNodes(msgspec.Struct, frozen=True):
    """`names` are the nodes that changed; None means that any node may have changed. `serial` is
    the argument of the next call."""

    serial: int
    names: frozenset[str] | None


class ChangeLog:
    """Keeps the last change of each name, in order. One thread at a time."""

    def __init__(self, most_names: int = MAX_NAMES) -> None:
        """The log drops the oldest changes when it has more than `most_names` names."""
        self._most = most_names
        self._last: dict[str, int] = {}
        self._forgotten = 0
        self.serial = 0

    def add(self, name: str) -> None:
        """Records one change."""
        self.serial += 1
        self._last.pop(name, None)
        self._last[name] = self.serial
        if len(self._last) > self._most:
            oldest = next(iter(self._last))
            self._forgotten = self._last.pop(oldest)

    def since(self, serial: int) -> ChangedNodes:
        """Returns the nodes that changed after that serial; any node where the log does not reach
        back so far."""
        if serial < self._forgotten:
            return ChangedNodes(self.serial, None)
        names = []
        for name in reversed(self._last):
            if self._last[name] <= serial:
                break
            names.append(name)
        return ChangedNodes(self.serial, frozenset(names))
