"""A pod that is assigned to a node, with what its annotations allocate to it."""

from __future__ import annotations

from typing import Final

import msgspec

from agent.allocate import pod_total
from agent.allocate.pod_allocation import PodAllocation, pod_allocation
from agent.model.annotations import (
    DEVICE_ALLOCATED,
    RESOURCE_STATUS,
    AnnotationError,
    resource_status,
)
from agent.model.apiobjects import ApiPod
from agent.model.device_allocation import (
    Holdings,
    VirtualFunctions,
    amounts,
    given,
    virtual_functions,
)


class AssignedPod(msgspec.Struct, frozen=True, gc=False):
    """`devices` and `functions` by type and minor; `ids`: the names for life of devices that were
    given by one; `requests`: the pod's total. `faults`: what of its annotations can't be read."""

    uid: str
    title: str
    claim: PodAllocation
    devices: Holdings = {}
    functions: VirtualFunctions = {}
    requests: dict[str, int] = {}
    priority: int = 0
    faults: tuple[str, ...] = ()
    ids: dict[tuple[str, int], str] = {}

    @property
    def kinds(self) -> frozenset[str]:
        """The types of its devices."""
        if not self.devices and not self.functions:
            return _NONE
        return frozenset(kind for kind, _ in (*self.devices, *self.functions))


_NONE: Final[frozenset[str]] = frozenset()


def holding_of(pod: ApiPod) -> AssignedPod:
    """Never fails: a part that can't be read is a fault, and the others count."""
    faults: list[str] = []
    requests = pod_total.requests(pod)
    claim = _claim(pod, requests.get("cpu", 0), faults)
    devices: Holdings = {}
    functions: VirtualFunctions = {}
    ids: dict[tuple[str, int], str] = {}
    if pod.annotations.get(DEVICE_ALLOCATED):
        try:
            functions = virtual_functions(pod.annotations)
            of_pod = given(pod.annotations)
            devices = amounts(of_pod)
            ids = {
                (kind, each.minor): each.id for kind in of_pod for each in of_pod[kind] if each.id
            }
        except AnnotationError as error:
            faults.append(str(error))
    return AssignedPod(
        claim.uid,
        claim.title,
        claim,
        devices,
        functions,
        requests,
        pod.priority or 0,
        tuple(faults),
        ids,
    )


def _claim(pod: ApiPod, cpu_milli: int, faults: list[str]) -> PodAllocation:
    notes = pod.annotations
    claim = PodAllocation(pod.uid, pod.title, cpu_milli=cpu_milli)
    if not notes.get(RESOURCE_STATUS):
        return claim
    try:
        claim = pod_allocation(pod.uid, claim.title, notes, cpu_milli)
        if not claim.amounts:
            resource_status(notes).amounts()
    except AnnotationError as error:
        faults.append(str(error))
    return claim
