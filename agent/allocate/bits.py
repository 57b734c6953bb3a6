"""Sets of ids as bare ints: what decisions compute on, without a value per set."""

from __future__ import annotations

from collections.abc import Iterator


def lowest(mask: int, count: int) -> int:
    """The `count` lowest members, all where there are fewer."""
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


def members(mask: int) -> Iterator[int]:
    """The ids, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
