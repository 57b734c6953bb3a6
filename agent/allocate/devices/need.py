"""One type of devices that a pod needs of a node, and the choice of devices for it."""

from __future__ import annotations

import re
from collections.abc import Set

import msgspec

from agent.allocate.devices import gpus
from agent.allocate.devices.request import DeviceCause, TypeRequest, filled, hinted
from agent.allocate.devices.state import NodeDevices
from agent.allocate.devices.view import View, selected, view
from agent.model.device_wishes import DeviceHint, DeviceTopologyScope, PartitionSpec
from agent.model.devices import Device, DeviceType, VirtualFunction
from agent.model.objects import LabelSelector
from agent.model.policies import Strategy


class ChosenDevice(msgspec.Struct, frozen=True):
    """What a pod gets of one device; `resources` in units."""

    minor: int
    uuid: str
    resources: dict[str, int]
    functions: tuple[VirtualFunction, ...] = ()


class Need(msgspec.Struct, frozen=True):
    """`partition`: the pod's preference of GPU partitions."""

    node: NodeDevices
    kind: str
    ask: TypeRequest
    hint: DeviceHint | None
    partition: PartitionSpec | None
    seen: View

    @property
    def of_gpus(self) -> bool:
        return self.kind == DeviceType.GPU

    def within(self, mask: int) -> Need:
        """The same, of fewer devices."""
        seen = self.seen.within(mask)
        return Need(self.node, self.kind, self.ask, self.hint, self.partition, seen)

    def at_least(self, count: int) -> Need:
        """The same for more devices; GPUs are never more than asked for."""
        ask = self.ask
        if self.of_gpus or ask.count >= count:
            return self
        more = TypeRequest(ask.total, count, ask.per)
        return Need(self.node, self.kind, more, self.hint, self.partition, self.seen)

    def choose(
        self, near: tuple[int, ...] = (), every: bool = False, together: tuple[int, ...] = ()
    ) -> list[ChosenDevice] | DeviceCause:
        """`near`: groups of devices. From each of them one is taken in turn before others are; of
        GPUs only where `every` group has to give one. `together`: groups of GPUs; linked ones are
        taken from one of them if it has enough."""
        if not self.of_gpus:
            return self._instances(near)
        scope = self.hint.scope if self.hint else DeviceTopologyScope.ANYWHERE
        wanted = self.node.inventory, self.seen, self.ask, scope, self.partition
        minors = gpus.choose(*wanted, together)
        if every and not isinstance(minors, DeviceCause) and not gpus.touching(minors, near):
            minors = gpus.choose_from_each(*wanted, near)
        return (
            minors if isinstance(minors, DeviceCause) else [self._chosen(each) for each in minors]
        )

    def _instances(self, near: tuple[int, ...]) -> list[ChosenDevice] | DeviceCause:
        found = []
        minors = self.seen.liked()
        for minor in _alternating(minors, near) if near else minors:
            functions = self._functions(minor)
            if functions is not None:
                found.append(self._chosen(minor, functions))
            if len(found) == self.ask.count:
                return found
        return DeviceCause.INSUFFICIENT

    def _functions(self, minor: int) -> tuple[VirtualFunction, ...] | None:
        """None where one is wanted that the device does not have."""
        if self.hint is None or self.hint.vf_selector is None:
            return ()
        taken = self.node.taken.get((self.kind, minor), frozenset())
        one = function(self.seen.fleet.devices[minor], self.hint.vf_selector, taken)
        return None if one is None else (one,)

    def _chosen(self, minor: int, functions: tuple[VirtualFunction, ...] = ()) -> ChosenDevice:
        fleet = self.seen.fleet
        per = self.ask.per
        if self.of_gpus:
            per = filled(per, fleet.totals[minor])
        return ChosenDevice(minor, fleet.devices[minor].uuid, per, functions)


def need(
    node: NodeDevices,
    kind: str,
    ask: TypeRequest,
    hint: DeviceHint | None,
    partition: PartitionSpec | None,
    numa: int | None,
    strategy: Strategy | None,
) -> Need | DeviceCause:
    """Of one type; a DeviceCause where the node can't serve it, however free it is."""
    fleet = node.inventory.fleets.get(kind)
    if fleet is None:
        return DeviceCause.NO_DEVICES
    if hint is not None:
        if kind != DeviceType.GPU:
            ask = hinted(ask, hint, (selected(fleet, hint) & fleet.healthy).bit_count())
            if not ask.count:
                return DeviceCause.INSUFFICIENT
        if hint.vf_selector is not None and not fleet.virtual:
            return DeviceCause.NO_VIRTUAL_FUNCTIONS
    gives = filled if kind == DeviceType.GPU else None
    seen = view(fleet, node.stocks[kind], ask.per, hint, numa, strategy, gives)
    return Need(node, kind, ask, hint, partition, seen)


def _alternating(minors: list[int], near: tuple[int, ...]) -> list[int]:
    """The near devices first, one of each group in turn; within a turn, and for the others, in the
    strategy's order."""
    turns: dict[int, int] = {}
    place = {minor: number for number, minor in enumerate(minors)}
    for group in near:
        for turn, minor in enumerate(each for each in minors if group >> each & 1):
            turns[minor] = turn
    return sorted(minors, key=lambda each: (turns.get(each, len(minors)), place[each]))


def function(device: Device, selector: LabelSelector, taken: Set[str]) -> VirtualFunction | None:
    """The first free one by bus id in the selector's groups."""
    free = (
        each
        for group in device.vf_groups
        if selector.matches(group.labels)
        for each in group.vfs
        if each.bus not in taken
    )
    return min(free, key=_place, default=None)


def _place(each: VirtualFunction) -> tuple[list[int], str]:
    """Numbers of a bus id are hexadecimal: function .10 comes after .2."""
    return [int(part, 16) for part in re.findall(r"[0-9a-fA-F]+", each.bus)], each.bus
