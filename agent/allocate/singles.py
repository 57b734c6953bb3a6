"""CPU by CPU, where no area has what is needed: crumbs first, near what was taken before.

Cores come by the socket with most CPUs already taken, then by the free CPUs of their socket and
NUMA node (fewest first for MostAllocated, else most), then those with the fewest free threads, the
lower socket, the cores whose CPUs fewer pods hold, the lower core. In that order every core gives
one CPU (the one that fewest pods hold, the lower), then every core that has one left a second.
"""

from __future__ import annotations

from collections.abc import Iterator

from agent.allocate.bits import lowest, members
from agent.allocate.layout import Layout
from agent.allocate.ranking import core_tiers, first_of, rounds, tiers


def take_singles(
    layout: Layout, free: int, need: int, taken: int, levels: tuple[int, ...], most: bool
) -> int:
    """`need` of the free CPUs, all where there are fewer; `taken`: what the pod has already."""
    count = free.bit_count()
    if count <= need:
        return free
    if count <= layout.threads:
        return _core_by_core(layout, free, need, taken, levels, most)
    found = 0
    for number, order in enumerate(rounds(layout, tiers(free, levels))):
        these = sum(order)
        if these.bit_count() <= need:
            found |= these
            need -= these.bit_count()
            continue
        for leads in _runs(layout, free, taken, levels, most, number):
            chosen = lowest(leads, need)
            found |= layout.expand(chosen) & these
            need -= chosen.bit_count()
            if not need:
                break
        break
    return found


def _runs(
    layout: Layout, free: int, taken: int, levels: tuple[int, ...], most: bool, more_than: int
) -> Iterator[int]:
    """The cores with more than so many free threads, in order: masks of leads, each in the order of
    its ids."""
    sign = 1 if most else -1
    sockets = [
        (-(area.cpus & taken).bit_count(), sign * (area.cpus & free).bit_count())
        for area in layout.sockets
    ]
    nodes = [sign * (area.cpus & free).bit_count() for area in layout.nodes]
    cells: dict[tuple[tuple[int, int], int], dict[int, int]] = {}
    for cell in layout.cells:
        alike = cells.setdefault((sockets[cell.socket], nodes[cell.node]), {})
        alike[cell.socket] = alike.get(cell.socket, 0) | cell.cpus
    at_least = layout.at_least(free)[more_than:]
    exactly = [here & ~more for here, more in zip(at_least, [*at_least[1:], 0], strict=True)]
    for _, alike in sorted(cells.items()):
        for leads in exactly:
            for cpus in alike.values():
                yield from core_tiers(layout, leads & cpus, free, levels)


def _core_by_core(
    layout: Layout, free: int, need: int, taken: int, levels: tuple[int, ...], most: bool
) -> int:
    """So few CPUs that one core could have them are not spread over cores."""
    found = 0
    for leads in _runs(layout, free, taken, levels, most, 0):
        for lead in members(leads):
            part = first_of(tiers(layout.expand(1 << lead) & free, levels), need)
            found |= part
            need -= part.bit_count()
    return found
