"""The order in which a machine is filled: what has the fewest free CPUs first, then the lowest id.

The order nests: the parts of a section follow each other in the section's place.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from agent.allocate.layout import Area, Layout, Section

_Place = TypeVar("_Place", Area, Section)


def parts(layout: Layout, free: int) -> list[int]:
    """CPUs of the parts of all sections that have free CPUs: where cores are listed."""
    ordered: list[int] = []
    for _, _, section in _by_free(layout.sections, free):
        if len(section.parts) == 1:
            ordered.append(section.parts[0].cpus)
        else:
            inside = free & section.cpus
            touched = [part for part in section.parts if part.cpus & inside]
            ordered.extend(part.cpus for _, _, part in _by_free(touched, free))
    return ordered


def sockets(layout: Layout, free: int) -> list[int]:
    """CPUs of the sockets that have free CPUs."""
    if layout.nodes_first:
        return parts(layout, free)
    return [section.cpus for _, _, section in _by_free(layout.sections, free)]


def nodes(layout: Layout, free: int) -> list[int]:
    """CPUs of the NUMA nodes that have free CPUs."""
    if layout.nodes_first:
        return [section.cpus for _, _, section in _by_free(layout.sections, free)]
    return parts(layout, free)


def caches(layout: Layout, free: int) -> list[int]:
    """CPUs of the L3 caches that have free CPUs, those of a NUMA node together."""
    ordered: list[int] = []
    for node in nodes(layout, free):
        touched = [cache for cache in layout.caches if cache.cpus & node & free]
        ordered.extend(cache.cpus for _, _, cache in _by_free(touched, free))
    return ordered


def _by_free(areas: Iterable[_Place], free: int) -> list[tuple[int, int, _Place]]:
    counted = [((area.cpus & free).bit_count(), area.id, area) for area in areas]
    return sorted(each for each in counted if each[0])
