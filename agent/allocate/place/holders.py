"""Who holds a node's devices: its pods, and what was given to them by nobody's annotation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

import msgspec

from agent.allocate.devices.inventory import Inventory
from agent.allocate.devices.state import NodeDevices, node_devices
from agent.allocate.place.facts import Imported
from agent.allocate.place.holding import Holding
from agent.model.device_allocation import functions_together, together


class DeviceOverlap(msgspec.Struct, frozen=True):
    """More of a device is held than it has, or one virtual function by several: `what` is the
    resource or the function's bus id; `uids` ascending."""

    type: str
    minor: int
    what: str
    uids: tuple[str, ...]


def held_devices(
    inventory: Inventory, holdings: Mapping[str, Holding], imported: Mapping[str, Imported]
) -> NodeDevices:
    """Both by uid. Of the types that a scheduler gave a pod only its word counts."""
    devices, functions = [], []
    for held in holdings.values():
        if held.devices or held.functions:
            devices.append(held.devices)
            functions.append(held.functions)
    for uid, each in imported.items():
        told = holdings[uid].kinds if uid in holdings else frozenset()
        devices.append(_beside(each.devices, told))
        functions.append(_beside(each.functions, told))
    return node_devices(inventory, together(devices), functions_together(functions))


def device_overlaps(
    inventory: Inventory | None, holdings: Iterable[Holding]
) -> tuple[DeviceOverlap, ...]:
    """By type, minor and what is held; each with those that hold something of it."""
    claims: dict[tuple[str, int, str], list[tuple[str, int]]] = {}
    for held in sorted(holdings, key=lambda each: each.uid):
        for (kind, minor), amounts in held.devices.items():
            for name, amount in amounts.items():
                claims.setdefault((kind, minor, name), []).append((held.uid, amount))
        for (kind, minor), buses in held.functions.items():
            for bus in buses:
                claims.setdefault((kind, minor, bus), []).append((held.uid, 1))
    found = []
    for (kind, minor, what), of in sorted(claims.items()):
        fleet = inventory.fleets.get(kind) if inventory else None
        device = fleet.devices.get(minor) if fleet else None
        # A virtual function is no resource of its device: it is there once.
        there = device.resources.get(what, 1) if device else 1
        if len(of) > 1 and sum(amount for _, amount in of) > there:
            uids = tuple(uid for uid, amount in of if amount)
            found.append(DeviceOverlap(kind, minor, what, uids))
    return tuple(found)


_Value = TypeVar("_Value")


def _beside(
    of_devices: Mapping[tuple[str, int], _Value], kinds: frozenset[str]
) -> dict[tuple[str, int], _Value]:
    """Those of other types."""
    return {at: each for at, each in of_devices.items() if at[0] not in kinds}
