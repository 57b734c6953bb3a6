"""One value in place of many equal ones: of what a cluster's objects say most is said often."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from sys import intern
from typing import Final, Generic, TypeVar

import msgspec

T = TypeVar("T")

MOST_KEPT: Final = 4096


class Shared(Generic[T]):
    """Keeps the first of each kind of value that JSON can tell apart; nobody may change them. Once
    it has so many it begins anew: most of them may be long gone. Threads may both keep one; that
    costs only memory."""

    def __init__(self, most_kept: int = MOST_KEPT) -> None:
        self._most = most_kept
        self._kept: dict[bytes, T] = {}

    def of(self, value: T) -> T:
        return self.made(value, lambda: value)

    def made(self, of: object, make: Callable[[], T]) -> T:
        """What `make` makes, which follows from `of` alone."""
        key = msgspec.json.encode(of)
        kept = self._kept.get(key)
        if kept is None:
            kept = make()
            if len(self._kept) >= self._most:
                self._kept.clear()
            self._kept[key] = kept
        return kept


def words(texts: Mapping[str, str]) -> dict[str, str]:
    """The same, of texts that are there once."""
    return {intern(key): intern(value) for key, value in texts.items()}
