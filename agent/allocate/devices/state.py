"""The free resources of a node's devices, next to those that its pods hold."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from agent.allocate.devices.inventory import Inventory
from agent.allocate.devices.partitions import MAX_MINOR
from agent.allocate.devices.scores import summed
from agent.model.device_allocation import Holdings, VirtualFunctions

Amounts = dict[str, int]


class Stock(msgspec.Struct, frozen=True):
    """Of one device type. `free`: by minor, the free resources, none of an unhealthy one, and their
    `sums`. `used`: the devices that a pod holds, whole or in part, healthy or not. `idle`: the
    healthy devices that no pod holds."""

    free: dict[int, Amounts]
    sums: Amounts
    used: int
    idle: int


class NodeDevices(msgspec.Struct, frozen=True):
    """By device type; `taken`: virtual functions that pods hold, by bus id."""

    inventory: Inventory
    stocks: dict[str, Stock]
    taken: VirtualFunctions = {}


def node_devices(
    inventory: Inventory, held: Holdings, taken: VirtualFunctions | None = None
) -> NodeDevices:
    """Holdings beyond a device's resources, or of a missing device, leave nothing free; an
    impossible minor belongs to no device."""
    stocks = {}
    for kind, fleet in inventory.fleets.items():
        used = 0
        free = {}
        for minor, total in fleet.totals.items():
            of_device = held.get((kind, minor))
            free[minor] = _less(total, of_device) if of_device else total
        for (of_kind, minor), amounts in held.items():
            if of_kind == kind and 0 <= minor <= MAX_MINOR and any(amounts.values()):
                used |= 1 << minor
        stocks[kind] = Stock(free, summed(free.values()), used, fleet.healthy & ~used)
    return NodeDevices(inventory, stocks, taken or {})


def _less(total: Mapping[str, int], held: Mapping[str, int]) -> Amounts:
    return {name: max(0, amount - held.get(name, 0)) for name, amount in total.items()}
