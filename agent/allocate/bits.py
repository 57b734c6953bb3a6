"""Sets of ids as bare ints: what decisions compute on, without a value per set."""

from __future__ import annotations

from collections.abc import Iterator


def lowest(mask: int, count: int) -> int:
    """The `count` lowest members, all where there are fewer."""
    if count <= 0:
        return 0
    missing = count
    taken = 0
    rest = mask
    base = 0
    width = 1 << max(0, mask.bit_length() - 1).bit_length()
    if mask.bit_count() <= count:
        return mask
    while width > 1:
        width >>= 1
        low = rest & ((1 << width) - 1)
        held = low.bit_count()
        if held <= missing:
            taken |= low << base
            missing -= held
            if not missing:
                break
            rest >>= width
            base += width
        else:
            rest = low
    return taken


def members(mask: int) -> Iterator[int]:
    """The ids, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
