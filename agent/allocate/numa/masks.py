"""Sets of NUMA nodes to try, smallest first."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Final

from agent.allocate.bits import members

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
