"""The choice of devices for what a pod needs: of one type, or of several types close together, such
as GPUs and their NICs.

Of several types the leading one is chosen as if it were alone, the others near it. When that fails
and the pod requires common sites (PCIe switches, or NUMA nodes), sets of sites that have every type
are tried, smaller sets first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

import msgspec

from agent.allocate.devices import gpus
from agent.allocate.devices.need import Need
from agent.allocate.devices.request import DeviceCause, DeviceRefusal, filled
from agent.allocate.numa.hint import subsets
from agent.model.cpuset import members
from agent.model.device_allocation import DeviceAllocateStrategy, DeviceHint, Joint, JointScope
from agent.model.deviceobject import Device, VirtualFunction
from agent.model.objects import LabelSelector

_Site = str | int
"""A PCIe switch, or a NUMA node."""


class ChosenDevice(msgspec.Struct, frozen=True):
    """What a pod gets of one device; `resources` in units."""

    minor: int
    uuid: str
    resources: dict[str, int]
    functions: tuple[VirtualFunction, ...] = ()


_Found = dict[str, list[ChosenDevice]]


def choose(
    need: Need, near: tuple[int, ...] = (), every: bool = False, joint_groups: tuple[int, ...] = ()
) -> list[ChosenDevice] | DeviceCause:
    """`near`: groups of devices. From each of them one is taken in turn before others are; of GPUs
    only where `every` group has to give one. `joint_groups`: groups of GPUs; linked ones are taken
    from one of them if it has enough."""
    if not need.of_gpus:
        return _instances(need, near)
    minors = gpus.choose(need, joint_groups)
    if every and not isinstance(minors, DeviceCause) and not gpus.touching(minors, near):
        minors = gpus.choose_from_each(need, near)
    return minors if isinstance(minors, DeviceCause) else [_chosen(need, each) for each in minors]


def _instances(need: Need, near: tuple[int, ...]) -> list[ChosenDevice] | DeviceCause:
    """Devices other than GPUs."""
    found = []
    minors = need.candidates.ordered()
    for minor in _alternating(minors, near) if near else minors:
        functions = _functions(need, minor)
        if functions is not None:
            found.append(_chosen(need, minor, functions))
        if len(found) == need.request.count:
            return found
    return DeviceCause.INSUFFICIENT


def _functions(need: Need, minor: int) -> tuple[VirtualFunction, ...] | None:
    """None where one is wanted that the device does not have."""
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


def partners(joint: Joint, hints: Mapping[str, DeviceHint], needs: Mapping[str, Need]) -> list[str]:
    """The types that belong together, the leading one first: those that are asked for, but not for
    all devices there are."""
    return [
        kind
        for kind in dict.fromkeys(joint.types)
        if kind in needs
        and not (kind in hints and hints[kind].strategy is DeviceAllocateStrategy.APPLY_FOR_ALL)
    ]


def choose_jointly(needs: Sequence[Need], scope: JointScope) -> _Found | DeviceRefusal:
    """`needs`: the leading one first."""
    chosen = choose(needs[0], joint_groups=_with_all(needs, scope))
    if isinstance(chosen, DeviceCause):
        return DeviceRefusal(needs[0].kind, chosen)
    if scope is JointScope.PREFERRED:
        return _near(needs, chosen)
    same = _same_sites(needs, scope, chosen)
    if not isinstance(same, DeviceRefusal):
        return same
    for sites in _common(needs, scope):
        at = _at(needs[0], scope, sites)
        chosen = choose(needs[0].within(sum(at)), at, every=True)
        if not isinstance(chosen, DeviceCause) and _sites_of(needs[0], scope, chosen) == sites:
            elsewhere = _same_sites(needs, scope, chosen)
            if not isinstance(elsewhere, DeviceRefusal):
                return elsewhere
    return same


def _near(needs: Sequence[Need], chosen: list[ChosenDevice]) -> _Found | DeviceRefusal:
    """Under the leading devices' switches where those have enough."""
    found: _Found = {needs[0].kind: chosen}
    switches = _sites_of(needs[0], JointScope.SAME_PCIE, chosen)
    for need in needs[1:]:
        at = _at(need, JointScope.SAME_PCIE, switches)
        others: list[ChosenDevice] | DeviceCause = DeviceCause.INSUFFICIENT
        if need.of_gpus:
            others = choose(need.within(sum(at)))
        if isinstance(others, DeviceCause):
            others = choose(need, at)
        if isinstance(others, DeviceCause):
            return DeviceRefusal(need.kind, others)
        found[need.kind] = others
    return found


def _same_sites(
    needs: Sequence[Need], scope: JointScope, chosen: list[ChosenDevice]
) -> _Found | DeviceRefusal:
    """Every other type has devices at each site of the leading ones, and at no other."""
    found: _Found = {needs[0].kind: chosen}
    sites = _sites_of(needs[0], scope, chosen)
    for need in needs[1:]:
        at = _at(need, scope, sites)
        others = choose(need.within(sum(at)).at_least(len(sites)), at, every=True)
        if isinstance(others, DeviceCause):
            return DeviceRefusal(need.kind, others)
        if _sites_of(need, scope, others) != sites:
            return DeviceRefusal(need.kind, DeviceCause.JOINT)
        found[need.kind] = others
    return found


def _with_all(needs: Sequence[Need], scope: JointScope) -> tuple[int, ...]:
    """The leading devices of each site that has enough of every type; empty where the pod requires
    no common site."""
    if scope is JointScope.PREFERRED:
        return ()
    masks = [(need, _masks(need, scope)) for need in needs]
    return tuple(
        mask
        for site, mask in masks[0][1].items()
        if all(
            (of.get(site, 0) & it.candidates.fitting).bit_count() >= it.request.count
            for it, of in masks
        )
    )


def _common(needs: Sequence[Need], scope: JointScope) -> Iterator[set[_Site]]:
    """Sets of sites that have enough of every type; those in use count as lower ones."""
    lead = needs[0]
    having = [
        site
        for site, mask in _masks(lead, scope).items()
        if mask & lead.candidates.fitting
        and all(_masks(each, scope).get(site, 0) & each.candidates.fitting for each in needs[1:])
    ]
    having.sort(key=lambda site: not _masks(lead, scope)[site] & lead.candidates.used)
    most = min(each.request.count for each in needs if each is lead or each.of_gpus)
    for chosen in subsets(range(len(having))):
        if chosen.bit_count() > most:
            return
        sites = {having[number] for number in members(chosen)}
        if all(
            (sum(_at(each, scope, sites)) & each.candidates.fitting).bit_count()
            >= each.request.count
            for each in needs
        ):
            yield sites


def _at(need: Need, scope: JointScope, sites: set[_Site]) -> tuple[int, ...]:
    """The devices at each site that has any."""
    return tuple(mask for site, mask in _masks(need, scope).items() if site in sites)


def _masks(need: Need, scope: JointScope) -> Mapping[Any, int]:
    """By site; a device that names no NUMA node shares none."""
    fleet = need.candidates.fleet
    if scope is JointScope.SAME_NUMA_NODE:
        return {node: mask for node, mask in fleet.numa.items() if node >= 0}
    return fleet.pcies


def _sites_of(need: Need, scope: JointScope, chosen: Sequence[ChosenDevice]) -> set[_Site]:
    topologies = (need.candidates.fleet.devices[each.minor].topology for each in chosen)
    if scope is JointScope.SAME_NUMA_NODE:
        return {site.node for site in topologies if site is not None}
    return {site.pcie for site in topologies if site is not None}
