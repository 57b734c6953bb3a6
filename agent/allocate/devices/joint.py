"""Devices of several types that sit under the same PCIe switches: GPUs and their NICs.

The leading type is chosen as if it were alone, the others beside it. Where that fails and the same
switches are demanded, sets of switches that have every type are tried, few before many.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from agent.allocate.bits import members
from agent.allocate.devices.need import Chosen, Need
from agent.allocate.devices.refusal import Cause, Refusal
from agent.allocate.numa.masks import subsets
from agent.model.device_wishes import Hint, Joint, JointScope, Strategy

Found = dict[str, list[Chosen]]


def partners(joint: Joint, hints: Mapping[str, Hint], needs: Mapping[str, Need]) -> list[str]:
    """The types that belong together, the leading one first: those that are asked for, but not for
    all devices there are."""
    return [
        kind
        for kind in dict.fromkeys(joint.types)
        if kind in needs and not (kind in hints and hints[kind].strategy is Strategy.APPLY_FOR_ALL)
    ]


def together(needs: Sequence[Need], scope: JointScope) -> Found | Refusal:
    """`needs`: the leading one first."""
    lead, *others = needs
    chosen = lead.choose()
    if isinstance(chosen, Cause):
        return Refusal(lead.kind, chosen)
    found: Found = {lead.kind: chosen}
    if scope is JointScope.PREFERRED:
        for need in others:
            beside = _beside(need, _switches(lead, chosen))
            if isinstance(beside, Cause):
                return Refusal(need.kind, beside)
            found[need.kind] = beside
        return found
    same = _same_switches(needs, found, _switches(lead, chosen))
    if not isinstance(same, Refusal):
        return same
    for switches in _common(needs):
        chosen = lead.within(_under(lead, switches)).choose()
        if isinstance(chosen, Cause) or _switches(lead, chosen) != switches:
            continue
        elsewhere = _same_switches(needs, {lead.kind: chosen}, switches)
        if not isinstance(elsewhere, Refusal):
            return elsewhere
    return same


def _beside(need: Need, switches: set[str]) -> list[Chosen] | Cause:
    """Near the leading devices as far as that goes."""
    if need.of_gpus:
        near = need.within(_under(need, switches)).choose()
        return need.choose() if isinstance(near, Cause) else near
    pcies = need.seen.fleet.pcies
    return need.choose(tuple(pcies[each] for each in sorted(switches) if each in pcies))


def _same_switches(needs: Sequence[Need], found: Found, switches: set[str]) -> Found | Refusal:
    """Every other type has devices under each of these switches, and under no other."""
    for need in needs[1:]:
        near = need.within(_under(need, switches)).at_least(len(switches))
        beside = _beside(near, switches)
        if isinstance(beside, Cause):
            return Refusal(need.kind, beside)
        if _switches(need, beside) != switches:
            return Refusal(need.kind, Cause.JOINT)
        found[need.kind] = beside
    return found


def _common(needs: Sequence[Need]) -> Iterator[set[str]]:
    """Sets of switches that have enough of every type; those in use count as lower ones."""
    lead = needs[0]
    having = [
        pcie
        for pcie, mask in lead.seen.fleet.pcies.items()
        if mask & lead.seen.fitting
        and all(each.seen.fleet.pcies.get(pcie, 0) & each.seen.fitting for each in needs[1:])
    ]
    used = lead.seen.stock.used
    having.sort(key=lambda pcie: not lead.seen.fleet.pcies[pcie] & used)
    most = min(each.ask.count for each in needs if each is lead or each.of_gpus)
    for places in subsets(range(len(having))):
        if places.bit_count() > most:
            return
        switches = {having[place] for place in members(places)}
        if all(
            (_under(each, switches) & each.seen.fitting).bit_count() >= each.ask.count
            for each in needs
        ):
            yield switches


def _under(need: Need, switches: set[str]) -> int:
    pcies = need.seen.fleet.pcies
    return sum(pcies.get(each, 0) for each in switches)


def _switches(need: Need, chosen: Sequence[Chosen]) -> set[str]:
    places = (need.seen.fleet.devices[each.minor].topology for each in chosen)
    return {place.pcie for place in places if place is not None}
