"""The pods that are assigned to a node, with the CPUs and devices that their annotations allocate
to them. A Reservation of Koordinator holds its part like a pod."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from agent.allocate.node_allocation import PodAllocation, memory_of, pod_allocation
from agent.model.devices.device_allocation import (
    DeviceAmounts,
    VirtualFunctions,
    allocated_devices,
    amounts,
    virtual_functions,
)
from agent.model.pod.annotations import (
    DEVICE_ALLOCATED,
    RESOURCE_STATUS,
    AnnotationError,
    resource_status,
)
from agent.model.pod.apiobjects import ApiPod
from agent.model.pod.numa_request import numa_request_of
from agent.model.pod.resource_request import pod_requests


class AssignedPod(msgspec.Struct, frozen=True, gc=False):
    """What a pod, or a Reservation of Koordinator, holds on its node."""

    uid: str
    title: str
    allocation: PodAllocation
    devices: DeviceAmounts = {}
    """The amounts of each device, by its type and minor."""
    functions: VirtualFunctions = {}
    """The virtual functions of each device, by its type and minor."""
    requests: dict[str, int] = {}
    """The sum of the pod's requests: CPU in milli-CPU, the rest in units."""
    priority: int = 0
    faults: tuple[str, ...] = ()
    """Why annotations of the pod can't be read."""
    ids: dict[tuple[str, int], str] = {}
    """The permanent ids of the devices that were allocated by id."""
    reservation: bool = False
    """A Reservation holds this, not a pod."""
    kubelet_cpus: int = 0
    """The largest number of CPUs that a static kubelet gives to its containers at one time."""

    @property
    def kinds(self) -> frozenset[str]:
        """The types of the pod's devices."""
        if not self.devices and not self.functions:
            return _NONE
        return frozenset(kind for kind, _ in (*self.devices, *self.functions))


_NONE: Final[frozenset[str]] = frozenset()


def assigned_pod_of(pod: ApiPod) -> AssignedPod:
    """Reads a pod's allocation. Never fails: a part that can't be read is a fault, and the others
    count."""
    requests = pod_requests(pod)
    assigned = _assigned_pod(pod.uid, pod.title, pod.annotations, requests, pod.priority or 0)
    if pod.kube_class not in (None, "guaranteed"):
        return assigned
    cpus = numa_request_of(pod).whole.exclusive_milli // 1000
    return msgspec.structs.replace(assigned, kubelet_cpus=cpus) if cpus else assigned


def reserved_by(uid: str, title: str, annotations: Mapping[str, str]) -> AssignedPod:
    """Reads the allocation of a Reservation, which has the same annotations as a pod. Its requests
    are in no sum of kube-scheduler, so they do not count here either. Never fails."""
    return msgspec.structs.replace(_assigned_pod(uid, title, annotations, {}, 0), reservation=True)


def _assigned_pod(
    uid: str, title: str, annotations: Mapping[str, str], requests: dict[str, int], priority: int
) -> AssignedPod:
    faults: list[str] = []
    allocation = _allocation(uid, title, annotations, requests, faults)
    devices: DeviceAmounts = {}
    functions: VirtualFunctions = {}
    ids: dict[tuple[str, int], str] = {}
    if annotations.get(DEVICE_ALLOCATED):
        try:
            functions = virtual_functions(annotations)
            of_pod = allocated_devices(annotations)
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
        priority,
        tuple(faults),
        ids,
    )


def remaining(reserved: AssignedPod, owners: Iterable[AssignedPod]) -> AssignedPod | None:
    """The part of a Reservation that is left after the parts of the pods that were placed in it;
    None if nothing is left."""
    owners = tuple(owners)
    whole = reserved.allocation
    cpus, amounts = whole.cpus, whole.amounts
    for owner in owners:
        cpus -= owner.allocation.cpus
        amounts = _subtracted(amounts, owner.allocation.amounts)
    devices: DeviceAmounts = {}
    functions: VirtualFunctions = {}
    for at in reserved.devices.keys() | reserved.functions.keys():
        part = _Part(reserved.devices.get(at, {}), reserved.functions.get(at, frozenset()))
        uuid = reserved.ids.get(at, "")
        left = part.without(each for owner in owners if (each := _part(owner, at, uuid)))
        if left is not None:
            devices[at] = left.amounts
            if left.functions:
                functions[at] = left.functions
    if not (cpus or amounts or devices):
        return None
    allocation = msgspec.structs.replace(whole, cpus=cpus, amounts=amounts)
    return msgspec.structs.replace(
        reserved, allocation=allocation, devices=devices, functions=functions
    )


class _Part(msgspec.Struct, frozen=True):
    """A part of one device; without amounts and functions it is the whole device."""

    amounts: dict[str, int]
    functions: frozenset[str]

    @property
    def whole(self) -> bool:
        return not self.functions and not any(self.amounts.values())

    def without(self, others: Iterable[_Part]) -> _Part | None:
        """None if nothing is left. A whole device stays whole beside parts of it."""
        amounts, functions = {0: self.amounts}, self.functions
        for other in others:
            if other.whole:
                return None
            amounts = _subtracted(amounts, {0: other.amounts})
            functions -= other.functions
        left = _Part(amounts.get(0, {}), functions)
        return left if self.whole or not left.whole else None


def _part(owner: AssignedPod, at: tuple[str, int], uuid: str) -> _Part | None:
    """The owner's part of the device that the Reservation names so; its minor may be another since
    a boot."""
    kind, _ = at
    same = [key for key, each in owner.ids.items() if uuid and (key[0], each) == (kind, uuid)]
    key = same[0] if same else at
    if not same and uuid and owner.ids.get(at, uuid) != uuid:
        return None
    if key not in owner.devices and key not in owner.functions:
        return None
    return _Part(owner.devices.get(key, {}), owner.functions.get(key, frozenset()))


def _subtracted(
    amounts: Mapping[int, Mapping[str, int]], less: Mapping[int, Mapping[str, int]]
) -> dict[int, dict[str, int]]:
    """The positive differences."""
    found = {}
    for node, of_node in amounts.items():
        taken = less.get(node, {})
        left = {name: each - taken.get(name, 0) for name, each in of_node.items()}
        if positive := {name: each for name, each in left.items() if each > 0}:
            found[node] = positive
    return found


def _allocation(
    uid: str,
    title: str,
    notes: Mapping[str, str],
    requests: Mapping[str, int],
    faults: list[str],
) -> PodAllocation:
    cpu_milli = requests.get("cpu", 0)
    allocation = PodAllocation(uid, title, cpu_milli=cpu_milli)
    if not notes.get(RESOURCE_STATUS):
        return allocation
    try:
        allocation = pod_allocation(uid, title, notes, cpu_milli, memory_of(requests))
        if not allocation.amounts:
            resource_status(notes).amounts()
    except AnnotationError as error:
        faults.append(str(error))
    return allocation
