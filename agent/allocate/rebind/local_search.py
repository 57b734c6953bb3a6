"""Improves the places of a node step by step, until nothing more is found.

Each trial removes some pods and places them again, one after the other. Its result is kept if the
measures improve, no measure is worse than at the beginning, and not too many pods are moved.

A removed pod gets the best place. On a NUMA node it gets whole free cores, those with its present
CPUs first, and its last CPUs on a core that is broken already; under SpreadByPCPUs it gets one CPU
of each core, of broken cores first. So as many whole cores as possible stay free."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from agent.allocate.layout import Layout
from agent.allocate.rebind.arrangement import Arrangement
from agent.allocate.rebind.placed_pods import Measures
from agent.model.cpu.cpuset import lowest

TRIALS: Final = 600
"""The most pods that one search removes, which bounds its time."""
PARTNERS: Final = 6
"""The most pods that are tried as partners of one pod."""


def improve(arrangement: Arrangement, max_moves: int) -> None:
    """Improves the places in `arrangement`."""
    search = _Search(arrangement, max_moves)
    while search.once():
        pass
    search.place_all_again()
    search.undo_idle_moves()


class _Search:
    def __init__(self, arrangement: Arrangement, max_moves: int) -> None:
        self._arrangement = arrangement
        self._max_moves = max_moves
        self._trials = TRIALS

    def once(self) -> bool:
        """Makes one round of all kinds of trials. Returns whether it improved the measures."""
        before = self._arrangement.measures()
        for index in self._misplaced():
            if not self._single(index):
                self._with_partners(index)
        for index in self._on_partly_free_cores():
            self._single(index)
        self._empty_numa_nodes()
        return self._trials > 0 and self._arrangement.measures() < before

    def place_all_again(self) -> None:
        """Places all pods again, the largest first, if some are still badly placed."""
        if self._misplaced():
            everything = sorted(
                self._movable(), key=lambda index: (-self._arrangement.wanted(index), index)
            )
            self._trials = len(everything)
            self._try(everything)

    def undo_idle_moves(self) -> None:
        """Undoes the moves that do not improve the measures."""
        arrangement = self._arrangement
        for index in arrangement.moved():
            now, at = arrangement.measures(), arrangement.places[index]
            arrangement.remove(index)
            if arrangement.allowed(index, arrangement.pods[index].place):
                arrangement.put(index, arrangement.pods[index].place)
                if arrangement.measures() <= now:
                    continue
                arrangement.remove(index)
            arrangement.put(index, at)

    def _try(self, indices: Sequence[int], avoided: int | None = None) -> bool:
        """Removes these pods and places them in this order. `avoided`: see `_best_place`."""
        arrangement = self._arrangement
        if self._trials <= 0:
            return False
        self._trials -= len(indices)
        now = arrangement.measures()
        before = [arrangement.places[index] for index in indices]
        for index in indices:
            arrangement.remove(index)
        done: list[int] = []
        for index in indices:
            place = _best_place(arrangement, index, avoided)
            if not place:
                break
            arrangement.put(index, place)
            done.append(index)
        if len(done) == len(indices) and self._improves(now):
            return True
        for index in done:
            arrangement.remove(index)
        for index, place in zip(indices, before, strict=True):
            arrangement.put(index, place)
        return False

    def _improves(self, now: Measures) -> bool:
        """Whether the present places may replace those with the measures `now`."""
        arrangement = self._arrangement
        measures = arrangement.measures()
        return (
            measures < now
            and measures.no_worse_than(arrangement.before)
            and len(arrangement.moved()) <= self._max_moves
        )

    def _single(self, index: int) -> bool:
        return self._try((index,))

    def _with_partners(self, index: int) -> bool:
        """The pod gets its place first, then the pods whose CPUs it may have taken."""
        if any(self._try((index, partner)) for partner in self._partners(index)):
            return True
        crossings, _ = self._arrangement.misfit(index, self._arrangement.places[index])
        if crossings <= 0 or not self._arrangement.pods[index].owner:
            return False
        return any(self._try((index, *leaving)) for leaving in self._leaving_pods(index))

    def _misplaced(self) -> list[int]:
        """The pods with crossings or broken cores, the worst first."""
        arrangement = self._arrangement
        found = []
        for index in self._movable():
            crossings, broken = arrangement.misfit(index, arrangement.places[index])
            if crossings > 0 or broken > 0:
                found.append((-crossings, -broken, index))
        return [index for *_, index in sorted(found)]

    def _movable(self) -> Iterator[int]:
        return (
            index
            for index in range(len(self._arrangement.pods))
            if self._arrangement.movable(index)
        )

    def _partners(self, index: int) -> list[int]:
        """Owners on the cores of the pod, then owners on its NUMA nodes with as many CPUs."""
        arrangement, layout = self._arrangement, self._arrangement.layout
        place = arrangement.places[index]
        if not arrangement.pods[index].owner:
            return []
        cores = layout.expand(layout.touched(place))
        nodes = layout.of_nodes(layout.node_ids(place))
        found = []
        for other in self._movable():
            there = arrangement.places[other]
            if other == index or not arrangement.pods[other].owner or not there & nodes:
                continue
            size = abs(there.bit_count() - place.bit_count())
            found.append((not there & cores, size, other))
        return [other for *_, other in sorted(found)[:PARTNERS]]

    def _leaving_pods(self, index: int) -> Iterator[list[int]]:
        """For each NUMA node, the one with the most free CPUs first: the pods that have to leave it
        so that the pod fits there. These are the largest pods that together have no more CPUs than
        are missing, and then the smallest pod that has the rest."""
        arrangement = self._arrangement
        free = arrangement.node.assignable & ~arrangement.held | arrangement.places[index]
        need = arrangement.wanted(index)
        areas = sorted(
            arrangement.areas.items(), key=lambda area: (-(area[1] & free).bit_count(), area[0])
        )
        for _, cpus in areas:
            missing = need - (cpus & free).bit_count()
            sizes = sorted(
                (
                    (arrangement.places[other].bit_count(), other)
                    for other in self._movable()
                    if other != index
                    and arrangement.pods[other].owner
                    and not arrangement.places[other] & ~cpus
                ),
                key=lambda each: (-each[0], each[1]),
            )
            leaving = []
            for size, other in sizes:
                if 0 < size <= missing:
                    leaving.append(other)
                    missing -= size
            if missing > 0:
                larger = [each for each in sizes if each[0] >= missing and each[1] not in leaving]
                leaving += [larger[-1][1]] if larger else []
            if leaving and len(leaving) < self._max_moves:
                yield leaving

    def _on_partly_free_cores(self) -> list[int]:
        """The owners on cores that are free in part, the smallest first."""
        arrangement, layout = self._arrangement, self._arrangement.layout
        free = arrangement.node.assignable & ~arrangement.held
        part = layout.touched(free) & ~layout.whole(free)
        if part.bit_count() < 2:
            return []
        cores = layout.expand(part)
        found = [
            (arrangement.places[index].bit_count(), index)
            for index in self._movable()
            if arrangement.pods[index].owner and arrangement.places[index] & cores
        ]
        return [index for _, index in sorted(found)]

    def _empty_numa_nodes(self) -> None:
        """Tries to move all pods off a NUMA node, one node after the other, the one with the fewest
        pods first."""
        arrangement = self._arrangement
        groups = []
        for id_, cpus in arrangement.areas.items():
            here = [
                index
                for index, place in enumerate(arrangement.places)
                if (place & cpus if arrangement.pods[index].owner else place >> id_ & 1)
            ]
            if here and all(map(arrangement.movable, here)) and len(here) <= self._max_moves:
                groups.append((len(here), id_, here))
        for _, id_, here in sorted(groups):
            here.sort(key=lambda index: (-arrangement.wanted(index), index))
            self._try(here, id_)


def _best_place(arrangement: Arrangement, index: int, avoided: int | None = None) -> int:
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
        yield _pick(arrangement.layout, here, count, own, spread=pod.spread)
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
        part = _pick(arrangement.layout, here, min(count, here.bit_count()), own, spread=spread)
        place |= part
        count -= part.bit_count()
    return place


def _pick(layout: Layout, free: int, count: int, own: int, *, spread: bool) -> int:
    """`count` of the free CPUs; there are at least as many. `own`: the preferred CPUs."""
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
    """Divides the cores: those that `own` has as a whole, those that it has in part, the others."""
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
