"""Improves the places of a node step by step, until nothing more is found.

Each trial removes some pods and places them again, one after the other. Its result is kept if the
measures improve, no measure is worse than at the beginning, and not too many pods are moved.

A removed pod gets the best place. On a NUMA node it gets whole free cores, those with its present
CPUs first, and its last CPUs on a core that is broken already; under SpreadByPCPUs it gets one CPU
of each core, of broken cores first. So as many whole cores as possible stay free."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, permutations
from typing import Final

from agent.allocate.rebind.arrangement import Arrangement, Measures
from agent.model.cpu.cpuset import lowest
from agent.model.cpu.layout import Layout

TRIALS: Final = 600
"""The most pods that one search removes, which bounds its time."""
FEW_PODS: Final = 8
"""So many pods are few: the movable ones are tried in all orders of two to four pods, and the moved
ones are placed again."""
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
        pods = list(self._movable())
        if len(pods) <= FEW_PODS and self._arrangement.measures() == before:
            orders = chain.from_iterable(permutations(pods, count) for count in (2, 3, 4))
            any(map(self._try, orders))
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
        """Moves each pod back if no measure gets worse. If few pods are moved, it also tries to
        place the others again then, so that fewer are moved."""
        arrangement = self._arrangement
        for index in arrangement.moved():
            moved = arrangement.moved()
            if index in moved and not self._undo(index, ()) and len(moved) <= FEW_PODS:
                moved.remove(index)
                self._undo(index, sorted(moved, key=lambda other: -arrangement.wanted(other)))

    def _undo(self, index: int, others: Sequence[int]) -> bool:
        arrangement = self._arrangement
        now, moved = arrangement.measures(), len(arrangement.moved())

        def place(of: int) -> int:
            if of != index:
                return _best_place(arrangement, of)
            own = arrangement.pods[index].place
            return own if arrangement.allowed(index, own) else 0

        return self._place_again(
            (index, *others),
            place,
            lambda: arrangement.measures().no_worse_than(now) and len(arrangement.moved()) < moved,
        )

    def _try(self, indices: Sequence[int], avoided: int | None = None) -> bool:
        """Removes these pods and places them in this order, each off the NUMA node `avoided`.
        Returns whether that is better."""
        if self._trials <= 0:
            return False
        self._trials -= len(indices)
        now = self._arrangement.measures()
        return self._place_again(
            indices,
            lambda index: _best_place(self._arrangement, index, avoided),
            lambda: self._improves(now),
        )

    def _place_again(
        self, indices: Sequence[int], place_of: Callable[[int], int], accept: Callable[[], bool]
    ) -> bool:
        """Removes these pods and puts each on the CPUs that `place_of` returns for it; 0 means
        that no CPUs suit the pod. Returns whether all pods have CPUs and `accept` agrees; otherwise
        all pods get their former CPUs back."""
        arrangement = self._arrangement
        before = [arrangement.places[index] for index in indices]
        for index in indices:
            arrangement.remove(index)
        placed: list[int] = []
        for index in indices:
            place = place_of(index)
            if not place:
                break
            arrangement.put(index, place)
            placed.append(index)
        if len(placed) == len(indices) and accept():
            return True
        for index in placed:
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
        misplaced = []
        for index in self._movable():
            crossings, broken = arrangement.misfit(index, arrangement.places[index])
            if crossings > 0 or broken > 0:
                misplaced.append((-crossings, -broken, index))
        return [index for *_, index in sorted(misplaced)]

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
        partners = []
        for other in self._movable():
            there = arrangement.places[other]
            if other == index or not arrangement.pods[other].owner or not there & nodes:
                continue
            size = abs(there.bit_count() - place.bit_count())
            partners.append((not there & cores, size, other))
        return [other for *_, other in sorted(partners)[:PARTNERS]]

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
                key=lambda size: (-size[0], size[1]),
            )
            leaving = []
            for size, other in sizes:
                if 0 < size <= missing:
                    leaving.append(other)
                    missing -= size
            if missing > 0:
                larger = [size for size in sizes if size[0] >= missing and size[1] not in leaving]
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
        owners = [
            (arrangement.places[index].bit_count(), index)
            for index in self._movable()
            if arrangement.pods[index].owner and arrangement.places[index] & cores
        ]
        return [index for _, index in sorted(owners)]

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
    there is none. It is off the NUMA node with the id `avoided`."""
    own = arrangement.pods[index].place
    place = _best(arrangement, index, _candidates(arrangement, index, avoided))
    if place in (0, own) and arrangement.pods[index].owner:
        # A NUMA node with enough free CPUs may not take the pod.
        across = [own] if place else []
        across += _across_nodes(arrangement, index, avoided)
        place = _best(arrangement, index, across)
    return place


def _best(arrangement: Arrangement, index: int, candidates: Iterable[int]) -> int:
    own = arrangement.pods[index].place
    by_misfit: dict[tuple[int, int], list[int]] = {}
    for place in candidates:
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
    free, off = _free(arrangement, index, avoided)
    if not own & off:
        yield own
    for cpus in arrangement.areas.values():
        if (free & cpus).bit_count() >= count:
            yield _pick(arrangement.layout, free & cpus, count, own, spread=pod.spread)


def _across_nodes(arrangement: Arrangement, index: int, avoided: int | None) -> Iterator[int]:
    """CPUs of the fewest NUMA nodes, and as many on each NUMA node as the pod has now."""
    pod, count, layout = arrangement.pods[index], arrangement.wanted(index), arrangement.layout
    free, _ = _free(arrangement, index, avoided)
    if free.bit_count() >= count:
        yield _over_nodes(arrangement, free, count, pod.place, spread=pod.spread)
    place = 0
    for cpus in arrangement.areas.values():
        here = (pod.place & cpus).bit_count()
        if (free & cpus).bit_count() < here:
            return
        place |= _pick(layout, free & cpus, here, pod.place, spread=pod.spread)
    yield place


def _free(arrangement: Arrangement, index: int, avoided: int | None) -> tuple[int, int]:
    """The CPUs that the pod may take, and those that it must not have."""
    off = arrangement.held | (0 if avoided is None else arrangement.areas[avoided])
    return arrangement.reach(index) & ~off & ~arrangement.barred(index), off


def _over_nodes(arrangement: Arrangement, free: int, count: int, own: int, *, spread: bool) -> int:
    """CPUs of the fewest NUMA nodes: the largest nodes first, and as the last one the smallest that
    has the rest."""
    left = {id_: here for id_, cpus in arrangement.areas.items() if (here := free & cpus)}
    place = 0
    while count:
        enough = [id_ for id_ in left if left[id_].bit_count() >= count]
        if enough:
            id_ = min(enough, key=lambda node: (left[node].bit_count(), node))
        else:
            id_ = max(left, key=lambda node: (left[node].bit_count(), -node))
        here = left.pop(id_)
        part = _pick(arrangement.layout, here, min(count, here.bit_count()), own, spread=spread)
        place |= part
        count -= part.bit_count()
    return place


def _pick(layout: Layout, free: int, count: int, own: int, *, spread: bool) -> int:
    """`count` of the free CPUs, which are at least as many, preferably of `own`."""
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
    """Divides the cores into those that `own` has as a whole, those that it has in part, and the
    others."""
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
