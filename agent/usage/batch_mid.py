"""Batch and mid resources: what a node offers to pods of low priority from what its other pods
leave (Koordinator: pkg/slo-controller/noderesource/plugins, batchresource/plugin.go and
midresource/plugin.go). Amounts are milli-CPU and bytes, by `cpu` and `memory`."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Annotated, Final, Literal, NamedTuple

import msgspec

from agent.model.nrt.node_annotations import NodeReservation
from agent.model.pod.qos import PriorityClass

RESOURCES: Final = ("cpu", "memory")
STEPS: Final = {"cpu": 500, "memory": 512 << 20}
"""The amounts that are offered are multiples of these."""
Amounts = Mapping[str, int]


class CalculatePolicy(enum.StrEnum):
    """What other pods keep of a resource."""

    USAGE = "usage"
    """What they use."""
    REQUEST = "request"
    """What they request."""
    MAX_USAGE_REQUEST = "maxUsageRequest"
    """The larger one of both, pod by pod."""


_Percent = Annotated[int, msgspec.Meta(ge=0, le=100)]


class ColocationStrategy(msgspec.Struct, frozen=True, rename="camel"):
    """The fields of Koordinator's colocation strategy that decide about the amounts, with its
    defaults. Percentages are of the capacity."""

    enable: bool = True
    """False: the node offers nothing."""
    cpu_reclaim_threshold_percent: _Percent = 60
    """The rest stays free."""
    memory_reclaim_threshold_percent: _Percent = 65
    cpu_calculate_policy: Literal["usage", "maxUsageRequest"] = "usage"
    memory_calculate_policy: CalculatePolicy = CalculatePolicy.USAGE
    batch_cpu_threshold_percent: _Percent | None = msgspec.field(
        default=None, name="batchCPUThresholdPercent"
    )
    """At most so much is offered; None: everything."""
    batch_memory_threshold_percent: _Percent | None = None
    mid_cpu_threshold_percent: _Percent = msgspec.field(default=100, name="midCPUThresholdPercent")
    mid_memory_threshold_percent: _Percent = 100
    mid_unallocated_percent: _Percent = 0
    """The share of the capacity without requests that mid pods get."""
    mid_reclaim_mode: Literal["", "static"] = ""
    """`static`: mid resources are the percentages below, whatever is used."""
    mid_static_cpu_reserved_percent: _Percent = msgspec.field(
        default=0, name="midStaticCPUReservedPercent"
    )
    mid_static_memory_reserved_percent: _Percent = 0

    def of(self, name: str) -> _Shares:
        """What the strategy says about `cpu` or `memory`."""
        if name == "cpu":
            return _Shares(
                self.cpu_reclaim_threshold_percent,
                CalculatePolicy(self.cpu_calculate_policy),
                self.batch_cpu_threshold_percent,
                self.mid_cpu_threshold_percent,
                self.mid_static_cpu_reserved_percent,
            )
        return _Shares(
            self.memory_reclaim_threshold_percent,
            self.memory_calculate_policy,
            self.batch_memory_threshold_percent,
            self.mid_memory_threshold_percent,
            self.mid_static_memory_reserved_percent,
        )


class _Shares(NamedTuple):
    reclaim: int
    policy: CalculatePolicy
    batch: int | None
    mid: int
    mid_static: int


class PodLoad(msgspec.Struct, frozen=True):
    """A pod of the node, or one that was only measured there."""

    priority_class: str
    requests: Amounts = {}
    """Empty for a pod that has ended, or is not in the API."""
    used: Amounts | None = None
    """Both resources; None if one of them was not measured."""
    exclusive: bool = False
    """Whether it is of class LSE, whose CPUs no other pod gets."""
    active: bool = True
    """False for a pod that has ended, or is not in the API."""
    numa_nodes: frozenset[int] = frozenset()
    """The NUMA nodes that it is bound to; empty if it may be on any."""


class NodeLoad(msgspec.Struct, frozen=True):
    """A node and what runs on it."""

    capacity: Amounts
    reserved: Amounts
    """For the machine itself: what is not allocatable, or what an annotation reserves."""
    system: Amounts
    """What the machine uses outside of pods."""
    used: Amounts
    """What everything uses. Unless both resources are known, nothing is unused, as in
    Koordinator."""
    reclaimable: Amounts
    """What production pods request and are not expected to use."""
    pods: tuple[PodLoad, ...] = ()
    applications: tuple[tuple[str, Amounts], ...] = ()
    """The priority class of each application of the host, and what it uses."""
    cpu_normalization_ratio: float = 1.0
    """The speed of the node's CPUs relative to the CPUs that batch requests count in."""
    third_party: Amounts | None = None
    """What other systems, such as YARN, took of the batch resources; None if none shares them."""
    numa_capacity: Mapping[int, Amounts] = {}
    """The capacity of each NUMA node, memory without huge pages."""


