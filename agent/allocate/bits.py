"""Sets of CPUs, NUMA nodes or devices as bit masks in plain ints: decisions compute on them without
a value for each set."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Final


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


WHOLE: Final = 1023
"""All subsets of 10 nodes: how many masks of small sizes are tried at most."""


def of_nodes(nodes: Iterable[int]) -> int:
    """The mask of these NUMA nodes."""
    mask = 0
    for node in nodes:
        mask |= 1 << node
    return mask


@functools.lru_cache(maxsize=4096)
def ids(mask: int) -> tuple[int, ...]:
    """The NUMA nodes of a mask, ascending."""
    return tuple(members(mask))


def subsets(nodes: Iterable[int], least: int = 1) -> Iterator[int]:
    """Sets of `least` or more of these NUMA nodes as masks, by size, then lexicographically by ids.

    All of them for up to ten nodes. Of more nodes all sets of the sizes that together stay within
    WHOLE, and of every greater size only runs of neighbours (nodes next to each other in the order
    of their ids), up to all nodes: n²/2 sets more at most, where 2ⁿ would never end."""
    ids = sorted(set(nodes))
    tried = 0
    for size in range(1, len(ids) + 1):
        tried += math.comb(len(ids), size)
        if tried <= WHOLE:
            chosen: Iterable[tuple[int, ...]] = itertools.combinations(ids, size)
        else:
            tried = WHOLE
            chosen = (tuple(ids[at : at + size]) for at in range(len(ids) - size + 1))
        if size < least:
            continue
        for each in chosen:
            yield of_nodes(each)
