"""Among CPUs that are as good, those that share the fewest L3 caches.

The cache that fits best what is missing, of those that hold it all; while none does, the one with
most. No choice has fewer caches: each takes all that the largest have until one is enough.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from agent.allocate.layout import Layout

Pick: TypeAlias = Callable[[Layout, int, int, tuple[int, ...]], int]
"""Takes so many of the CPUs of a mask, in an order of its own that `levels` (see ranking) rule."""


def in_fewest(layout: Layout, listed: int, plain: int, levels: tuple[int, ...], pick: Pick) -> int:
    """As many of the listed CPUs as `plain` has, in its NUMA nodes: in fewer caches, with no fewer
    whole cores. `plain` itself where that can't be."""
    need = plain.bit_count()
    near = sum(node.cpus for node in layout.nodes if node.cpus & plain) & listed
    rest = {cache.id: near & cache.cpus for cache in layout.caches if near & cache.cpus}
    taken = 0
    while need and rest:
        cache = min(rest, key=lambda id_: _fit(rest[id_].bit_count(), need, id_))
        part = pick(layout, rest.pop(cache), need, levels)
        taken |= part
        need -= part.bit_count()
    # Where cores differ in threads, those of the largest caches may not add up, or be fewer.
    if need or layout.whole(taken).bit_count() < layout.whole(plain).bit_count():
        return plain
    return taken if _caches(layout, taken) < _caches(layout, plain) else plain


def _fit(held: int, need: int, id_: int) -> tuple[bool, int, int]:
    return (False, held, id_) if held >= need else (True, -held, id_)


def _caches(layout: Layout, cpus: int) -> int:
    return sum(1 for cache in layout.caches if cache.cpus & cpus)
