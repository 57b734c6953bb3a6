"""The answer of a node to a pod request: an offer with all of its parts, or the reason why there is
none."""

from __future__ import annotations

import enum
from typing import Any, Final

import msgspec

from agent.allocate.devices.allocation import Allocation, DeviceHintProvider, device_allocated
from agent.allocate.devices.need import DeviceCause, DeviceRefusal
from agent.allocate.kubelet.static_policy import AllocationRefused, RefusalReason
from agent.allocate.node_allocator.assigned_pods import AssignedPod
from agent.allocate.node_allocator.pod_request import PodRequest
from agent.allocate.nrt.filter import Misfit
from agent.allocate.offering import Declined, Offer
from agent.allocate.placement.demand import Verdict
from agent.allocate.policies_in_force import PolicyKind, PolicySource
from agent.allocate.reasons import UNRESOLVABLE, Reason, Rejection
from agent.model import bounds
from agent.model.bounds import JsonError
from agent.model.cpu.policies import BindPolicy
from agent.model.devices.device_allocation import DeviceAmounts, VirtualFunctions
from agent.model.pod.annotations import DEVICE_ALLOCATED, RESOURCE_SPEC
from agent.model.pod.zone_request import PodPart
from agent.model.quantities import amount


class Granted(msgspec.Struct, frozen=True):
    """`offer` None: no CPUs and NUMA amounts are allocated to the pod; `device_allocation`
    None: no device. `score`: 0-100, more is better; `order`: smaller is better among equal
    scores."""

    pod_request: PodRequest
    offer: Offer | None = None
    device_allocation: Allocation | None = None
    score: int = 0
    order: tuple[int, ...] = ()

    @property
    def uid(self) -> str:
        return self.pod_request.uid

    def to(self, pod_request: PodRequest) -> Granted:
        """The same for another pod of the same shape."""
        offer = self.offer
        if offer is not None:
            allocation = msgspec.structs.replace(
                offer.allocation, uid=pod_request.uid, title=pod_request.title
            )
            offer = msgspec.structs.replace(offer, allocation=allocation)
        return msgspec.structs.replace(self, pod_request=pod_request, offer=offer)

    def placed(self, verdict: Verdict) -> Granted:
        """The same with the score and order of a placement; a node that the pod avoids stays the
        last of all."""
        avoided = self.order[0] if self.order else 0
        order = (avoided, verdict.cost)
        score = 0 if avoided else verdict.points
        return msgspec.structs.replace(self, score=score, order=order)

    def holding(self) -> AssignedPod:
        """The pod's allocation after the commit, as `holding_of` reads it back."""
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
            self.offer.allocation if self.offer else pod_request.nothing,
            devices,
            functions,
            pod_request.requests,
            pod_request.priority,
            ids=ids,
            kubelet_cpus=pod_request.zoned.whole.exclusive_milli // 1000,
        )

    def annotations(self) -> dict[str, str]:
        """The annotations of the pod. Allocation annotations of an earlier attempt or another
        writer that are not part of this one become empty."""
        found = dict.fromkeys(self.pod_request.stale, "{}")
        if self.offer is not None:
            allocation = self.offer.allocation
            found |= allocation.annotations(self.offer.pools)
            if allocation.cpus and (text := self._spec()) is not None:
                found[RESOURCE_SPEC] = text
        if self.device_allocation is not None:
            found[DEVICE_ALLOCATED] = device_allocated(self.device_allocation)
        return found

    def _spec(self) -> str | None:
        """The resource-spec with the bind policy in force; None if it already has it."""
        for each in self.offer.why.policies if self.offer else ():
            if each.policy is PolicyKind.CPU_BIND:
                forced = each.source in (PolicySource.KUBELET, PolicySource.NODE_LABEL)
                return spec_text(self.pod_request.spec_text, BindPolicy(each.value), forced=forced)
        return None


class MissingCause(enum.StrEnum):
    """Stable names of what no eviction provides."""

    NODE_UNKNOWN = "node-unknown"
    NO_REPORT = "no-report"
    """The node has no NodeResourceTopology, or an invalid one."""
    NO_DEVICE_OBJECT = "no-device-object"
    """The node has no Device object, or an invalid one."""
    NO_AGENT = "no-agent"
    AGENT_NOT_READY = "agent-not-ready"
    STALE_REPORT = "stale-report"
    """The NodeResourceTopology counts other pods than the scheduler knows."""
    CPU_LIMIT_DIFFERS = "cpu-limit-differs"
    """The CPU limit of an LSE or LSR pod differs from its request."""
    STATIC_KUBELET = "static-kubelet"
    """The kubelet's static CPU policy would not assign CPUs to the pod."""
    GPU_ISOLATION = "gpu-isolation"
    """Parts of the node's GPUs are enforced by another library."""
    GPU_NOT_DIVIDED = "gpu-not-divided"
    """GPUs of the node's model are not divided."""
    TOO_COMPLEX = "too-complex"
    """The node's reports leave so many choices that an offer takes too long (`allocate.steps`)."""


class Missing(msgspec.Struct, frozen=True):
    """Something that no eviction can provide: the node lacks it, or the pod's own fields do; `text`
    names it."""

    text: str
    cause: MissingCause


Why = Rejection | DeviceRefusal | Misfit | Missing


class Refused(msgspec.Struct, frozen=True):
    """At least one reason. `unresolvable`: no eviction can help."""

    reasons: tuple[Why, ...]
    unresolvable: bool = False

    def text(self) -> str:
        """A message for people: the missing resources with the requested and the available
        amounts."""
        return "; ".join(map(text_of, self.reasons))

    def summary(self) -> str:
        """The same without amounts and NUMA nodes, which differ between similar nodes."""
        return "; ".join(map(summary_of, self.reasons))


