"""The answer of a node to a pod request: an offer with all of its parts, or the reason why there is
none."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from agent.allocate.devices.allocation import Allocation, device_allocated
from agent.allocate.node_allocation import PodAllocation
from agent.allocate.node_allocator.assigned_pods import AssignedPod
from agent.allocate.node_allocator.cpus import CpuOffer
from agent.allocate.placement.demand import Rating
from agent.allocate.policies_in_force import PolicyKind, PolicySource
from agent.model import bounds
from agent.model.bounds import JsonError
from agent.model.cpu.policies import BindPolicy
from agent.model.devices.device_allocation import DeviceAmounts, VirtualFunctions
from agent.model.pod.annotations import DEVICE_ALLOCATED, RESOURCE_SPEC
from agent.model.pod_request import PodRequest


class NodeOffer(msgspec.Struct, frozen=True):
    """What a node offers to a pod."""

    pod_request: PodRequest
    cpus: CpuOffer | None = None
    """None: no CPUs and NUMA amounts are allocated to the pod."""
    device_allocation: Allocation | None = None
    """None: no device is allocated to the pod."""
    score: int = 0
    """0 to 100, more is better."""
    order: tuple[int, ...] = ()
    """Smaller is better among equal scores."""
    avoided: bool = False
    """Whether the pod avoids the node. Then the score is 0, and the order is the last."""

    @property
    def uid(self) -> str:
        return self.pod_request.uid

    def to(self, pod_request: PodRequest) -> NodeOffer:
        """Returns this offer for another pod of the same equivalence class."""
        cpus = self.cpus
        if cpus is not None:
            allocation = msgspec.structs.replace(
                cpus.allocation, uid=pod_request.uid, title=pod_request.title
            )
            cpus = msgspec.structs.replace(cpus, allocation=allocation)
        return msgspec.structs.replace(self, pod_request=pod_request, cpus=cpus)

    def placed(self, rating: Rating) -> NodeOffer:
        """The same with the score and order of a placement; a node that the pod avoids stays the
        last of all."""
        order = (self.avoided, rating.cost)
        score = 0 if self.avoided else rating.points
        return msgspec.structs.replace(self, score=score, order=order)

    def assigned_pod(self) -> AssignedPod:
        """The pod's allocation after the commit, as `assigned_pod_of` reads it back."""
        pod_request = self.pod_request
        devices: DeviceAmounts = {}
        functions: VirtualFunctions = {}
        ids: dict[tuple[str, int], str] = {}
        by_type = self.device_allocation.devices if self.device_allocation else {}
        for kind, chosen in by_type.items():
            for each in chosen:
                devices[kind, each.minor] = each.resources
                if each.uuid:
                    ids[kind, each.minor] = each.uuid
                if each.functions:
                    buses = frozenset(function.bus for function in each.functions)
                    functions[kind, each.minor] = buses
        return AssignedPod(
            pod_request.uid,
            pod_request.title,
            self.cpus.allocation if self.cpus else _nothing(pod_request),
            devices,
            functions,
            pod_request.requests,
            pod_request.priority,
            ids=ids,
            kubelet_cpus=pod_request.numa_request.whole.exclusive_milli // 1000,
        )

    def annotations(self) -> dict[str, str]:
        """The annotations of the pod. Allocation annotations of an earlier attempt or another
        writer that are not part of this one become empty."""
        found = dict.fromkeys(self.pod_request.stale, "{}")
        if self.cpus is not None:
            allocation = self.cpus.allocation
            found |= allocation.annotations(self.cpus.pools)
            if allocation.cpus and (text := self._spec()) is not None:
                found[RESOURCE_SPEC] = text
        if self.device_allocation is not None:
            found[DEVICE_ALLOCATED] = device_allocated(self.device_allocation)
        return found

    def _spec(self) -> str | None:
        """The resource-spec with the bind policy in force; None if it already has it."""
        for each in self.cpus.why.policies if self.cpus else ():
            if each.policy is PolicyKind.CPU_BIND:
                forced = each.source in (PolicySource.KUBELET, PolicySource.NODE_LABEL)
                return spec_text(self.pod_request.spec_text, BindPolicy(each.value), forced=forced)
        return None


def _nothing(pod_request: PodRequest) -> PodAllocation:
    """The allocation of a pod without CPUs and NUMA amounts."""
    cpu_milli = pod_request.requests.get("cpu", 0)
    return PodAllocation(pod_request.uid, pod_request.title, cpu_milli=cpu_milli)


_spec: Final = msgspec.json.Decoder(dict[str, Any] | None)
REQUIRED = "requiredCPUBindPolicy"
PREFERRED = "preferredCPUBindPolicy"


def spec_text(text: str, policy: BindPolicy, *, forced: bool) -> str | None:
    """The content of the annotation with the policy in force instead of a missing or default one,
    as Koordinator writes it back; None if it already has it, or has further fields that can't be
    read. `forced`: by the node. `text`: a valid resource-spec, "" for none."""
    try:
        before = (bounds.decode(_spec, text) if text else None) or {}
    except JsonError:
        return None
    spec = dict(before)
    missing = not spec.get(REQUIRED)
    if spec.get(REQUIRED) == BindPolicy.DEFAULT or (forced and missing):
        spec[REQUIRED] = policy.value
    if spec.get(PREFERRED) == BindPolicy.DEFAULT or (
        not spec.get(PREFERRED) and missing and not forced
    ):
        spec[PREFERRED] = policy.value
    return msgspec.json.encode(spec).decode() if spec != before else None
