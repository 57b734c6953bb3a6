"""Chooses devices of one type for a pod among those that it may have. GPUs: a set of the partition
table, the best linked ones, or close neighbours. Other devices: in the order of the strategy, each
with a virtual function if the pod requests one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence, Set
from functools import lru_cache
from itertools import combinations
from math import comb
from typing import Final

import msgspec

from agent.allocate.devices.gpu_sets import GpuTable
from agent.allocate.devices.inventory import LEVELS, GpuGroup, LinkTable
from agent.allocate.devices.need import Candidates, Need, filled
from agent.allocate.devices.partitions import feasible, packed
from agent.allocate.refusal import Reason
from agent.allocate.steps import UNCOUNTED, Steps
from agent.model.cpu.cpuset import members
from agent.model.devices.device_allocation import DeviceTopologyScope
from agent.model.devices.device_object import Device, VirtualFunction
from agent.model.objects import LabelSelector

_RANKS: Final = 3
"""The number of values of `_in_use`."""

_CACHED_RESULTS: Final = 4096
"""The size of the cache: one result for 16 GPUs may take some milliseconds."""


class ChosenDevice(msgspec.Struct, frozen=True):
    """The part of one device that a pod gets; `resources` in units."""

    minor: int
    uuid: str
    resources: dict[str, int]
    functions: tuple[VirtualFunction, ...] = ()


def choose(
    need: Need,
    near: tuple[int, ...] = (),
    every: bool = False,
    joint_groups: tuple[int, ...] = (),
    steps: Steps = UNCOUNTED,
) -> list[ChosenDevice] | Reason:
    """`near`: groups of devices; one device of each group in turn is taken before other devices.
    For GPUs this applies only if `every` group has to give one. `joint_groups`: groups of GPUs;
    linked ones are taken from one of them if it has enough. Raises TooComplexError."""
    steps.take(_steps_of(need, near))
    if not need.of_gpus:
        return _instances(need, near)
    minors = _choose_gpus(need, joint_groups, steps)
    if every and not isinstance(minors, Reason) and not _touching(minors, near):
        steps.take(_steps_of_each(need))
        minors = _choose_from_each(need, near)
    return minors if isinstance(minors, Reason) else [_chosen(need, each) for each in minors]


def _steps_of(need: Need, near: tuple[int, ...]) -> int:
    """The steps of a choice, without those of the best linked GPUs."""
    candidates = need.candidates
    fitting = candidates.fitting.bit_count()
    steps = 5 + 3 * fitting + len(near) * fitting // 8
    if need.hint is not None and need.hint.vf_selector is not None:
        devices = candidates.fleet.devices
        groups = (
            group for minor in members(candidates.fitting) for group in devices[minor].vf_groups
        )
        steps += sum(1 + 3 * len(each.vfs) for each in groups)
    if not need.of_gpus:
        return steps
    table = need.node.inventory.partitions.table
    if not need.request.shared and table is not None:
        sets = len(table.get(need.request.count, ()))
        steps += sets * (1 + sum(map(len, table.values())) // 8)
    return steps + len(candidates.fleet.groups or ()) // 2


def _steps_of_each(need: Need) -> int:
    """The steps of `_choose_from_each`."""
    links = need.node.inventory.links
    if need.request.shared or links is None:
        return 0
    fitting = min(need.candidates.fitting.bit_count(), len(links.minors))
    return 2 * comb(fitting, need.request.count)


def _instances(need: Need, near: tuple[int, ...]) -> list[ChosenDevice] | Reason:
    """Devices other than GPUs."""
    found = []
    minors = need.candidates.ordered()
    for minor in _alternating(minors, near) if near else minors:
        functions = _functions(need, minor)
        if functions is not None:
            found.append(_chosen(need, minor, functions))
        if len(found) == need.request.count:
            return found
    return Reason.DEVICE_INSUFFICIENT


def _functions(need: Need, minor: int) -> tuple[VirtualFunction, ...] | None:
    """None if the pod requests a function that the device does not have."""
    if need.hint is None or need.hint.vf_selector is None:
        return ()
    taken = need.node.taken.get((need.kind, minor), frozenset())
    one = _function(need.candidates.fleet.devices[minor], need.hint.vf_selector, taken)
    return None if one is None else (one,)


def _chosen(need: Need, minor: int, functions: tuple[VirtualFunction, ...] = ()) -> ChosenDevice:
    fleet = need.candidates.fleet
    per = need.request.per
    if need.of_gpus:
        per = filled(per, fleet.totals[minor])
    return ChosenDevice(minor, fleet.devices[minor].uuid, per, functions)


def _alternating(minors: list[int], near: tuple[int, ...]) -> list[int]:
    """The near devices first, one of each group in turn; within a turn, and for the others, in the
    strategy's order."""
    turns: dict[int, int] = {}
    place = {minor: number for number, minor in enumerate(minors)}
    for group in near:
        for turn, minor in enumerate(each for each in minors if group >> each & 1):
            turns[minor] = turn
    return sorted(minors, key=lambda each: (turns.get(each, len(minors)), place[each]))


