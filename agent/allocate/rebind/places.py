"""Candidates for the place of one removed pod, the best first.

On a NUMA node a pod gets whole free cores, those with its present CPUs first, and its last CPUs on
a core that other pods break already; under SpreadByPCPUs one CPU of each core, of broken cores
first. So it leaves as many whole cores free as possible."""

from __future__ import annotations

from collections.abc import Iterator

from agent.allocate.layout import Layout
from agent.allocate.rebind.arrangement import Arrangement
from agent.model.cpu.cpuset import lowest


def best_place(arrangement: Arrangement, index: int, avoided: int | None = None) -> int:
    """The allowed place with the best measures, with the fewest changed CPUs among equal ones; 0 if
    there is none. `avoided`: the id of a NUMA node that it must not have."""
    own = arrangement.pods[index].place
    by_misfit: dict[tuple[int, int], list[int]] = {}
    for place in _candidates(arrangement, index, avoided):
        by_misfit.setdefault(arrangement.misfit(index, place), []).append(place)
    for _, places in sorted(by_misfit.items()):
        found = [
            (arrangement.measures_with(index, place), (place & ~own).bit_count(), place)
            for place in places
            if arrangement.allowed(index, place)
        ]
        if found:
            return min(found)[2]
    return 0


def _candidates(arrangement: Arrangement, index: int, avoided: int | None) -> Iterator[int]:
    pod, count = arrangement.pods[index], arrangement.wanted(index)
    own = pod.place
    if not pod.owner:
        if avoided is None or not own >> avoided & 1:
            yield own
        for id_ in arrangement.areas:
            if id_ != avoided and 1 << id_ != own:
                yield 1 << id_
        return
    off = arrangement.held | (0 if avoided is None else arrangement.areas[avoided])
    free = arrangement.reach(index) & ~off & ~arrangement.barred(index)
    if not own & off:
        yield own
    inside = [
        (id_, here)
        for id_, cpus in arrangement.areas.items()
        if (here := free & cpus).bit_count() >= count
    ]
    for _, here in inside:
        yield pick(arrangement.layout, here, count, own, spread=pod.spread)
    if inside or free.bit_count() < count:
        return
    yield _over_nodes(arrangement, free, count, own, spread=pod.spread)


def _over_nodes(arrangement: Arrangement, free: int, count: int, own: int, *, spread: bool) -> int:
    """CPUs of the fewest NUMA nodes: the largest first, the last one is the smallest that has the
    rest."""
    left = {id_: here for id_, cpus in arrangement.areas.items() if (here := free & cpus)}
    place = 0
    while count:
        enough = [id_ for id_ in left if left[id_].bit_count() >= count]
        if enough:
            id_ = min(enough, key=lambda each: (left[each].bit_count(), each))
        else:
            id_ = max(left, key=lambda each: (left[each].bit_count(), -each))
        here = left.pop(id_)
        part = pick(arrangement.layout, here, min(count, here.bit_count()), own, spread=spread)
        place |= part
        count -= part.bit_count()
    return place


def pick(layout: Layout, free: int, count: int, own: int, *, spread: bool) -> int:
    """`count` of the free CPUs, which are at least as many. `own`: the CPUs to prefer."""
    if spread:
        return _one_by_core(layout, free, count, own)
    whole = layout.whole(free)
    place = 0
    # Cores that the pod has as a whole come first: these CPUs do not change.
    for leads in _preferred(layout, whole, own):
        chosen = lowest(leads, count // layout.threads)
        cpus = layout.expand(chosen)
        if cpus.bit_count() <= count:
            place |= cpus
            count -= cpus.bit_count()
    if not count:
        return place
    broken = free & ~layout.expand(whole)
    by_count = layout.at_least(broken)
    exact = by_count[count - 1] if count <= len(by_count) else 0
    for leads in _preferred(layout, exact & ~sum(by_count[count : count + 1]), own):
        if leads:
            return place | _from_core(layout, broken, leads, own, count)
    # The densest broken cores, then a whole core.
    for leads in (*reversed(by_count), whole):
        for some in _preferred(layout, leads, own):
            while some and count:
                lead = some & -some
                some ^= lead
                here = layout.expand(lead) & free & ~place
                part = _own_first(here, own, count)
                place |= part
                count -= part.bit_count()
    return place


def _preferred(layout: Layout, leads: int, own: int) -> tuple[int, int, int]:
    """Cores that are the pod's own, that it has a part of, and the others."""
    mine = layout.whole(own) & leads
    part = layout.touched(own) & leads & ~mine
    return mine, part, leads & ~mine & ~part


def _from_core(layout: Layout, free: int, leads: int, own: int, count: int) -> int:
    return _own_first(layout.expand(leads & -leads) & free, own, count)


def _own_first(here: int, own: int, count: int) -> int:
    first = lowest(here & own, count)
    return first | lowest(here & ~own, count - first.bit_count())


def _one_by_core(layout: Layout, free: int, count: int, own: int) -> int:
    place = 0
    left = free
    while count:
        whole = layout.whole(left)
        firsts = layout.firsts(left & own)
        firsts |= layout.firsts(left & ~layout.expand(layout.touched(firsts)))
        broken = firsts & ~layout.expand(whole)
        for some in (broken & own, broken & ~own, firsts & ~broken & own, firsts & ~broken & ~own):
            part = lowest(some, count)
            place |= part
            count -= part.bit_count()
        left &= ~place & ~firsts
    return place
