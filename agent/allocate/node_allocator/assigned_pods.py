"""The pods that are assigned to a node, with the CPUs and devices that their annotations allocate
to them, and the devices that they hold together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from agent.allocate.devices.inventory import Inventory, NodeDevices, node_devices
from agent.allocate.node_allocation import PodAllocation, pod_allocation
from agent.allocate.resource_request import pod_requests
from agent.model.apiobjects import ApiPod
from agent.model.devices.device_allocation import (
    DeviceAmounts,
    VirtualFunctions,
    allocated_devices,
    amounts,
    sum_amounts,
    sum_functions,
    virtual_functions,
)
from agent.model.pod.annotations import (
    DEVICE_ALLOCATED,
    RESOURCE_STATUS,
    AnnotationError,
    resource_status,
)


class AssignedPod(msgspec.Struct, frozen=True, gc=False):
    """`devices` and `functions` by type and minor; `ids`: the permanent ids of devices that were
    allocated by id; `requests`: the pod's total. `faults`: errors for annotations that can't be
    read."""

    uid: str
    title: str
    allocation: PodAllocation
    devices: DeviceAmounts = {}
    functions: VirtualFunctions = {}
    requests: dict[str, int] = {}
    priority: int = 0
    faults: tuple[str, ...] = ()
    ids: dict[tuple[str, int], str] = {}

    @property
    def kinds(self) -> frozenset[str]:
        """The types of the pod's devices."""
        if not self.devices and not self.functions:
            return _NONE
        return frozenset(kind for kind, _ in (*self.devices, *self.functions))


_NONE: Final[frozenset[str]] = frozenset()


def holding_of(pod: ApiPod) -> AssignedPod:
    """Reads a pod's allocation. Never fails: a part that can't be read is a fault, and the others
    count."""
    faults: list[str] = []
    requests = pod_requests(pod)
    allocation = _allocation(pod, requests.get("cpu", 0), faults)
    devices: DeviceAmounts = {}
    functions: VirtualFunctions = {}
    ids: dict[tuple[str, int], str] = {}
    if pod.annotations.get(DEVICE_ALLOCATED):
        try:
            functions = virtual_functions(pod.annotations)
            of_pod = allocated_devices(pod.annotations)
            devices = amounts(of_pod)
            ids = {
                (kind, each.minor): each.id for kind in of_pod for each in of_pod[kind] if each.id
            }
        except AnnotationError as error:
            faults.append(str(error))
    return AssignedPod(
        allocation.uid,
        allocation.title,
        allocation,
        devices,
        functions,
        requests,
        pod.priority or 0,
        tuple(faults),
        ids,
    )


def _allocation(pod: ApiPod, cpu_milli: int, faults: list[str]) -> PodAllocation:
    notes = pod.annotations
    allocation = PodAllocation(pod.uid, pod.title, cpu_milli=cpu_milli)
    if not notes.get(RESOURCE_STATUS):
        return allocation
    try:
        allocation = pod_allocation(pod.uid, allocation.title, notes, cpu_milli)
        if not allocation.amounts:
            resource_status(notes).amounts()
    except AnnotationError as error:
        faults.append(str(error))
    return allocation


class Imported(msgspec.Struct, frozen=True):
    """Devices that one pod holds without an allocation of a scheduler."""

    devices: DeviceAmounts
    functions: VirtualFunctions


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
    """`holdings` and `imported` are by uid. If a scheduler allocated a device to a pod, only the
    allocation counts; without an amount the pod has the whole device, as on its node
    (`allocate.visibility`)."""
    devices, functions = [], []
    own: dict[str, DeviceAmounts] = {}
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
    return node_devices(inventory, sum_amounts(devices), sum_functions(functions))


def device_overlaps(
    inventory: Inventory | None, holdings: Iterable[AssignedPod]
) -> tuple[DeviceOverlap, ...]:
    """Sorted by type, minor and `what`; each with the pods that hold a part of it."""
    claims: dict[tuple[str, int, str], list[tuple[str, int]]] = {}
    for held in sorted(holdings, key=lambda each: each.uid):
        devices, functions = _numbered(held, inventory)
        for (kind, minor), of_device in devices.items():
            for name, amount in of_device.items():
                claims.setdefault((kind, minor, name), []).append((held.uid, amount))
        for (kind, minor), buses in functions.items():
            for bus in buses:
                claims.setdefault((kind, minor, bus), []).append((held.uid, 1))
    found = []
    for (kind, minor, what), of in sorted(claims.items()):
        fleet = inventory.fleets.get(kind) if inventory else None
        device = fleet.devices.get(minor) if fleet else None
        # A virtual function is not a resource amount of its device: it exists once.
        there = device.resources.get(what, 1) if device else 1
        if len(of) > 1 and sum(amount for _, amount in of) > there:
            uids = tuple(uid for uid, amount in of if amount)
            found.append(DeviceOverlap(kind, minor, what, uids))
    return tuple(found)


def _all_of(inventory: Inventory, at: tuple[str, int]) -> dict[str, int]:
    kind, minor = at
    fleet = inventory.fleets.get(kind)
    return fleet.devices[minor].resources if fleet and minor in fleet.devices else {}


def _numbered(
    held: AssignedPod, inventory: Inventory | None
) -> tuple[DeviceAmounts, VirtualFunctions]:
    """The holdings with the current minors of the devices: GPU drivers assign minors anew at each
    start."""
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
        sum_amounts({moved.get(at, at): amounts} for at, amounts in held.devices.items()),
        sum_functions({moved.get(at, at): buses} for at, buses in held.functions.items()),
    )