def reserved(capacity: Amounts, allocatable: Amounts, reservation: NodeReservation) -> Amounts:
    """What the machine has for itself: what is not allocatable, or what the annotation reserves.
    Raises AnnotationError."""
    cpus = len(reservation.cpus())
    by_annotation = {
        "cpu": 1000 * cpus if cpus else reservation.cpu_milli(),
        "memory": reservation.memory_bytes(),
    }
    return {
        name: max(capacity.get(name, 0) - allocatable.get(name, 0), by_annotation[name])
        for name in RESOURCES
    }


class Term(msgspec.Struct, frozen=True):
    """A part of an amount, negative if it is taken away."""

    name: str
    amount: int


class Offer(msgspec.Struct, frozen=True):
    """The amount of one resource: the sum of the terms, at least 0 and at most the limit, and what
    normalization adds."""

    terms: tuple[Term, ...]
    limit: int | None = None
    normalization: int = 0
    """What the node has more because its CPUs are fast."""

    @property
    def amount(self) -> int:
        left = max(0, sum(term.amount for term in self.terms))
        return (left if self.limit is None else min(left, self.limit)) + self.normalization


class OfferedResource(msgspec.Struct, frozen=True):
    """A resource as the Node has it."""

    name: str
    amount: int
    offer: Offer
    """What it was computed from."""
    origin: int
    """The amount before other systems took theirs."""
    third_party: int | None = None
    """What they took; None if none shares the resource."""


def offered(
    node: NodeLoad, strategy: ColocationStrategy, before: Amounts
) -> tuple[OfferedResource, ...]:
    """All batch and mid resources. `before`: the origins of the last time, by the resource's name.

    Other systems take from the steady amount, as in Koordinator: they compute their own part from
    it."""
    resources = []
    for priority, offers, of_others in (
        ("batch", batch(node, strategy), node.third_party),
        ("mid", mid(node, strategy), None),
    ):
        for name, offer in offers.items():
            resource = f"{DOMAIN}{priority}-{name}"
            origin = steady(name, before.get(resource), offer.amount)
            third_party = None if of_others is None else of_others.get(name, 0)
            amount = max(0, origin - (third_party or 0))
            resources.append(OfferedResource(resource, amount, offer, origin, third_party))
    return tuple(resources)


DOMAIN: Final = "kubernetes.io/"


def steady(name: str, before: int | None, amount: int) -> int:
    """A multiple of the step that does not exceed the amount: the one before as long as it lies
    less than two steps below the amount."""
    step = STEPS[name]
    if before is not None and before <= amount < before + 2 * step:
        return before
    return amount // step * step


Zones = Mapping[int, Amounts]
"""Amounts by the resource's name, of each NUMA node."""


def batch_of_zones(
    node: NodeLoad,
    strategy: ColocationStrategy,
    resources: Iterable[OfferedResource],
    before: Zones,
) -> Zones:
    """The batch resources of the NUMA nodes, together at most those of the Node, by the same
    formulas (calculateOnNUMALevel): a bound pod counts on its NUMA nodes, and all else in equal
    parts on all of them, rounded up.

    `before`: what they were the last time."""
    loads = {zone: _zone_load(zone, node) for zone in sorted(node.numa_capacity)}
    amounts: dict[int, dict[str, int]] = {zone: {} for zone in loads}
    of_node = {resource.name: resource.amount for resource in resources}
    offers = {zone: batch(load, strategy) for zone, load in loads.items()}
    for name in RESOURCES:
        resource = f"{DOMAIN}batch-{name}"
        unbounded = {}
        for zone, load in loads.items():
            of_others = (load.third_party or {}).get(name, 0)
            available = max(0, offers[zone][name].amount - of_others)
            unbounded[zone] = steady(name, before.get(zone, {}).get(resource), available)
        for zone, amount in _within(unbounded, STEPS[name], of_node.get(resource, 0)).items():
            amounts[zone][resource] = amount
    return amounts


