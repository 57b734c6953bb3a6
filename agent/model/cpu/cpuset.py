"""An immutable set of CPU numbers (or NUMA node ids) over one int, and functions on such ints.

Reads the kernel's two text formats: lists (`0-3,8`, with groups as in `0-15:2/4`) and masks
(`ff,ffffffff`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final, final

MAX_ID: Final = 8_191
"""Highest id accepted from text: the kernel's limit. The time for a list grows with the square of
the number of its ranges."""


class CpuSetError(ValueError):
    """An invalid CPU list or mask; the message quotes the text and the faulty part."""


@final
class CpuSet:
    """A value type: hashable, iterates in order, `<=` is subset; `bool(s)` is "not empty"."""

    __slots__ = ("mask",)
    mask: int

    def __init__(self, cpus: Iterable[int] = ()) -> None:
        mask = 0
        for cpu in cpus:
            mask |= 1 << cpu
        object.__setattr__(self, "mask", mask)

    @classmethod
    def from_int(cls, mask: int) -> CpuSet:
        """The set whose bits are set in `mask`; a negative mask raises CpuSetError."""
        if mask < 0:
            raise CpuSetError(f"CPU mask {mask} is negative")
        new = object.__new__(cls)
        object.__setattr__(new, "mask", mask)
        return new

    @classmethod
    def parse(cls, text: str) -> CpuSet:
        """The kernel's list format; blank text is the empty set. Raises CpuSetError."""
        mask = 0
        stripped = text.strip()
        if not stripped:
            return EMPTY
        for part in stripped.split(","):
            mask |= _parse_part(part.strip(), text)
        return cls.from_int(mask)

    @classmethod
    def parse_mask(cls, text: str) -> CpuSet:
        """The kernel's mask format: hexadecimal 32-bit words, highest first. Raises CpuSetError."""
        stripped = text.strip()
        if _WHOLE_WORDS.fullmatch(stripped):
            mask = int(stripped.replace(",", ""), 16)
        else:
            mask = _short_words(stripped, text)
        if mask.bit_length() > MAX_ID + 1:
            raise CpuSetError(f"CPU mask {_quote(text)} goes beyond CPU {MAX_ID}")
        return cls.from_int(mask)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a CpuSet is immutable")

    def __reduce__(self) -> tuple[object, tuple[int]]:
        return CpuSet.from_int, (self.mask,)

    def __or__(self, other: CpuSet) -> CpuSet:
        return CpuSet.from_int(self.mask | other.mask)

    def __and__(self, other: CpuSet) -> CpuSet:
        return CpuSet.from_int(self.mask & other.mask)

    def __sub__(self, other: CpuSet) -> CpuSet:
        return CpuSet.from_int(self.mask & ~other.mask)

    def __xor__(self, other: CpuSet) -> CpuSet:
        return CpuSet.from_int(self.mask ^ other.mask)

    def __le__(self, other: CpuSet) -> bool:
        return not self.mask & ~other.mask

    def __lt__(self, other: CpuSet) -> bool:
        return self.mask != other.mask and self <= other

    def __ge__(self, other: CpuSet) -> bool:
        return other <= self

    def __gt__(self, other: CpuSet) -> bool:
        return other < self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CpuSet) and self.mask == other.mask

    def __hash__(self) -> int:
        return hash(self.mask)

    def __bool__(self) -> bool:
        return self.mask != 0

    def __len__(self) -> int:
        return self.mask.bit_count()

    def __contains__(self, cpu: int) -> bool:
        return cpu >= 0 and self.mask >> cpu & 1 == 1

    def __iter__(self) -> Iterator[int]:
        return members(self.mask)

    def first(self) -> int | None:
        """The lowest id, None for an empty set."""
        return (self.mask & -self.mask).bit_length() - 1 if self.mask else None

    def ranges(self) -> Iterator[tuple[int, int]]:
        """Runs of neighbouring ids, both ends included, ascending."""
        rest = self.mask
        base = 0
        while rest:
            gap = (rest & -rest).bit_length() - 1
            rest >>= gap
            run = (~rest & (rest + 1)).bit_length() - 1
            yield base + gap, base + gap + run - 1
            rest >>= run
            base += gap + run

    def __str__(self) -> str:
        return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in self.ranges())

    def __repr__(self) -> str:
        return f"CpuSet({str(self)!r})"


EMPTY: Final = CpuSet.from_int(0)
_DIGITS: Final = frozenset("0123456789")
_HEX: Final = frozenset("0123456789abcdefABCDEF")
_WHOLE_WORDS: Final = re.compile("(?:0x)?[0-9a-fA-F]{1,8}(?:,[0-9a-fA-F]{8})*")


def union(sets: Iterable[CpuSet]) -> CpuSet:
    mask = 0
    for each in sets:
        mask |= each.mask
    return CpuSet.from_int(mask)


def _parse_part(part: str, text: str) -> int:
    span, _, group = part.partition(":")
    first_text, dash, last_text = span.partition("-")
    first = _number(first_text, part, text)
    last = _number(last_text, part, text) if dash else first
    if last < first:
        raise CpuSetError(f"CPU list {_quote(text)}: range {_quote(part)} runs backwards")
    if not group:
        if ":" in part:
            raise CpuSetError(f"CPU list {_quote(text)}: {_quote(part)} ends in a colon")
        return (1 << last + 1) - (1 << first)
    used_text, slash, size_text = group.partition("/")
    used = _number(used_text, part, text)
    size = _number(size_text, part, text) if slash else 0
    if not dash or not 1 <= used <= size:
        raise CpuSetError(f"CPU list {_quote(text)}: {_quote(part)} is not a range with used/group")
    length = last - first + 1
    mask = (1 << used) - 1
    while size < length:
        mask |= mask << size
        size *= 2
    return (mask & ((1 << length) - 1)) << first


def _short_words(stripped: str, text: str) -> int:
    mask = 0
    for index, word in enumerate(stripped.split(",")):
        digits = word.removeprefix("0x") if index == 0 else word
        if not _HEX.issuperset(digits) or not 1 <= len(digits) <= 8:
            raise CpuSetError(f"CPU mask {_quote(text)}: {_quote(word)} is not a 32-bit word")
        mask = mask << 32 | int(digits, 16)
    return mask


def _number(digits: str, part: str, text: str) -> int:
    if not digits or not _DIGITS.issuperset(digits):
        raise CpuSetError(f"CPU list {_quote(text)}: {_quote(part)} is not a number or range")
    if len(digits) > 9 or int(digits) > MAX_ID:
        raise CpuSetError(f"CPU list {_quote(text)}: {_quote(part)} goes beyond CPU {MAX_ID}")
    return int(digits)


def _quote(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")


def members(mask: int) -> Iterator[int]:
    """The ids of a mask, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def lowest(mask: int, count: int) -> int:
    """The mask of the `count` lowest members of a mask; all if there are fewer."""
    if count <= 0:
        return 0
    if mask.bit_count() <= count:
        return mask
    base = (mask & -mask).bit_length() - 1
    rest = mask >> base
    width = 1 << (rest.bit_length() - 1).bit_length()
    taken = 0
    while width > 1:
        width >>= 1
        low = rest & ((1 << width) - 1)
        held = low.bit_count()
        if held < count:
            taken |= low << base
            count -= held
            rest >>= width
            base += width
        elif held == count:
            return taken | low << base
        else:
            rest = low
    return taken | rest << base
