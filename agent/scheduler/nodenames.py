"""Sets of nodes, each small enough to be kept for every pod that waits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

MOST_NAMES: Final = 100_000


class NodeNames:
    """Numbers names, so that a set of them is the bits of one integer. One thread at a time."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    @property
    def full(self) -> bool:
        """Most of them are long gone, and it is time to `forget`."""
        return len(self._numbers) > MOST_NAMES

    def forget(self) -> None:
        """All of them: no set made before means anything after."""
        self._numbers.clear()

    def bits(self, nodes: Iterable[str]) -> int:
        numbers = self._numbers
        return _bits([numbers.setdefault(node, len(numbers)) for node in nodes])

    def known(self, nodes: Iterable[str]) -> int:
        """Those of them that are in any set."""
        found = (self._numbers.get(node) for node in nodes)
        return _bits([each for each in found if each is not None])

    def among(self, nodes: Iterable[str], bits: int) -> list[str]:
        """Those of them that are in that set."""
        numbers = self._numbers
        return [node for node in nodes if node in numbers and bits >> numbers[node] & 1]


def _bits(places: Sequence[int]) -> int:
    marks = bytearray(max(places, default=0) // 8 + 1)
    for place in places:
        marks[place >> 3] |= 1 << (place & 7)
    return int.from_bytes(marks, "little")
