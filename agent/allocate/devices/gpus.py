"""Which GPUs a pod gets: a set of the partition table, the best linked ones, or near neighbours."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import combinations
from typing import Final

from agent.allocate.devices.gpu_sets import GpuTable
from agent.allocate.devices.inventory import LEVELS, GpuGroup
from agent.allocate.devices.links import LinkTable
from agent.allocate.devices.need import Candidates, Need
from agent.allocate.devices.partitions import feasible, packed
from agent.allocate.devices.request import DeviceCause
from agent.allocate.numa.hint import of_nodes
from agent.model.cpuset import members
from agent.model.device_allocation import DeviceTopologyScope


def choose(need: Need, joint_groups: tuple[int, ...] = ()) -> list[int] | DeviceCause:
    """Minors, in the order of choice. `joint_groups`: groups with enough of everything that the
    pod wants close together.

    Whole cards: a free set of the partition table, if it has one; otherwise the best set by the
    objective of the node's links, within one of the groups if one has enough; otherwise the lowest
    minors of the narrowest scope that has enough, of equal ones the one with the most cards in use.
    Shares: cards in the order of the strategy, several within the narrowest scope if the pod
    demands one.
    """
    inventory, candidates, request, scope = (
        need.node.inventory,
        need.candidates,
        need.request,
        need.scope,
    )
    if not request.shared:
        chosen = _partition(need)
        if isinstance(chosen, list) or inventory.partitions.honor or need.partition is not None:
            return chosen
        if inventory.links is not None:
            best = _best_linked(inventory.links, need, joint_groups)
            if best is not None:
                return best
    groups = candidates.fleet.groups
    if groups is None:
        return DeviceCause.NO_TOPOLOGY if scope else _first(candidates, request.count)
    if request.shared and request.count > 1 and not scope:
        return _first(candidates, request.count)
    if request.shared and request.count == 1:
        return _one_share(groups, candidates, scope)
    near = _narrowest(groups, candidates, scope, request.count)
    if not near:
        return DeviceCause.SCOPE if scope else DeviceCause.INSUFFICIENT
    return (
        _first(candidates.within(near), request.count)
        if request.shared
        else _lowest(near, request.count)
    )


def _narrowest(
    groups: tuple[GpuGroup, ...], candidates: Candidates, scope: DeviceTopologyScope, count: int
) -> int:
    """The fitting cards of the narrowest group that has enough, of equals of the first where most
    is in use; 0 where none has."""
    best, rank = 0, -1
    for group in _within(groups, scope):
        mask = group.mask & candidates.fitting
        if mask.bit_count() >= count:
            of_group = group.level * _RANKS + _in_use(group, candidates.used)
            if of_group > rank:
                best, rank = mask, of_group
    return best


_RANKS: Final = 3
"""How many answers `_in_use` has."""


def touching(minors: Iterable[int], groups: Iterable[int]) -> bool:
    """Whether each group has one of these."""
    chosen = of_nodes(minors)
    return all(group & chosen for group in groups)


def choose_from_each(need: Need, groups: tuple[int, ...]) -> list[int] | DeviceCause:
    """As `choose`, of sets that have a card of each group: the first of the partition table by
    score; else the best linked ones; else one card of each group by the strategy, and the
    lowest."""
    candidates, count = need.candidates, need.request.count
    if len(groups) > count or not _holds(candidates, need.scope, sum(groups)):
        return DeviceCause.JOINT
    known, links = need.node.inventory.partitions, need.node.inventory.links
    if not need.request.shared and known.table is not None:
        idle = candidates.fitting & candidates.stock.idle
        sets = feasible(known.table, count, idle, need.partition, groups)
        if sets or known.honor or need.partition is not None:
            return list(sets[0].minors) if sets else DeviceCause.PARTITION
    if not need.request.shared and links is not None:
        places = tuple(_places(links, group) for group in groups)
        best = best_spread(links.table, _places(links, candidates.fitting), count, places)
        return DeviceCause.JOINT if best is None else _minors(links, best)
    first = [
        next((each for each in candidates.ordered() if group >> each & 1), -1) for group in groups
    ]
    if -1 in first:
        return DeviceCause.JOINT
    others = [each for each in candidates.ordered() if each not in first]
    return sorted([*first, *others[: count - len(first)]])


def _holds(candidates: Candidates, scope: DeviceTopologyScope, mask: int) -> bool:
    """Whether all of the mask is within one group of this scope."""
    if not scope:
        return True
    groups = candidates.fleet.groups or ()
    return any(not mask & ~group.mask for group in groups if group.level >= LEVELS[scope])


def _partition(need: Need) -> list[int] | DeviceCause:
    known, candidates, count = need.node.inventory.partitions, need.candidates, need.request.count
    if known.table is None:
        return DeviceCause.NO_PARTITION_TABLE
    if count not in known.table:
        return DeviceCause.PARTITION_SIZE
    free = candidates.fitting & candidates.stock.idle
    sets = feasible(known.table, count, free, need.partition)
    if not sets:
        return DeviceCause.PARTITION
    return list(packed(known.table, sets, ~candidates.used, count).minors)


def _best_linked(links: LinkTable, need: Need, joint_groups: tuple[int, ...]) -> list[int] | None:
    """None when the links are unknown, or no scope has enough."""
    candidates, count, scope = need.candidates, need.request.count, need.scope
    groups: Sequence[int] = (candidates.fleet.everyone,)
    if LEVELS[scope] > LEVELS[DeviceTopologyScope.NODE]:
        if candidates.fleet.groups is None:
            return None
        groups = [each.mask for each in candidates.fleet.groups if each.level == LEVELS[scope]]
    close = [group & each for group in groups for each in joint_groups]
    best = _best_within(links, candidates, count, close) if close else None
    return _best_within(links, candidates, count, groups) if best is None else best


def _best_within(
    links: LinkTable, candidates: Candidates, count: int, groups: Iterable[int]
) -> list[int] | None:
    """The best of the best sets of these groups; None where none has enough."""
    best = None
    score: tuple[int, ...] = ()
    everywhere = _places(links, candidates.fitting)
    for mask in groups:
        free = (
            everywhere
            if mask == candidates.fleet.everyone
            else _places(links, candidates.fitting & mask)
        )
        chosen = links.table.best(free, count)
        if chosen is not None:
            of_chosen = links.table.score(chosen, everywhere)
            if best is None or of_chosen > score:
                best, score = chosen, of_chosen
    if best is None:
        return None
    return _minors(links, best)


def _minors(links: LinkTable, places: int) -> list[int]:
    return [links.minors[place] for place in members(places)]


def _places(links: LinkTable, minors: int) -> int:
    if links.plain:
        return minors & ((1 << len(links.minors)) - 1)
    return of_nodes(place for place, minor in enumerate(links.minors) if minors >> minor & 1)


def _one_share(
    groups: tuple[GpuGroup, ...], candidates: Candidates, scope: DeviceTopologyScope
) -> list[int] | DeviceCause:
    """The card that the strategy prefers; of equal cards one with the most cards in use around it,
    then the first by its place."""
    switches = [
        (_in_use(group, candidates.used), minor)
        for group in _within(groups, scope or DeviceTopologyScope.PCIE)
        if group.level == LEVELS[DeviceTopologyScope.PCIE]
        for minor in members(group.mask & candidates.fitting)
    ]
    if not switches:
        return DeviceCause.SCOPE if scope else DeviceCause.INSUFFICIENT
    return [max(switches, key=lambda each: (candidates.score_of(each[1]), each[0]))[1]]


def _within(groups: tuple[GpuGroup, ...], scope: DeviceTopologyScope) -> Iterable[GpuGroup]:
    if not scope:
        return groups
    widest = LEVELS[scope]
    return [group for group in groups if group.level >= widest]


def _in_use(group: GpuGroup, used: int) -> int:
    return bool(group.mask & used) + bool(group.around & used)


def _first(candidates: Candidates, count: int) -> list[int] | DeviceCause:
    minors = candidates.ordered()[:count]
    return minors if len(minors) == count else DeviceCause.INSUFFICIENT


def _lowest(mask: int, count: int) -> list[int]:
    return list(members(mask))[:count]


_REMEMBERED: Final = 4096
"""Answers: of 16 GPUs one may take some milliseconds."""


@lru_cache(maxsize=_REMEMBERED)
def best_spread(table: GpuTable, free: int, count: int, groups: tuple[int, ...]) -> int | None:
    """A set of `count` of the places in `free`; masks, as the groups, which are disjoint. Of equal
    sets the lowest numbers, None without such a set."""
    parts = [_single_places(free & group) for group in groups]
    anywhere = _single_places(free & ~sum(groups))
    best: int | None = None
    most: tuple[int, ...] = ()
    for chosen in _with_each(parts, anywhere, count):
        mask = sum(chosen)
        score = table.score(mask, free)
        if best is None or score > most or (score == most and _lower(mask, best)):
            best, most = mask, score
    return best


def _lower(one: int, other: int) -> bool:
    """The first number that differs is in the first."""
    differ = one ^ other
    return bool(differ & -differ & one)


def _single_places(mask: int) -> tuple[int, ...]:
    """Each as a mask of its own."""
    return tuple(1 << place for place in members(mask))


def _with_each(
    parts: Sequence[tuple[int, ...]], anywhere: tuple[int, ...], count: int
) -> Iterator[tuple[int, ...]]:
    """Sets of `count` with at least one of each part; the others may be any."""
    if not parts:
        yield from combinations(anywhere, count)
        return
    first, *others = parts
    for size in range(1, min(len(first), count - len(others)) + 1):
        for chosen in combinations(first, size):
            for rest in _with_each(others, anywhere, count - size):
                yield (*chosen, *rest)
