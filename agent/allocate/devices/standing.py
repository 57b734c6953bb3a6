"""Whether an allocation that was offered earlier can still be given."""

from __future__ import annotations

from agent.allocate.devices.allocation import Allocation, DeviceRequest
from agent.allocate.devices.need import ChosenDevice
from agent.allocate.devices.state import NodeDevices
from agent.allocate.devices.view import view


def gone(node: NodeDevices, request: DeviceRequest, allocation: Allocation) -> str:
    """The needed parts that the node does not have any more; empty if it has all."""
    for kind, chosen in allocation.devices.items():
        for each in chosen:
            if missing := _gone(node, request, kind, each):
                return missing
    return ""


def _gone(node: NodeDevices, request: DeviceRequest, kind: str, chosen: ChosenDevice) -> str:
    fleet = node.inventory.fleets.get(kind)
    minor = chosen.minor
    device = fleet.devices.get(minor) if fleet else None
    title = f"{kind} {minor}"
    if fleet is None or device is None or device.uuid != chosen.uuid:
        return f"{title} ({chosen.uuid}) is not there any more"
    if not fleet.healthy >> minor & 1:
        return f"{title} is ill"
    stock = node.stocks[kind]
    free = stock.free[minor]
    for name, amount in chosen.resources.items():
        if name in free and free[name] < amount:
            return f"{title} has {free[name]} of {amount} {name} left"
    if not view(fleet, stock, {}, request.wishes.hints.get(kind), None, None).fitting >> minor & 1:
        return f"{title} is not as the pod wants it any more"
    there = {each.bus for group in device.vf_groups for each in group.vfs}
    taken = node.taken.get((kind, minor), frozenset())
    for function in chosen.functions:
        if function.bus not in there or function.bus in taken:
            return f"virtual function {function.bus} of {title} is not free any more"
    return ""