def _function(device: Device, selector: LabelSelector, taken: Set[str]) -> VirtualFunction | None:
    """The first free one by bus id in the selector's groups."""
    free = (
        each
        for group in device.vf_groups
        if selector.matches(group.labels)
        for each in group.vfs
        if each.bus not in taken
    )
    return min(free, key=_bus_order, default=None)


def _bus_order(each: VirtualFunction) -> tuple[list[int], str]:
    """Numbers of a bus id are hexadecimal: function .10 comes after .2."""
    return [int(part, 16) for part in re.findall(r"[0-9a-fA-F]+", each.bus)], each.bus


def _choose_gpus(need: Need, joint_groups: tuple[int, ...], steps: Steps) -> list[int] | Reason:
    """Minors, in the order of choice. `joint_groups`: groups with enough of everything that the
    pod wants close together.

    Whole cards: a free set of the partition table, if it has one; otherwise the best set by the
    objective of the node's links, within one of the groups if one has enough; otherwise the lowest
    minors of the narrowest scope that has enough, among equal scopes the one with the most cards in
    use. Shares: cards in the order of the strategy, several within the narrowest scope if the pod
    requires one.
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
            best = _best_linked(inventory.links, need, joint_groups, steps)
            if best is not None:
                return best
    groups = candidates.fleet.groups
    if groups is None:
        return Reason.DEVICE_NO_TOPOLOGY if scope else _first(candidates, request.count)
    if request.shared and request.count > 1 and not scope:
        return _first(candidates, request.count)
    if request.shared and request.count == 1:
        return _one_share(groups, candidates, scope)
    near = _narrowest(groups, candidates, scope, request.count)
    if not near:
        return Reason.DEVICE_SCOPE if scope else Reason.DEVICE_INSUFFICIENT
    return (
        _first(candidates.within(near), request.count)
        if request.shared
        else _lowest(near, request.count)
    )


def _partition(need: Need) -> list[int] | Reason:
    known, candidates, count = need.node.inventory.partitions, need.candidates, need.request.count
    if known.table is None:
        return Reason.DEVICE_NO_PARTITION_TABLE
    if count not in known.table:
        return Reason.DEVICE_PARTITION_SIZE
    free = candidates.fitting & candidates.stock.idle
    sets = feasible(known.table, count, free, need.partition)
    if not sets:
        return Reason.DEVICE_PARTITION
    return list(packed(known.table, sets, ~candidates.used, count).minors)


def _best_linked(
    links: LinkTable, need: Need, joint_groups: tuple[int, ...], steps: Steps
) -> list[int] | None:
    """None when the links are unknown, or no scope has enough."""
    candidates, count, scope = need.candidates, need.request.count, need.scope
    groups: Sequence[int] = (candidates.fleet.all_minors,)
    if LEVELS[scope] > LEVELS[DeviceTopologyScope.NODE]:
        if candidates.fleet.groups is None:
            return None
        groups = [each.mask for each in candidates.fleet.groups if each.level == LEVELS[scope]]
    close = [group & each for group in groups for each in joint_groups]
    best = _best_within(links, candidates, count, close, steps) if close else None
    return _best_within(links, candidates, count, groups, steps) if best is None else best


def _best_within(
    links: LinkTable, candidates: Candidates, count: int, groups: Iterable[int], steps: Steps
) -> list[int] | None:
    """The best of the best sets of these groups; None if no group has enough."""
    best = None
    score: tuple[int, ...] = ()
    everywhere = _places(links, candidates.fitting)
    for mask in groups:
        free = (
            everywhere
            if mask == candidates.fleet.all_minors
            else _places(links, candidates.fitting & mask)
        )
        steps.take(3 + links.table.steps(free, count))
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
    return sum(1 << place for place, minor in enumerate(links.minors) if minors >> minor & 1)


def _one_share(
    groups: tuple[GpuGroup, ...], candidates: Candidates, scope: DeviceTopologyScope
) -> list[int] | Reason:
    """The card that the strategy prefers; among equal cards the one with the most cards in use near
    it, then the first one."""
    switches = [
        (_in_use(group, candidates.used), minor)
        for group in _within(groups, scope or DeviceTopologyScope.PCIE)
        if group.level == LEVELS[DeviceTopologyScope.PCIE]
        for minor in members(group.mask & candidates.fitting)
    ]
    if not switches:
        return Reason.DEVICE_SCOPE if scope else Reason.DEVICE_INSUFFICIENT
    return [max(switches, key=lambda each: (candidates.score_of(each[1]), each[0]))[1]]


def _narrowest(
    groups: tuple[GpuGroup, ...], candidates: Candidates, scope: DeviceTopologyScope, count: int
) -> int:
    """The fitting cards of the narrowest group that has enough; among equal groups, of the first
    one with the most in use. 0 if no group has enough."""
    best, rank = 0, -1
    for group in _within(groups, scope):
        mask = group.mask & candidates.fitting
        if mask.bit_count() >= count:
            of_group = group.level * _RANKS + _in_use(group, candidates.used)
            if of_group > rank:
                best, rank = mask, of_group
    return best


def _within(groups: tuple[GpuGroup, ...], scope: DeviceTopologyScope) -> Iterable[GpuGroup]:
    if not scope:
        return groups
    widest = LEVELS[scope]
    return [group for group in groups if group.level >= widest]


def _in_use(group: GpuGroup, used: int) -> int:
    return bool(group.mask & used) + bool(group.around & used)


def _first(candidates: Candidates, count: int) -> list[int] | Reason:
    minors = candidates.ordered()[:count]
    return minors if len(minors) == count else Reason.DEVICE_INSUFFICIENT


def _lowest(mask: int, count: int) -> list[int]:
    return list(members(mask))[:count]


def _touching(minors: Sequence[int], groups: Iterable[int]) -> bool:
    """Whether each group has one of these minors."""
    chosen = sum(1 << minor for minor in minors)
    return all(group & chosen for group in groups)


def _choose_from_each(need: Need, groups: tuple[int, ...]) -> list[int] | Reason:
    """Like `_choose_gpus`, but only sets with a card of each group: the set of the partition table
    with the best score, else the best linked cards, else one card of each group by the strategy and
    the lowest others."""
    candidates, count = need.candidates, need.request.count
    if len(groups) > count or not _holds(candidates, need.scope, sum(groups)):
        return Reason.DEVICE_JOINT
    known, links = need.node.inventory.partitions, need.node.inventory.links
    if not need.request.shared and known.table is not None:
        idle = candidates.fitting & candidates.stock.idle
        sets = feasible(known.table, count, idle, need.partition, groups)
        if sets or known.honor or need.partition is not None:
            return list(sets[0].minors) if sets else Reason.DEVICE_PARTITION
    if not need.request.shared and links is not None:
        places = tuple(_places(links, group) for group in groups)
        best = best_spread(links.table, _places(links, candidates.fitting), count, places)
        return Reason.DEVICE_JOINT if best is None else _minors(links, best)
    first = [
        next((each for each in candidates.ordered() if group >> each & 1), -1) for group in groups
    ]
    if -1 in first:
        return Reason.DEVICE_JOINT
    others = [each for each in candidates.ordered() if each not in first]
    return sorted([*first, *others[: count - len(first)]])


def _holds(candidates: Candidates, scope: DeviceTopologyScope, mask: int) -> bool:
    """Whether all of the mask is within one group of this scope."""
    if not scope:
        return True
    groups = candidates.fleet.groups or ()
    return any(not mask & ~group.mask for group in groups if group.level >= LEVELS[scope])


@lru_cache(maxsize=_CACHED_RESULTS)
def best_spread(table: GpuTable, free: int, count: int, groups: tuple[int, ...]) -> int | None:
    """A set of `count` of the places in `free`; `free` and the disjoint groups are masks. Among
    equal sets the one with the lowest numbers; None without such a set."""
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
    """Whether the lowest number that only one mask has is in the first mask."""
    differ = one ^ other
    return bool(differ & -differ & one)


def _single_places(mask: int) -> tuple[int, ...]:
    """Each place as its own mask."""
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