def _zone_load(zone: int, node: NodeLoad) -> NodeLoad:
    capacities = node.numa_capacity
    having = {
        name: {node_id for node_id, amounts in capacities.items() if amounts.get(name, 0)}
        for name in RESOURCES
    }

    def part(whole: Amounts, bound_to: frozenset[int] = frozenset()) -> Amounts:
        parts = {}
        for name, amount in whole.items():
            sharing = having.get(name, set())
            sharing = sharing & bound_to or sharing
            parts[name] = -(-amount // len(sharing)) if zone in sharing else 0
        return parts

    in_zones = {
        name: sum(amounts.get(name, 0) for amounts in capacities.values()) for name in RESOURCES
    }
    # Huge pages are reserved memory of the Node, and no memory of a zone.
    reserved = {
        name: max(0, amount - max(0, node.capacity.get(name, 0) - in_zones.get(name, 0)))
        for name, amount in node.reserved.items()
    }
    return msgspec.structs.replace(
        node,
        capacity=capacities[zone],
        reserved=part(reserved),
        system=part(node.system),
        pods=tuple(
            msgspec.structs.replace(
                pod,
                requests=part(pod.requests, pod.numa_nodes),
                used=part(pod.requests if pod.used is None else pod.used, pod.numa_nodes),
            )
            for pod in node.pods
            if pod.priority_class not in _BELOW_MID
        ),
        applications=tuple((name, part(used)) for name, used in node.applications),
        third_party=None if node.third_party is None else part(node.third_party),
    )


def _within(amounts: Mapping[int, int], step: int, most: int) -> dict[int, int]:
    """The amounts of NUMA nodes, the largest ones lowered to the same number of steps so that all
    together are at most `most`."""
    lowered, remaining = {}, most
    for place, zone in enumerate(sorted(amounts, key=lambda zone: (amounts[zone], zone))):
        fair = remaining // (len(amounts) - place) // step * step
        lowered[zone] = min(amounts[zone], fair)
        remaining -= lowered[zone]
    return lowered


def batch(node: NodeLoad, strategy: ColocationStrategy) -> dict[str, Offer]:
    """The batch resources by `cpu` and `memory`. Production and mid pods keep theirs."""
    return {name: _batch(name, node, strategy) for name in RESOURCES}


def _batch(name: str, node: NodeLoad, strategy: ColocationStrategy) -> Offer:
    capacity, shares = node.capacity.get(name, 0), strategy.of(name)
    kept = sum(
        _kept(name, pod, shares.policy) for pod in node.pods if pod.priority_class not in _BELOW_MID
    )
    machine = _machine(name, node, (PriorityClass.PROD, PriorityClass.MID))
    if shares.policy is CalculatePolicy.REQUEST:
        machine = Term("reserved", -node.reserved.get(name, 0))
    offer = Offer(
        (
            Term("capacity", capacity),
            Term("free by strategy", -int(capacity * ((100 - shares.reclaim) / 100))),
            machine,
            Term(_KEPT_BY[shares.policy], -kept),
        ),
        None if shares.batch is None else int(capacity * (shares.batch / 100)),
    )
    if name != "cpu":
        return offer
    more = int(offer.amount * node.cpu_normalization_ratio) - offer.amount
    return msgspec.structs.replace(offer, normalization=more)


_BELOW_MID: Final = (PriorityClass.BATCH, PriorityClass.FREE)
_KEPT_BY: Final = {
    CalculatePolicy.USAGE: "used by prod and mid pods",
    CalculatePolicy.REQUEST: "requested by prod and mid pods",
    CalculatePolicy.MAX_USAGE_REQUEST: "used or requested by prod and mid pods",
}


def _kept(name: str, pod: PodLoad, policy: CalculatePolicy) -> int:
    """What a pod keeps. One that is not measured has its request in `usage` and nothing in
    `maxUsageRequest`, as in Koordinator."""
    request = pod.requests.get(name, 0)
    if policy is CalculatePolicy.REQUEST:
        return request
    if pod.used is None:
        return request if policy is CalculatePolicy.USAGE else 0
    used = pod.used.get(name, 0)
    if policy is CalculatePolicy.MAX_USAGE_REQUEST:
        return max(request, used)
    return request if pod.active and pod.exclusive and name == "cpu" else used


def mid(node: NodeLoad, strategy: ColocationStrategy) -> dict[str, Offer]:
    """The mid resources by `cpu` and `memory`."""
    return {name: _mid(name, node, strategy) for name in RESOURCES}


def _mid(name: str, node: NodeLoad, strategy: ColocationStrategy) -> Offer:
    capacity, shares = node.capacity.get(name, 0), strategy.of(name)
    limit = int(capacity * (shares.mid / 100))
    if strategy.mid_reclaim_mode == "static":
        return Offer((Term("static share", int(capacity * (shares.mid_static / 100))),), limit)
    both_used = all(resource in node.used for resource in RESOURCES)
    unused = max(0, capacity - node.used[name]) if both_used else 0
    requested = sum(
        pod.requests.get(name, 0) for pod in node.pods if pod.priority_class == PriorityClass.PROD
    )
    machine = _machine(name, node, (PriorityClass.PROD,))
    unallocated = max(0, capacity + machine.amount - requested)
    return Offer(
        (
            Term("reclaimable of prod pods", min(node.reclaimable.get(name, 0), unused)),
            Term(
                "share of what is unallocated",
                int(unallocated * (strategy.mid_unallocated_percent / 100)),
            ),
        ),
        limit,
    )


def _machine(name: str, node: NodeLoad, above: tuple[str, ...]) -> Term:
    """What the machine itself keeps: what it uses with its applications of these classes, or what
    is reserved for it."""
    system = node.system.get(name, 0) + sum(
        used.get(name, 0) for priority_class, used in node.applications if priority_class in above
    )
    reserved = node.reserved.get(name, 0)
    return Term("reserved", -reserved) if reserved >= system else Term("system", -system)
