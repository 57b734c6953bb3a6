"""The causes of a refusal, each with the objects that an operator can change."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from agent.allocate.node_allocator.allocator import NodeAllocator
from agent.allocate.node_allocator.answer import NodeOffer
from agent.allocate.numa.hint import ids
from agent.allocate.policies_in_force import PROFILES
from agent.allocate.refusal import Reason, Refusal
from agent.model import quantities
from agent.model.cpu.cpuset import CpuSet
from agent.model.cpu.policies import (
    BIND_LABEL,
    NUMA_LABEL,
    PARTITION_LABEL,
    NumaPolicy,
)
from agent.model.devices.device_allocation import DEVICE_ALLOCATE_HINT, DEVICE_JOINT_ALLOCATE
from agent.model.devices.device_object import GPU_PARTITIONS
from agent.model.explanation import Cause, NumaTrial, ObjectField, OfferFacts, PolicyFact
from agent.model.nrt.node_annotations import AMPLIFICATION_RATIO, RESERVATION
from agent.model.pod.annotations import (
    DEVICE_LOCALITY,
    GPU_ISOLATION_PROVIDER,
    NUMA_TOPOLOGY_SPEC,
    RESOURCE_SPEC,
    SHARED_CONTAINERS,
)
from agent.model.pod_request import PodRequest

REPORT: Final = "NodeResourceTopology"
KUBELET: Final = "KubeletConfiguration"
NODE_RESOURCES: Final = "node-resources"
HELD_BY_PLUGIN: Final = "devices-held-by-plugin"
RESERVED_CPUS: Final = "reserved-cpus"
FULL_SWITCH: Final = "full-switch"
REQUESTS: Final = "spec.containers[*].resources.requests"
LIMITS: Final = "spec.containers[*].resources.limits"

PodTitle = Callable[[str], str]
"""The title of a pod by its uid, "" if the reader may not see it."""


def causes_of(
    refusal: Refusal, allocator: NodeAllocator, request: PodRequest, title: PodTitle
) -> tuple[Cause, ...]:
    """The causes of a node's refusal, and what contributes to them: devices that device plugins
    gave to pods, and reserved CPUs. These come before the cause if they alone explain it."""
    found: list[Cause] = []
    for why in refusal.reasons:
        if _has_enough(why, refusal):
            continue
        cause, held = cause_of(why, allocator, request), list[Cause]()
        if why.reason in _FEW_DEVICES:
            held = list(_held_by_plugin(why, allocator, title))
        elif why.reason in _FEW_CPUS:
            held = list(_reserved(why, allocator))
        enough = (cause.available or 0) + sum(each.available or 0 for each in held)
        first = cause.requested is not None and cause.requested <= enough
        found += [*held, cause] if first else [cause, *held]
    return tuple(found)


def _has_enough(why: Refusal, refusal: Refusal) -> bool:
    """Whether the NUMA nodes have enough of this resource and lack only another one."""
    return _unaligned(why) and any(_unaligned(each, short=True) for each in refusal.reasons)


def _unaligned(why: Refusal, *, short: bool = False) -> bool:
    return (
        why.reason is Reason.NUMA_UNALIGNED
        and why.requested is not None
        and why.available is not None
        and (why.requested > why.available) is short
    )


def cause_of(why: Refusal, allocator: NodeAllocator, request: PodRequest) -> Cause:
    """The cause for one reason, with its amounts and the objects to change."""
    if why.reason in _DEVICE_OBJECTS:
        return _device_cause(why, allocator, request)
    return _cause(why, _places(why, allocator), allocator.properties.name, request.title)


def missing_cause(why: Refusal, node: str, pod: str) -> Cause:
    """The cause for what a node lacks for every such pod, or for a field of the pod itself."""
    return _cause(why, _OBJECTS[why.reason], node, pod)


def _cause(why: Refusal, places: tuple[_Place, ...], node: str, pod: str) -> Cause:
    objects = tuple(_object(place, node, pod) for place in places)
    return Cause(
        why.reason,
        why.text,
        why.summary,
        why.resource,
        why.requested,
        why.available,
        why.nodes,
        objects,
    )


def node_resource_causes(
    allocator: NodeAllocator, request: PodRequest, pods: int = 1
) -> Iterator[Cause]:
    """One cause for each resource that the node, as a whole, has too little of for `pods` such pods
    (kube-scheduler, NodeResourcesFit)."""
    node, allocatable = allocator.properties.name, allocator.properties.allocatable
    own = allocator.assigned_pods.get(request.uid)
    placed = sum(not each.reservation for each in allocator.assigned_pods.values()) - (
        own is not None
    )
    wanted = {name: amount * pods for name, amount in request.requests.items()} | {"pods": pods}
    used = {**allocator.requested, "pods": placed}
    for name, amount in wanted.items():
        taken = used.get(name, 0)
        if own is not None and name != "pods":
            taken -= own.requests.get(name, 0)
        left = max(0, allocatable.get(name, 0) - taken)
        if amount > left and (name in allocatable or name != "pods"):
            summary = f"{name}: the Node has too little left"
            amounts = f"requested {quantities.amount(name, amount)}"
            yield Cause(
                NODE_RESOURCES,
                f"{summary} ({amounts}, available {quantities.amount(name, left)})",
                summary,
                name,
                amount,
                left,
                objects=(
                    ObjectField("Pod", request.title, REQUESTS),
                    ObjectField("Node", node, f"status.allocatable.{name}, or its pods"),
                ),
            )


_FEW_DEVICES: Final = (Reason.DEVICE_INSUFFICIENT, Reason.DEVICE_JOINT, Reason.DEVICE_SCOPE)
_FEW_CPUS: Final = (
    Reason.NOT_ENOUGH_CPUS,
    Reason.BIND_POLICY_UNMET,
    Reason.NUMA_UNSATISFIED,
    Reason.NUMA_INSUFFICIENT,
)


def _device_cause(why: Refusal, allocator: NodeAllocator, request: PodRequest) -> Cause:
    node, places = allocator.properties.name, _DEVICE_OBJECTS[why.reason]
    code, text, summary = str(why.reason), why.text, why.summary
    devices = request.devices
    requested = devices.requests.get(why.resource) if devices else None
    free = _free(allocator, why.resource, requested.per) if requested else None
    joint = devices.preferences.joint if devices else None
    if joint is not None and requested and free is not None and free >= requested.count:
        code, places = FULL_SWITCH, _DEVICE_OBJECTS[Reason.DEVICE_JOINT]
        summary = f"{why.resource}: not enough are free under the switches of the other devices"
        text = f"{summary} (requested {requested.count}, free on the whole node {free})"
    elif why.reason is Reason.DEVICE_INSUFFICIENT and requested and free is not None:
        text = f"{summary} (requested {requested.count}, available {free})"
    return Cause(
        code,
        text,
        summary,
        why.resource,
        requested.count if requested else None,
        free,
        objects=tuple(_object(each, node, request.title) for each in places),
    )


def _free(allocator: NodeAllocator, kind: str, part: Mapping[str, int]) -> int | None:
    """The number of healthy devices of a type that have this part left; None if the node has
    none."""
    devices = allocator.devices
    if devices is None or kind not in devices.inventory.fleets:
        return None
    return sum(
        all(left.get(name, amount) >= amount for name, amount in part.items())
        for minor, left in devices.stocks[kind].free.items()
        if devices.inventory.fleets[kind].healthy >> minor & 1
    )


def _held_by_plugin(why: Refusal, allocator: NodeAllocator, title: PodTitle) -> Iterator[Cause]:
    """A cause for the devices that device plugins gave to pods which no scheduler allocated them
    to."""
    node, holders, minors, count = allocator.properties.name, set[str](), set[int](), 0
    for uid, held in allocator.properties.imported.items():
        own = allocator.assigned_pods.get(uid)
        given = own.devices if own is not None else {}
        of_pod = {at[1] for at in held.devices if at[0] == why.resource and at not in given}
        if of_pod:
            minors |= of_pod
            holders.add(title(uid))
            count += 1
    if minors:
        summary = (
            f"device plugins gave {why.resource} devices to pods without a scheduler's allocation"
        )
        listed = ",".join(map(str, sorted(minors)))
        pods = tuple(ObjectField("Pod", each, "spec.schedulerName") for each in sorted(holders))
        yield Cause(
            HELD_BY_PLUGIN,
            f"{summary}: {why.resource} {listed} (pods: {count})",
            summary,
            why.resource,
            None,
            len(minors),
            objects=(*pods, ObjectField("Node", node, f"its pods with {why.resource} of a plugin")),
        )


def _reserved(why: Refusal, allocator: NodeAllocator) -> Iterator[Cause]:
    """A cause for each set of reserved CPUs, if the pod lacks CPU."""
    if why.resource != "cpu":
        return
    for each in reservations(allocator):
        summary = f"{each.who} reserves CPUs, which no pod may own"
        text, amount = f"{summary}: {each.cpus}", len(each.cpus) * 1000
        yield Cause(RESERVED_CPUS, text, summary, "cpu", None, amount, objects=each.objects)


class CpuReservation(NamedTuple):
    """CPUs that no pod may own, who reserves them, and the fields that decide it."""

    who: str
    cpus: CpuSet
    objects: tuple[ObjectField, ...]


def reservations(allocator: NodeAllocator) -> Iterator[CpuReservation]:
    """The reservations of the node that name CPUs."""
    cpus, node = allocator.properties.cpus, allocator.properties.name
    if cpus is None:
        return
    if cpus.kubelet_reserved and not cpus.owners_on_reserved:
        places = (
            ObjectField(KUBELET, node, "reservedSystemCPUs"),
            ObjectField("DaemonSet", "topolet-agent", "the argument --owners-on-reserved"),
        )
        yield CpuReservation("the kubelet", cpus.kubelet_reserved, places)
    if cpus.node_reserved:
        place = ObjectField("Node", node, f"metadata.annotations[{RESERVATION}]")
        yield CpuReservation("the Node", cpus.node_reserved, (place,))


_Place = tuple[str, str]
"""A kind and a field; the name follows from the kind."""


def _object(place: _Place, node: str, pod: str) -> ObjectField:
    kind, field = place
    return ObjectField(kind, pod if kind == "Pod" else node, field)


def _annotation(kind: str, key: str) -> _Place:
    return kind, f"metadata.annotations[{key}]"


def _label(kind: str, key: str) -> _Place:
    return kind, f"metadata.labels[{key}]"


_POD_REQUESTS: Final = ("Pod", REQUESTS)
_NODE_PODS: Final = ("Node", "its pods")
_POD_SPEC: Final = _annotation("Pod", RESOURCE_SPEC)
_NUMA_SPEC: Final = _annotation("Pod", NUMA_TOPOLOGY_SPEC)
_LOCALITY: Final = _annotation("Pod", DEVICE_LOCALITY)
_DEVICE: Final = ("Device", "spec.devices")
_FULL_PCPUS_ONLY: Final = (KUBELET, "cpuManagerPolicyOptions[full-pcpus-only]")


def _places(why: Refusal, allocator: NodeAllocator) -> tuple[_Place, ...]:
    cpus = allocator.properties.cpus
    policies = cpus.policies if cpus is not None else None
    kubelet = policies is not None and policies.full_pcpus_only
    match why.reason:
        case Reason.SMT_ALIGNMENT | Reason.BIND_POLICY_UNMET if kubelet:
            usual = _OBJECTS[why.reason]
            return *(place for place in usual if place != _POD_SPEC), _FULL_PCPUS_ONLY
        case Reason.BIND_POLICY_CONFLICT | Reason.NOT_GUARANTEED:
            of_node = _FULL_PCPUS_ONLY if kubelet else _label("Node", BIND_LABEL)
            own = _POD_SPEC if why.reason is Reason.BIND_POLICY_CONFLICT else ("Pod", LIMITS)
            return own, of_node
        case Reason.NUMA_POLICY_CONFLICT:
            return _NUMA_SPEC, _numa_policy_place(allocator)
        case Reason.NUMA_UNALIGNED:
            return _POD_REQUESTS, _NODE_PODS, _numa_policy_place(allocator)
        case Reason.NOT_ON_NODE:
            return _POD_REQUESTS, ("Node", f"status.allocatable.{why.resource}")
        case Reason.NOT_IN_ZONES:
            return (REPORT, f"zones[*].resources[{why.resource}]"), _POD_REQUESTS
        case _:
            return _OBJECTS[why.reason]


def _numa_policy_place(allocator: NodeAllocator) -> _Place:
    """The field that sets the NUMA policy in force on the node."""
    cpus = allocator.properties.cpus
    if cpus is not None:
        kubelet, label = cpus.policies.numa_kubelet, cpus.policies.numa_label
        profile = cpus.profile or PROFILES["koordinator"]
        if kubelet not in (None, NumaPolicy.NONE) and not (profile.label_first and label):
            return KUBELET, "topologyManagerPolicy"
    return _label("Node", NUMA_LABEL)


_AGENT: Final = ("Node", "the agent's pod")
_ZONE_OBJECTS: Final = (_POD_REQUESTS, _NODE_PODS, (KUBELET, "topologyManagerPolicy"))
_OBJECTS: Final[dict[Reason, tuple[_Place, ...]]] = {
    Reason.ARCHITECTURE: (_POD_SPEC,),
    Reason.CPU_NOT_INTEGER: (_POD_REQUESTS,),
    Reason.SMT_ALIGNMENT: (_POD_REQUESTS, _POD_SPEC),
    Reason.NO_CPU_TOPOLOGY: ((REPORT, "its report of CPUs"), _AGENT),
    Reason.NO_NUMA_RESOURCES: ((REPORT, "zones"), _AGENT),
    Reason.AMPLIFIED_CPU: (_annotation("Node", AMPLIFICATION_RATIO), _POD_REQUESTS, _NODE_PODS),
    Reason.NOT_ENOUGH_CPUS: (_POD_REQUESTS, _NODE_PODS),
    Reason.BIND_POLICY_UNMET: (_POD_SPEC, _POD_REQUESTS, _NODE_PODS),
    Reason.NUMA_UNSATISFIED: (_POD_REQUESTS, _NODE_PODS, _NUMA_SPEC),
    Reason.NUMA_INSUFFICIENT: (_POD_REQUESTS, _NODE_PODS, _NUMA_SPEC),
    Reason.NUMA_COMPANION: (_POD_REQUESTS, _NODE_PODS, _NUMA_SPEC),
    Reason.NO_POOL_FITS: (("Pod", LIMITS), _NODE_PODS),
    Reason.NO_ZONE_HOLDS: _ZONE_OBJECTS,
    Reason.ZONES_TOGETHER: _ZONE_OBJECTS,
    Reason.NO_PREFERRED_HOLDS: _ZONE_OBJECTS,
    Reason.SIZES_DIFFER: _ZONE_OBJECTS,
    Reason.DEVICES_APART: (_POD_REQUESTS, _LOCALITY, _NODE_PODS),
    Reason.NO_CPUS_NEAR: (_POD_REQUESTS, _LOCALITY, _NODE_PODS),
    Reason.NOT_NEAR: (_LOCALITY, _AGENT, (KUBELET, "topologyManagerPolicy")),
    Reason.NODE_UNKNOWN: (("Node", "metadata.name"),),
    Reason.NO_REPORT: ((REPORT, "the object"), _AGENT),
    Reason.NO_DEVICE_OBJECT: (("Device", "the object"), _AGENT),
    Reason.NO_AGENT: (_AGENT,),
    Reason.AGENT_NOT_READY: (_AGENT,),
    Reason.STALE_REPORT: ((REPORT, "the fingerprint of its pods"), _AGENT),
    Reason.CPU_LIMIT_DIFFERS: (("Pod", LIMITS),),
    Reason.STATIC_KUBELET: (
        _POD_REQUESTS,
        _annotation("Pod", SHARED_CONTAINERS),
        (KUBELET, "cpuManagerPolicy"),
    ),
    Reason.GPU_ISOLATION: (_label("Pod", GPU_ISOLATION_PROVIDER), ("Node", "its GPUs")),
    Reason.GPU_NOT_DIVIDED: (_POD_REQUESTS,),
    Reason.TOO_COMPLEX: ((REPORT, "zones"), ("Device", "spec.devices"), _AGENT),
}
_JOINT: Final = _annotation("Pod", DEVICE_JOINT_ALLOCATE)
_DEVICE_OBJECTS: Final[dict[Reason, tuple[_Place, ...]]] = {
    Reason.DEVICE_INSUFFICIENT: (_POD_REQUESTS, _NODE_PODS, _DEVICE),
    Reason.DEVICE_NO_DEVICES: (_DEVICE, _POD_REQUESTS),
    Reason.DEVICE_SEVERAL_TYPES: (_DEVICE,),
    Reason.DEVICE_UNEVEN: (_POD_REQUESTS,),
    Reason.DEVICE_NO_VIRTUAL_FUNCTIONS: (_DEVICE, _annotation("Pod", DEVICE_ALLOCATE_HINT)),
    Reason.DEVICE_SCOPE: (_JOINT, _annotation("Pod", DEVICE_ALLOCATE_HINT), _NODE_PODS),
    Reason.DEVICE_NO_TOPOLOGY: (("Device", "spec.devices[*].topology"),),
    Reason.DEVICE_NO_PARTITION_TABLE: (_annotation("Device", GPU_PARTITIONS),),
    Reason.DEVICE_PARTITION_SIZE: (_POD_REQUESTS, _label("Node", PARTITION_LABEL)),
    Reason.DEVICE_PARTITION: (_NODE_PODS, _label("Node", PARTITION_LABEL)),
    Reason.DEVICE_JOINT: (_JOINT, _NODE_PODS, _DEVICE),
}


def offer_facts(node_offer: NodeOffer) -> OfferFacts:
    cpus, allocation = node_offer.cpus, node_offer.device_allocation
    by_type = allocation.devices if allocation is not None else {}
    order = tuple(map(int, node_offer.order))
    devices = {kind: tuple(each.minor for each in chosen) for kind, chosen in by_type.items()}
    if cpus is None:
        return OfferFacts(node_offer.score, order, devices=devices)
    why, merged = cpus.why, cpus.why.merged
    return OfferFacts(
        node_offer.score,
        order,
        str(cpus.allocation.cpus),
        cpus.allocation.amounts,
        devices,
        tuple(PolicyFact(each.policy, each.value, each.source) for each in why.policies),
        tuple(
            NumaTrial(
                each.nodes,
                each.score,
                each.refusal.reason if each.refusal else "",
                each.whole_cores or 0,
            )
            for each in why.candidates
        ),
        None if merged is None or merged.mask is None else ids(merged.mask),
        tuple(merged.causes) if merged is not None else (),
        tuple(each.value for each in why.cpu_steps),
        cpus.price.split_cores,
    )
