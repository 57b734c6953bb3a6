"""CPUs packed on as few sockets, NUMA nodes and cores as possible (kubelet:
pkg/kubelet/cm/cpumanager/cpu_assignment.go, takeByTopologyNUMAPacked).

Areas that are wholly free and fit come first: sections, their parts, L3 caches where they count,
cores; the last CPUs come from the cores with the most taken CPUs. In each step the area with the
fewest free CPUs comes first, then the lowest id. The order nests: the parts of a section follow
each other in the section's place.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from agent.allocate.bits import lowest
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


class NotEnoughCpusError(ValueError):
    """More CPUs were requested than are free."""

    def __init__(self, requested: int, free: int) -> None:
        self.requested = requested
        self.free = free
        super().__init__(f"{requested} CPUs were requested and {free} are free")


def take_packed(
    layout: Layout, free: int, count: int, *, by_cache: bool = False, spread: bool = False
) -> int:
    """Exactly `count` of the free CPUs. Raises NotEnoughCpusError.

    `by_cache`: on as few L3 caches as possible; `spread`: the last CPUs by their numbers in a
    socket, whatever core they are of.
    """
    available = free.bit_count()
    if count >= available:
        if count > available:
            raise NotEnoughCpusError(count, available)
        return free
    rest, missing = _whole_areas(layout, free, count)
    if missing and by_cache:
        rest, missing = _caches(layout, rest, missing)
    if missing and not spread:
        rest, missing = _whole_cores(layout, rest, missing)
    if missing:
        rest &= ~(_lowest(layout, rest, missing) if spread else _last(layout, rest, missing))
    return free & ~rest


def _whole_areas(layout: Layout, rest: int, missing: int) -> tuple[int, int]:
    """What is left of the CPUs and of the demand after whole sections and then whole parts."""
    fitting = sorted(
        (size, section.id, section.cpus)
        for section in layout.sections
        if not section.cpus & ~rest and (size := section.cpus.bit_count()) <= missing
    )
    for size, _, cpus in fitting:
        if size <= missing:
            rest ^= cpus
            missing -= size
    if missing and any(
        not part.cpus & ~rest and part.cpus.bit_count() <= missing
        for section in layout.sections
        for part in section.parts
    ):
        for cpus in parts(layout, rest):
            if not cpus & ~rest and (size := cpus.bit_count()) <= missing:
                rest ^= cpus
                missing -= size
    return rest, missing


def _caches(layout: Layout, rest: int, missing: int) -> tuple[int, int]:
    """Whole caches, then all that is missing from one cache, if its first cores have just that."""
    ordered = caches(layout, rest)
    for cache in ordered:
        if not cache & ~rest and (size := cache.bit_count()) <= missing:
            rest ^= cache
            missing -= size
    if not missing:
        return rest, 0
    cores = -(-missing // layout.threads)
    touched = layout.touched(rest)
    for cache in ordered:
        if (rest & cache).bit_count() < missing:
            continue
        part = layout.expand(lowest(touched & cache, cores)) & rest
        held = part.bit_count()
        if held == missing + 1 and missing % 2:
            part ^= 1 << part.bit_length() - 1
            held = missing
        if held == missing:
            return rest ^ part, 0
    return rest, missing


def _whole_cores(layout: Layout, rest: int, missing: int) -> tuple[int, int]:
    sizes = layout.sizes[::-1]
    if missing < sizes[0][0] or not (whole := layout.whole(rest)):
        return rest, missing
    for part in parts(layout, rest):
        for width, leads in sizes:
            fitting = missing // width
            if fitting and (here := whole & leads & part):
                if (held := here.bit_count()) > fitting:
                    here, held = lowest(here, fitting), fitting
                rest ^= layout.expand(here)
                missing -= held * width
        if not missing:
            break
    return rest, missing


def _last(layout: Layout, rest: int, missing: int) -> int:
    """CPUs of the cores that have the fewest free, part by part."""
    taken = 0
    for part in parts(layout, rest):
        inside = rest & part
        held = inside.bit_count()
        if held <= missing:
            taken |= inside
            missing -= held
        else:
            return taken | _of_used_cores(layout, inside, missing)
        if not missing:
            break
    return taken


def _of_used_cores(layout: Layout, inside: int, missing: int) -> int:
    """`missing` of these CPUs, which are more."""
    taken = 0
    levels = [*layout.at_least(inside), 0]
    for threads in range(1, len(levels)):
        leads = levels[threads - 1] & ~levels[threads]
        held = leads.bit_count() * threads
        if held <= missing:
            taken |= layout.expand(leads) & inside
            missing -= held
        else:
            cores, odd = divmod(missing, threads)
            firsts = lowest(leads, cores)
            taken |= layout.expand(firsts) & inside
            if odd:
                leads ^= firsts
                taken |= lowest(layout.expand(leads & -leads) & inside, odd)
            break
        if not missing:
            break
    return taken


def _lowest(layout: Layout, rest: int, missing: int) -> int:
    taken = 0
    for socket in sockets(layout, rest):
        part = lowest(rest & socket, missing)
        taken |= part
        missing -= part.bit_count()
        if not missing:
            break
    return taken
