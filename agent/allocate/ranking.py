"""The order of NUMA nodes, sockets, cores and CPUs.

CPUs that fewer pods hold come before others, then lower ids. How often a CPU is held is given as
`levels`, the account's masks up to one less than the pods that may share a CPU: none where CPUs are
not shared, and then an order is only a mask."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

from agent.allocate.bits import lowest
from agent.allocate.layout import Area, Layout


def best_fit(
    areas: Iterable[Area], listed: int, counted: int, around: int, need: int, most: bool
) -> int:
    """The CPUs of the area to take from, 0 where none has `need` of the listed ones.

    The area with fewest of the counted CPUs where the fullest is wanted (`most`), else with most;
    then the one whose sockets have fewest (most) of the CPUs `around`; then the lowest id.
    """
    best: Area | None = None
    best_count = 0
    for area in areas:
        mine = listed & area.cpus
        count = mine.bit_count()
        if count < need:
            continue
        if counted != listed:
            count = (counted & area.cpus).bit_count()
        if not most:
            count = -count
        if best is None or count < best_count:
            best, best_count = area, count
        elif count == best_count and best.around != area.around:
            more = (around & area.around).bit_count() - (around & best.around).bit_count()
            if more < 0 if most else more > 0:
                best = area
    return best.cpus if best is not None else 0


def tiers(cpus: int, levels: tuple[int, ...]) -> list[int]:
    """The CPUs by how many pods hold them, fewest first; no tier is empty."""
    found = []
    for level in levels:
        if cpus & ~level:
            found.append(cpus & ~level)
        cpus &= level
    if cpus:
        found.append(cpus)
    return found


def rounds(layout: Layout, order: Sequence[int]) -> Iterator[list[int]]:
    """One CPU of each core, then a second of each, ...: every round in the order of the tiers."""
    left = list(order)
    while any(left):
        seen = 0
        this = []
        for index, tier in enumerate(left):
            firsts = layout.firsts(tier)
            if seen:
                firsts &= ~layout.expand(seen)
            this.append(firsts)
            left[index] = tier & ~firsts
            if len(left) > 1:
                seen |= layout.touched(firsts)
        yield this


def core_tiers(layout: Layout, leads: int, cpus: int, levels: tuple[int, ...]) -> list[int]:
    """The cores by how many pods hold these of their CPUs, summed, fewest first."""
    digits: list[int] = []
    for level in levels:
        held = level & cpus
        for stride in layout.strides:
            for offset in stride.offsets:
                _add(digits, held >> offset & stride.leads & leads)
    found = [leads] if leads else []
    for digit in reversed(digits):
        found = [part for each in found for part in (each & ~digit, each & digit) if part]
    return found


def _add(digits: list[int], ones: int) -> None:
    """Counts one more for every lead of `ones`: digit k of its binary count is in `digits[k]`."""
    for index, digit in enumerate(digits):
        if not ones:
            return
        digits[index] = digit ^ ones
        ones &= digit
    if ones:
        digits.append(ones)


def first_of(order: Iterable[int], count: int) -> int:
    """The first so many, from tier to tier, low ids first."""
    taken = 0
    for tier in order:
        if count <= 0:
            break
        part = lowest(tier, count)
        taken |= part
        count -= part.bit_count()
    return taken


Pick: TypeAlias = Callable[[Layout, int, int, tuple[int, ...]], int]
"""Takes so many of the CPUs of a mask, in an order of its own that `levels` (see ranking) rule."""


def in_fewest(layout: Layout, listed: int, plain: int, levels: tuple[int, ...], pick: Pick) -> int:
    """As many of the listed CPUs as `plain` has, in its NUMA nodes: in fewer caches, with no fewer
    whole cores. `plain` itself where that can't be.

    The CPUs of the fewest L3 caches among equally good ones: of the caches that hold all that is
    missing the smallest; while none does, the largest. No choice has fewer caches: each takes all
    that the largest have until one is enough.
    """
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
