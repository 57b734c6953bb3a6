"""Finds the best plan of a small node: tries all sets of moved pods, the smallest first, in all
places that differ.

Two cores of a NUMA node are equal if they have equally many threads and free CPUs, and both or
neither have exclusive pods; the free CPUs of a core are equal too. Of equal choices only one is
tried. The search ends when no plan can be better, or after `BUDGET` places with the best plan so
far."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Final

import msgspec

from agent.allocate.rebind.arrangement import Arrangement
from agent.allocate.rebind.placed_pods import Measures
from agent.model.cpu.cpuset import lowest, members
from agent.model.cpu.policies import ExclusivePolicy

MAX_PODS: Final = 8
"""The most pods that may move; more have too many sets."""
BUDGET: Final = 20_000
"""Places that are tried at most."""


class _Candidate(msgspec.Struct, frozen=True, order=True):
    """The places of all pods, with their measures and the number of moved pods."""

    measures: Measures
    moves: int
    places: tuple[int, ...]


def best(arrangement: Arrangement, max_moves: int) -> None:
    """Changes the places in `arrangement` if others are better, or as good with fewer moves."""
    pods = [index for index in range(len(arrangement.pods)) if arrangement.movable(index)]
    if len(pods) <= MAX_PODS:
        _Search(arrangement, pods, max_moves).run()


class _Search:
    def __init__(self, arrangement: Arrangement, pods: list[int], max_moves: int) -> None:
        self._arrangement = arrangement
        self._pods = pods
        self._max_moves = min(max_moves, len(pods))
        self._left = BUDGET
        self._best = self._now()
        self._bound = lower_bound(arrangement)

    def run(self) -> None:
        arrangement = self._arrangement
        for index in arrangement.moved():
            arrangement.remove(index)
        for index, place in enumerate(arrangement.places):
            if not place:
                arrangement.put(index, arrangement.pods[index].place)
        for count in range(1, self._max_moves + 1):
            if self._best.measures == self._bound and count >= self._best.moves:
                break
            for chosen in combinations(self._pods, count):
                self._try_moving(chosen)
        for index in chosen_pods(self._best.places, arrangement):
            arrangement.remove(index)
        for index, place in enumerate(self._best.places):
            if not arrangement.places[index]:
                arrangement.put(index, place)

    def _now(self) -> _Candidate:
        arrangement = self._arrangement
        return _Candidate(
            arrangement.measures(), len(arrangement.moved()), tuple(arrangement.places)
        )

    def _try_moving(self, chosen: tuple[int, ...]) -> None:
        arrangement = self._arrangement
        for index in chosen:
            arrangement.remove(index)
        self._place(chosen)
        for index in chosen:
            arrangement.put(index, arrangement.pods[index].place)

    def _place(self, rest: tuple[int, ...]) -> None:
        arrangement = self._arrangement
        if not rest:
            found = self._now()
            better = (found.measures, found.moves) < (self._best.measures, self._best.moves)
            if better and found.measures.no_worse_than(arrangement.before):
                self._best = found
            return
        index, *others = rest
        for place in self._options(index):
            if self._left <= 0:
                return
            self._left -= 1
            if arrangement.allowed(index, place):
                arrangement.put(index, place)
                self._place(tuple(others))
                arrangement.remove(index)

    def _options(self, index: int) -> Iterator[int]:
        arrangement = self._arrangement
        if not arrangement.pods[index].owner:
            yield from (1 << id_ for id_ in arrangement.areas)
            return
        free = arrangement.reach(index) & ~arrangement.held & ~arrangement.barred(index)
        yield from _distinct(self._classes(free), arrangement.wanted(index))

    def _classes(self, free: int) -> list[list[int]]:
        """The free CPUs of each core, in a list for each class of equal cores."""
        arrangement, layout = self._arrangement, self._arrangement.layout
        exclusive = self._exclusive_cpus()
        equal: dict[tuple[object, ...], list[int]] = {}
        for lead in members(layout.touched(free)):
            core = layout.expand(1 << lead)
            key = (
                layout.node_ids(core),
                core.bit_count(),
                (core & free).bit_count(),
                (core & arrangement.node.assignable & ~arrangement.held).bit_count(),
                bool(core & exclusive),
            )
            equal.setdefault(key, []).append(core & free)
        return list(equal.values())

    def _exclusive_cpus(self) -> int:
        arrangement = self._arrangement
        return sum(
            place
            for pod, place in zip(arrangement.pods, arrangement.places, strict=True)
            if pod.exclusive is ExclusivePolicy.PCPU_LEVEL
        )


def chosen_pods(places: tuple[int, ...], arrangement: Arrangement) -> list[int]:
    """The pods whose place in `arrangement` differs from that in `places`."""
    return [index for index, place in enumerate(places) if arrangement.places[index] != place]


def lower_bound(arrangement: Arrangement) -> Measures:
    """Measures that no places can improve. Each is a bound of its own; they may be impossible
    together."""
    layout = arrangement.layout
    fixed = [index for index in range(len(arrangement.pods)) if not arrangement.movable(index)]
    misfits = [arrangement.misfit(index, arrangement.pods[index].place) for index in fixed]
    assignable, held = arrangement.node.assignable, 0
    for index in fixed:
        held |= arrangement.pods[index].place if arrangement.pods[index].owner else 0
    owned = sum(arrangement.wanted(index) for index in range(len(arrangement.pods)))
    free = assignable.bit_count() - owned
    spots = layout.whole(assignable & ~held)
    whole = 0
    for threads, leads in reversed(layout.sizes):
        here = min((leads & spots).bit_count(), max(0, free) // threads)
        whole, free = whole + here, free - here * threads
    return Measures(
        sum(crossings for crossings, _ in misfits),
        sum(broken for _, broken in misfits),
        layout.leads.bit_count() - whole,
        _fewest_nodes(arrangement, fixed, owned),
    )


def _fewest_nodes(arrangement: Arrangement, fixed: list[int], owned: int) -> int:
    """The number of NUMA nodes of fixed pods, and of others that the CPUs of all pods need."""
    busy = 0
    for index in fixed:
        place = arrangement.pods[index].place
        if arrangement.pods[index].owner:
            busy |= sum(1 << id_ for id_ in arrangement.layout.node_ids(place))
        else:
            busy |= place
    sizes = {
        id_: (cpus & arrangement.node.assignable).bit_count()
        for id_, cpus in arrangement.areas.items()
    }
    left = owned - sum(sizes[id_] for id_ in members(busy) if id_ in sizes)
    count = busy.bit_count()
    for size in sorted((sizes[id_] for id_ in sizes if not busy >> id_ & 1), reverse=True):
        if left <= 0:
            break
        left -= size
        count += 1
    if not count and arrangement.pods:
        count = 1
    return count


def _distinct(classes: list[list[int]], count: int) -> Iterator[int]:
    """All different ways to take `count` CPUs from these classes of equal cores."""
    if not count:
        yield 0
        return
    if not classes:
        return
    cores, *others = classes
    for taken in _of_class(cores, cores[0].bit_count(), count):
        for rest in _distinct(others, count - taken.bit_count()):
            yield taken | rest


def _of_class(cores: list[int], most: int, count: int) -> Iterator[int]:
    """All ways to take up to `count` CPUs from equal cores, at most `most` of each, and of no core
    more than of the one before."""
    yield 0
    if not cores:
        return
    core, *others = cores
    for number in range(1, min(most, count) + 1):
        for rest in _of_class(others, number, count - number):
            yield lowest(core, number) | rest