def refused(*reasons: Why) -> Refused:
    """A refusal; it is unresolvable if one of the reasons is."""
    return Refused(reasons, any(map(_is_unresolvable, reasons)))


_STALE: Final = Missing(
    "the report of its NUMA nodes counts other pods than the scheduler knows",
    MissingCause.STALE_REPORT,
)


def misfit(why: Misfit | None, *, unresolvable: bool) -> Refused:
    """`why` None: the report of the NUMA nodes is stale."""
    return Refused((why or _STALE,), unresolvable)


def split_cores(part: PodPart, why: AllocationRefused, *, unresolvable: bool) -> Refused:
    """A kubelet with full-pcpus-only would reject the pod for this container."""
    lacking = why.reason is RefusalReason.NOT_ENOUGH_CORES
    reason = Reason.BIND_POLICY_UNMET if lacking else Reason.SMT_ALIGNMENT
    detail = f"{part.kind} {part.name}, kubelet: full-pcpus-only with {why.threads} threads a core"
    available = 1000 * why.available if lacking else None
    rejection = Rejection(reason, "cpu", part.exclusive_milli, available, detail=detail)
    return Refused((rejection,), unresolvable)


def declined(answer: Declined, devices: DeviceHintProvider | None) -> Refused:
    """A shortage of devices is reported by the device provider instead of the merge."""
    if devices is None or not isinstance(devices.found, DeviceRefusal):
        return refused(*answer.rejections)
    others = [
        each
        for each in answer.rejections
        if each.reason is not Reason.NUMA_COMPANION and each.resource not in devices.kinds
    ]
    return refused(devices.found, *others)


_LASTING: Final = UNRESOLVABLE | {
    DeviceCause.NO_DEVICES,
    DeviceCause.SEVERAL_TYPES,
    DeviceCause.UNEVEN,
    DeviceCause.NO_VIRTUAL_FUNCTIONS,
    DeviceCause.NO_TOPOLOGY,
    DeviceCause.NO_PARTITION_TABLE,
    DeviceCause.PARTITION_SIZE,
}
_TEXTS: Final = {
    Reason.ARCHITECTURE: "the architecture has no such policy",
    Reason.CPU_NOT_INTEGER: "bound CPUs have to be a whole number",
    Reason.SMT_ALIGNMENT: "CPUs are not a multiple of a core's threads",
    Reason.BIND_POLICY_CONFLICT: "the node has another CPU bind policy",
    Reason.NOT_GUARANTEED: "the node allocates cores to Guaranteed, LSE and LSR pods only",
    Reason.NUMA_POLICY_CONFLICT: "the node has another NUMA policy",
    Reason.NO_CPU_TOPOLOGY: "the node does not report its CPU topology",
    Reason.NO_NUMA_RESOURCES: "the NUMA nodes do not report their resources",
    Reason.AMPLIFIED_CPU: "not enough amplified CPU",
    Reason.NOT_ENOUGH_CPUS: "not enough free CPUs",
    Reason.BIND_POLICY_UNMET: "not enough CPUs that suit the bind policy",
    Reason.NUMA_UNSATISFIED: "the NUMA nodes do not have enough",
    Reason.NUMA_UNALIGNED: "no NUMA nodes that the policy admits",
    Reason.NUMA_INSUFFICIENT: "the NUMA nodes do not have enough",
    Reason.NUMA_COMPANION: "the devices are not on the NUMA nodes of CPU and memory",
    Reason.NO_POOL_FITS: "the limit is larger than the shared CPUs",
    DeviceCause.INSUFFICIENT: "not enough devices are free",
    DeviceCause.NO_DEVICES: "the node has none",
    DeviceCause.SEVERAL_TYPES: "the node lists the resource for several device types",
    DeviceCause.UNEVEN: "the amounts can't be divided into equal shares of the node's devices",
    DeviceCause.NO_VIRTUAL_FUNCTIONS: "the node has no virtual functions",
    DeviceCause.SCOPE: "not enough within the required scope",
    DeviceCause.NO_TOPOLOGY: "the devices do not report their topology",
    DeviceCause.NO_PARTITION_TABLE: "the node has no partition table",
    DeviceCause.PARTITION_SIZE: "the partition table has no sets of this size",
    DeviceCause.PARTITION: "no set of the partition table is free",
    DeviceCause.JOINT: "not under the same switches as the other devices",
}


def _is_unresolvable(why: Why) -> bool:
    if isinstance(why, Rejection):
        return why.reason in _LASTING
    if isinstance(why, Misfit):
        return why.unresolvable
    return isinstance(why, Missing) or why.cause in _LASTING


def text_of(why: Why) -> str:
    """A message for people."""
    if isinstance(why, Missing):
        return why.text
    if isinstance(why, Misfit):
        return why.text()
    if isinstance(why, DeviceRefusal):
        return f"{why.type}: {_TEXTS[why.cause]}"
    summary = summary_of(why)
    more = [why.detail] if why.detail else []
    if why.requested is not None:
        more.append(f"requested {amount(why.resource, why.requested)}")
    if why.available is not None:
        more.append(f"available {amount(why.resource, why.available)}")
    if why.nodes:
        more.append(f"NUMA nodes {','.join(map(str, why.nodes))}")
    return f"{summary} ({', '.join(more)})" if more else summary


def summary_of(why: Why) -> str:
    """The same without amounts and NUMA nodes, which differ between similar nodes."""
    if isinstance(why, Misfit):
        return why.summary()
    if not isinstance(why, Rejection):
        return text_of(why)
    return f"{why.resource}: {_TEXTS[why.reason]}" if why.resource else _TEXTS[why.reason]


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
