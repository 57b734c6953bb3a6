"""Looks at a case of the device allocator: is it one in which Koordinator is known to be wrong?"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from agent.allocate.devices.allocation import DeviceRequest
from agent.allocate.devices.joint import partners
from agent.allocate.devices.need import Need
from agent.allocate.devices.request import FULL
from agent.allocate.devices.view import selected
from agent.model.device_wishes import (
    DeviceAllocateStrategy,
    DeviceTopologyScope,
    Exclusion,
    JointScope,
)
from agent.model.devices import DeviceType
from agent.model.nodestatus import GPU_CORE

GPU: Final = DeviceType.GPU.value


class Answers(msgspec.Struct, frozen=True):
    """Both sides' allocation by device type; None for an error."""

    theirs: dict[str, Any] | None
    ours: dict[str, Any] | None

    def minors(self, kind: str) -> tuple[list[int], list[int]]:
        """Theirs and ours."""
        both = [(each or {}).get(kind, ()) for each in (self.theirs, self.ours)]
        theirs, ours = ([one["minor"] for one in each] for each in both)
        return theirs, ours


def core_of_several(request: DeviceRequest, needs: dict[str, Need], answers: Answers) -> bool:
    ask = request.asks.get(GPU)
    return (
        ask is not None
        and ask.count > 1
        and ask.shared
        and ask.total.get(GPU_CORE, 0) > FULL
        and answers.theirs is None
    )


def for_all_healthy(request: DeviceRequest, needs: dict[str, Need], answers: Answers) -> bool:
    return answers.theirs is None and any(
        each.hint is not None
        and each.hint.strategy is DeviceAllocateStrategy.APPLY_FOR_ALL
        and selected(each.seen.fleet, each.hint) & ~each.seen.fleet.healthy
        for each in needs.values()
    )


def pcie_exclusive(request: DeviceRequest, needs: dict[str, Need], answers: Answers) -> bool:
    """They would share a switch that has a device in use."""
    return any(
        each.hint is not None
        and each.hint.exclusion is Exclusion.PCIE_LEVEL
        and any(not each.seen.allowed >> minor & 1 for minor in answers.minors(each.kind)[0])
        for each in needs.values()
    )


def partition_order(request: DeviceRequest, needs: dict[str, Need], answers: Answers) -> bool:
    gpus = needs.get(GPU)
    if gpus is None or gpus.ask.shared:
        return False
    table = gpus.node.inventory.partitions.table or {}
    theirs, ours = answers.minors(GPU)
    sets = {each.minors: each for each in table.get(gpus.ask.count, ())}
    named = [sets.get(tuple(minors)) for minors in (theirs, ours) if minors]
    several = any(
        len({each.score for each in group}) > 1
        for size, group in table.items()
        if size >= gpus.ask.count
    )
    return several and all(each is not None for each in named) and theirs != ours


def shares_as_asked(request: DeviceRequest, needs: dict[str, Need], answers: Answers) -> bool:
    gpus = needs.get(GPU)
    theirs, ours = answers.minors(GPU)
    if gpus is None or not gpus.ask.shared or len(theirs) != 1 or len(ours) != 1:
        return False
    return gpus.seen.liking(ours[0]) > gpus.seen.liking(theirs[0])


def shares_in_scope(request: DeviceRequest, needs: dict[str, Need], answers: Answers) -> bool:
    gpus = needs.get(GPU)
    return (
        gpus is not None
        and answers.theirs is None
        and gpus.ask.shared
        and gpus.ask.count > 1
        and gpus.hint is not None
        and gpus.hint.scope is not DeviceTopologyScope.ANYWHERE
    )


def switch_found(request: DeviceRequest, needs: dict[str, Need], answers: Answers) -> bool:
    joint = request.wishes.joint
    if joint is None or joint.scope is not JointScope.SAME_PCIE or answers.theirs is not None:
        return False
    kinds = partners(joint, request.wishes.hints, needs)
    switches = []
    for kind in kinds:
        places = (needs[kind].seen.fleet.devices[each].topology for each in answers.minors(kind)[1])
        switches.append({place.pcie for place in places if place is not None})
    return len(kinds) > 1 and all(each == switches[0] for each in switches)


def as_many_as_asked(request: DeviceRequest, needs: dict[str, Need], answers: Answers) -> bool:
    """Ours are the first of theirs."""
    joint = request.wishes.joint
    if joint is None or joint.scope is not JointScope.PREFERRED:
        return False
    for kind, each in needs.items():
        theirs, ours = answers.minors(kind)
        if theirs != ours and not (
            len(theirs) > each.ask.count == len(ours) and theirs[: len(ours)] == ours
        ):
            return False
    return True


def gpu_beside(request: DeviceRequest, needs: dict[str, Need], answers: Answers) -> bool:
    joint = request.wishes.joint
    if joint is None:
        return False
    lead, *others = partners(joint, request.wishes.hints, needs) or [""]
    return GPU in others and answers.minors(lead)[0] == answers.minors(lead)[1]


def unfit_take_turns(request: DeviceRequest, needs: dict[str, Need], answers: Answers) -> bool:
    """The leading devices are the same, and of those under their switches some do not fit."""
    joint = request.wishes.joint
    kinds = partners(joint, request.wishes.hints, needs) if joint else []
    if not kinds or answers.minors(kinds[0])[0] != answers.minors(kinds[0])[1]:
        return False
    leading = needs[kinds[0]].seen.fleet
    places = (leading.devices[each].topology for each in answers.minors(kinds[0])[1])
    switches = {place.pcie for place in places if place is not None}
    return any(
        mask & needs[kind].seen.allowed & ~needs[kind].seen.fitting
        for kind in kinds[1:]
        if kind != GPU
        for pcie, mask in needs[kind].seen.fleet.pcies.items()
        if pcie in switches
    )


def functions_by_number(request: DeviceRequest, needs: dict[str, Need], answers: Answers) -> bool:
    wanted = any(each.hint and each.hint.vf_selector is not None for each in needs.values())
    same = all(theirs == ours for theirs, ours in map(answers.minors, needs))
    return wanted and same


def not_listed(request: DeviceRequest, needs: dict[str, Need], answers: Answers) -> bool:
    return any(
        name not in each.seen.fleet.totals.get(minor, {})
        for kind, each in needs.items()
        for minor in answers.minors(kind)[0]
        for name in each.ask.per
    )
