"""Which NUMA node, socket, core or CPU comes first.

CPUs that fewer pods hold come before others, then lower ids. How often a CPU is held is given as
`levels`, the account's masks up to one less than the pods that may share a CPU: none where CPUs
are not shared, and then an order is nothing but a mask.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

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
