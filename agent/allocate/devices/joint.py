"""Devices of several types that are close together: GPUs and their NICs. The leading type is chosen
as if it were the only one, the others near it. When that fails and the pod requires the same places
(PCIe switches, or NUMA nodes), sets of places with every type are tried, smaller sets first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agent.allocate.bits import members, subsets
from agent.allocate.devices.need import ChosenDevice, Need
from agent.allocate.devices.request import DeviceCause, DeviceRefusal
from agent.model.device_wishes import DeviceAllocateStrategy, DeviceHint, Joint, JointScope

Found = dict[str, list[ChosenDevice]]
Place = str | int
"""A PCIe switch, or a NUMA node."""


def partners(joint: Joint, hints: Mapping[str, DeviceHint], needs: Mapping[str, Need]) -> list[str]:
    """The types that belong together, the leading one first: those that are asked for, but not for
    all devices there are."""
    return [
        kind
        for kind in dict.fromkeys(joint.types)
        if kind in needs
        and not (kind in hints and hints[kind].strategy is DeviceAllocateStrategy.APPLY_FOR_ALL)
    ]


def together(needs: Sequence[Need], scope: JointScope) -> Found | DeviceRefusal:
    """`needs`: the leading one first."""
    chosen = needs[0].choose(together=_with_all(needs, scope))
    if isinstance(chosen, DeviceCause):
        return DeviceRefusal(needs[0].kind, chosen)
    if scope is JointScope.PREFERRED:
        return _near(needs, chosen)
    same = _same_places(needs, scope, chosen)
    if not isinstance(same, DeviceRefusal):
        return same
    for places in _common(needs, scope):
        at = _at(needs[0], scope, places)
        chosen = needs[0].within(sum(at)).choose(at, every=True)
        if not isinstance(chosen, DeviceCause) and _places(needs[0], scope, chosen) == places:
            elsewhere = _same_places(needs, scope, chosen)
            if not isinstance(elsewhere, DeviceRefusal):
                return elsewhere
    return same


def _near(needs: Sequence[Need], chosen: list[ChosenDevice]) -> Found | DeviceRefusal:
    """Under the leading devices' switches as far as that goes."""
    found: Found = {needs[0].kind: chosen}
    switches = _places(needs[0], JointScope.SAME_PCIE, chosen)
    for need in needs[1:]:
        at = _at(need, JointScope.SAME_PCIE, switches)
        beside: list[ChosenDevice] | DeviceCause = DeviceCause.INSUFFICIENT
        if need.of_gpus:
            beside = need.within(sum(at)).choose()
        if isinstance(beside, DeviceCause):
            beside = need.choose(at)
        if isinstance(beside, DeviceCause):
            return DeviceRefusal(need.kind, beside)
        found[need.kind] = beside
    return found


def _same_places(
    needs: Sequence[Need], scope: JointScope, chosen: list[ChosenDevice]
) -> Found | DeviceRefusal:
    """Every other type has devices at each place of the leading ones, and at no other."""
    found: Found = {needs[0].kind: chosen}
    places = _places(needs[0], scope, chosen)
    for need in needs[1:]:
        at = _at(need, scope, places)
        beside = need.within(sum(at)).at_least(len(places)).choose(at, every=True)
        if isinstance(beside, DeviceCause):
            return DeviceRefusal(need.kind, beside)
        if _places(need, scope, beside) != places:
            return DeviceRefusal(need.kind, DeviceCause.JOINT)
        found[need.kind] = beside
    return found


def _with_all(needs: Sequence[Need], scope: JointScope) -> tuple[int, ...]:
    """The leading devices of each place that has enough of every type; none if none is demanded."""
    if scope is JointScope.PREFERRED:
        return ()
    masks = [(need, _masks(need, scope)) for need in needs]
    return tuple(
        mask
        for place, mask in masks[0][1].items()
        if all((of.get(place, 0) & it.seen.fitting).bit_count() >= it.ask.count for it, of in masks)
    )


def _common(needs: Sequence[Need], scope: JointScope) -> Iterator[set[Place]]:
    """Sets of places that have enough of every type; those in use count as lower ones."""
    lead = needs[0]
    having = [
        place
        for place, mask in _masks(lead, scope).items()
        if mask & lead.seen.fitting
        and all(_masks(each, scope).get(place, 0) & each.seen.fitting for each in needs[1:])
    ]
    having.sort(key=lambda place: not _masks(lead, scope)[place] & lead.seen.used)
    most = min(each.ask.count for each in needs if each is lead or each.of_gpus)
    for chosen in subsets(range(len(having))):
        if chosen.bit_count() > most:
            return
        places = {having[number] for number in members(chosen)}
        if all(
            (sum(_at(each, scope, places)) & each.seen.fitting).bit_count() >= each.ask.count
            for each in needs
        ):
            yield places


def _at(need: Need, scope: JointScope, places: set[Place]) -> tuple[int, ...]:
    """The devices at each place that has any."""
    return tuple(mask for place, mask in _masks(need, scope).items() if place in places)


def _masks(need: Need, scope: JointScope) -> Mapping[Any, int]:
    """By place; a device that names no NUMA node shares none."""
    fleet = need.seen.fleet
    if scope is JointScope.SAME_NUMA_NODE:
        return {node: mask for node, mask in fleet.numa.items() if node >= 0}
    return fleet.pcies


def _places(need: Need, scope: JointScope, chosen: Sequence[ChosenDevice]) -> set[Place]:
    sites = (need.seen.fleet.devices[each.minor].topology for each in chosen)
    if scope is JointScope.SAME_NUMA_NODE:
        return {site.node for site in sites if site is not None}
    return {site.pcie for site in sites if site is not None}
