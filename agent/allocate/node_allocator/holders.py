"""The holders of a node's devices: pods by their annotation, and those that got devices without
one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from agent.allocate.devices.inventory import Inventory, NodeDevices, node_devices
from agent.allocate.node_allocator.holding import AssignedPod
from agent.allocate.node_allocator.properties import Imported
from agent.model.device_allocation import (
    Holdings,
    VirtualFunctions,
    functions_together,
    together,
)


class DeviceOverlap(msgspec.Struct, frozen=True):
    """More of a device is held than it has, or one virtual function by several: `what` is the
    resource or the function's bus id; `uids` ascending."""

    type: str
    minor: int
    what: str
    uids: tuple[str, ...]


def held_devices(
    inventory: Inventory, holdings: Mapping[str, AssignedPod], imported: Mapping[str, Imported]
) -> NodeDevices:
    """Both by uid. For a device that a scheduler allocated to a pod only the allocation counts;
    without an amount in it the pod has the whole device, as on its node (`allocate.visibility`)."""
    devices, functions = [], []
    own: dict[str, Holdings] = {}
    for uid, held in holdings.items():
        if held.devices or held.functions:
            told, of_pod = _numbered(held, inventory)
            own[uid] = {
                at: each if any(each.values()) or at in of_pod else _all_of(inventory, at)
                for at, each in told.items()
            }
            devices.append(own[uid])
            functions.append(of_pod)
    for uid, each in imported.items():
        given = own.get(uid, {})
        devices.append({at: amounts for at, amounts in each.devices.items() if at not in given})
        functions.append(each.functions)
    return node_devices(inventory, together(devices), functions_together(functions))


def device_overlaps(
    inventory: Inventory | None, holdings: Iterable[AssignedPod]
) -> tuple[DeviceOverlap, ...]:
    """By type, minor and what is held; each with those that hold something of it."""
    claims: dict[tuple[str, int, str], list[tuple[str, int]]] = {}
    for held in sorted(holdings, key=lambda each: each.uid):
        devices, functions = _numbered(held, inventory)
        for (kind, minor), amounts in devices.items():
            for name, amount in amounts.items():
                claims.setdefault((kind, minor, name), []).append((held.uid, amount))
        for (kind, minor), buses in functions.items():
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


def _all_of(inventory: Inventory, at: tuple[str, int]) -> dict[str, int]:
    kind, minor = at
    fleet = inventory.fleets.get(kind)
    return fleet.devices[minor].resources if fleet and minor in fleet.devices else {}


def _numbered(held: AssignedPod, inventory: Inventory | None) -> tuple[Holdings, VirtualFunctions]:
    """With the minors that the devices have now: drivers of GPUs count them anew at each start."""
    moved = {}
    for (kind, minor), uuid in held.ids.items():
        fleet = inventory.fleets.get(kind) if inventory else None
        if fleet is None or (minor in fleet.devices and fleet.devices[minor].uuid == uuid):
            continue
        now = next((at for at, each in fleet.devices.items() if each.uuid == uuid), minor)
        moved[kind, minor] = kind, now
    if not moved:
        return held.devices, held.functions
    return (
        together({moved.get(at, at): amounts} for at, amounts in held.devices.items()),
        functions_together({moved.get(at, at): buses} for at, buses in held.functions.items()),
    )
