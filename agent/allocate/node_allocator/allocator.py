"""The node allocator: what is allocated on a node (CPUs, NUMA amounts and devices), and offers for
further pods.

`offer` changes nothing; `commit` applies an offer if that is still possible; `record` takes what a
pod's annotations allocate to it as it is: two pods that hold the same CPU or device both count and
are reported. The state is the sum of the assigned pods, so a restart rebuilds it from their
annotations in any order.

Pods without CPUs or devices from Topolet are placed by the node's report of its NUMA nodes
(`zones`). For all others the policies, CPUs and NUMA nodes come from `offering`, and the devices
take part in it as a second hint provider."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import msgspec

from agent.allocate import node_score, offering
from agent.allocate.devices.allocation import Allocation, DeviceHintProvider, unavailable
from agent.allocate.devices.inventory import Inventory, NodeDevices
from agent.allocate.devices.need import typed
from agent.allocate.node_allocation import NodeAllocation, PodAllocation
from agent.allocate.node_allocator.answer import Granted, split_cores, with_devices
from agent.allocate.node_allocator.assigned_pods import (
    AssignedPod,
    DeviceOverlap,
    Overlap,
    cpu_overlaps,
    device_overlaps,
    held_devices,
)
from agent.allocate.node_allocator.pod_request import Needs, PodRequest, Reads, as_one
from agent.allocate.node_allocator.properties import NodeProperties, free_amounts
from agent.allocate.node_allocator.zones import Zones
from agent.allocate.node_score import ScoreInput, WholeNode
from agent.allocate.nrt.node import ZonedNode, ZoneReport
from agent.allocate.offering import Offer
from agent.allocate.placement.demand import CardOrder, FreeAmounts, Verdict
from agent.allocate.refusal import Reason, Refusal
from agent.allocate.score import HIGHEST
from agent.allocate.steps import MEMBER_STEPS, OFFER_STEPS, Steps, TooComplexError
from agent.allocate.trials import Price
from agent.model.cpu.policies import Strategy
from agent.model.devices import device_object
from agent.model.devices.device_allocation import DeviceAmounts
from agent.model.devices.device_object import DOMAIN, DeviceType
from agent.model.devices.device_request import DeviceRequest
from agent.model.nrt.resource_topology import KIND
from agent.model.pod.resource_request import ResourceRequest


class StaleOfferError(Exception):
    """An offer that can no longer be committed; the message names what is missing."""


class NodeAllocator:
    """Assigned pods by uid on a node with these properties. Not thread-safe."""

    def __init__(self, properties: NodeProperties, holdings: Iterable[AssignedPod] = ()) -> None:
        self._properties = properties
        self._holdings: dict[str, AssignedPod] = {}
        self._requested: Counter[str] = Counter()
        self._kubelet_cpus = 0
        self._account = NodeAllocation(properties.cpus) if properties.cpus else None
        self._devices: NodeDevices | None = None
        self._free: FreeAmounts | None = None
        self._zones = Zones(properties.zones)
        for holding in holdings:
            self.record(holding)

    @property
    def properties(self) -> NodeProperties:
        return self._properties

    @property
    def holdings(self) -> Mapping[str, AssignedPod]:
        """A live view, by uid."""
        return MappingProxyType(self._holdings)

    @property
    def requested(self) -> Mapping[str, int]:
        """A live view of the sum of the pods' requests: `cpu` in milli-CPU, the rest in units."""
        return MappingProxyType(self._requested)

    def state(self, reads: Reads) -> tuple[object, ...]:
        """What an offer reads besides the properties; equal for equal states."""
        zones = self._zones.state() if self._properties.zones else None
        taken = self._kubelet_cpus if self._properties.whole_cores else None
        if reads is Reads.ZONES:
            return zones, taken
        account = self._account.state() if self._account else None
        requested = self._requested if self._properties.rules.scoring else None
        devices = self._node_devices("").state() if reads is Reads.DEVICES else None
        return zones, taken, account, requested, devices

    def with_properties(self, new: NodeProperties, uncounted: Container[str] = ()) -> NodeAllocator:
        """The same pods on the node with new properties. `uncounted`: uids of pods that the node's
        report of its NUMA nodes does not count yet."""
        if new.cpus == self._properties.cpus:
            other = self.without(())
            other._properties, other._devices, other._free = new, None, None
        else:
            other = NodeAllocator(new, self._holdings.values())
        other._zones = self._zones.with_report(new.zones, uncounted)
        return other

    def update_report(
        self, report: ZoneReport | None, left: ZonedNode | None, uncounted: Container[str] = ()
    ) -> None:
        """The node's report of its NUMA nodes has changed, or the pods that it counts. `left`: the
        amounts that all pods but those of `uncounted` leave free; None: unknown."""
        self._properties = msgspec.structs.replace(self._properties, zones=report)
        self._zones.update_report(report, left, uncounted)

    def without(self, uids: Collection[str]) -> NodeAllocator:
        """A copy in which these pods hold nothing."""
        other = copy.copy(self)
        other._holdings = dict(self._holdings)
        other._requested = self._requested.copy()
        other._account = self._account.copy() if self._account else None
        other._free = None
        for uid in uids:
            other._forget(uid)
        if any(self._kinds(uid) for uid in uids):
            other._devices = None
        allocations = [self._holdings[uid].allocation for uid in uids if uid in self._holdings]
        other._zones = self._zones.without(uids, allocations, self._properties.cpus)
        return other

    def offer(self, pod_request: PodRequest) -> Granted | Refusal:
        """An offer in the current state. What the pod itself holds counts as free. Refusal after
        OFFER_STEPS."""
        try:
            return self._offer(pod_request, Steps(OFFER_STEPS))
        except TooComplexError:
            return self._too_complex(OFFER_STEPS)

    def _too_complex(self, steps: int) -> Refusal:
        properties = self._properties
        kinds = [KIND] if properties.cpus or properties.zones else []
        kinds += [device_object.KIND] if properties.inventory else []
        text = f"{' and '.join(kinds)} {properties.name}: too complex for an offer in {steps} steps"
        return Refusal(Reason.TOO_COMPLEX, detail=text)

    def _offer(self, pod_request: PodRequest, steps: Steps) -> Granted | Refusal:
        offered = self._unplaced(self.as_here(pod_request), steps)
        if isinstance(offered, Refusal) or (verdict := self.verdict(pod_request)) is None:
            return offered
        return offered.placed(verdict)

    def score_bound(self, pod_request: PodRequest) -> int:
        """No offer to the pod, which holds nothing here, has a higher score."""
        rules, state = self._properties.rules, self._score_input()
        if rules.scoring is None or rules.placement is not None or state is None:
            return HIGHEST
        here = self.as_here(pod_request)
        scored = "cpu" in here.requests or "memory" in here.requests
        if here.reads(self._properties) is Reads.ZONES or not scored:
            return HIGHEST
        found = node_score.bound(rules.scoring, state, here.resources)
        return found if here.devices is None else (found + HIGHEST) // 2

    def verdict(self, pod_request: PodRequest) -> Verdict | None:
        """How good the node is for a pod that fits, by the placement of the rules; None without
        one."""
        placement = self._properties.rules.placement
        if placement is None:
            return None
        uid = pod_request.uid
        free = self.without((uid,)).free if uid in self._holdings else self.free
        return placement.verdict(free, pod_request.kind)

    @property
    def free(self) -> FreeAmounts:
        """What the pods leave free, for placements."""
        if self._free is None:
            devices = self._node_devices("") if self._properties.inventory else None
            self._free = free_amounts(self._properties, self._requested, devices)
        return self._free

    def _unplaced(self, pod_request: PodRequest, steps: Steps) -> Granted | Refusal:
        """The offer without the verdict of a placement."""
        properties = self._properties
        if (rejected := self._split_cores(pod_request)) is not None:
            return rejected
        if pod_request.reads(properties) is Reads.ZONES:
            return self._by_zones(pod_request, steps)
        if pod_request.uid in self._holdings:
            return self.without((pod_request.uid,))._unplaced(pod_request, steps)
        if pod_request.unequal:
            text = f"{pod_request.unequal}: {pod_request.resources.qos} pods need equal amounts"
            return Refusal(Reason.CPU_LIMIT_DIFFERS, detail=text)
        if properties.cpus is None and Needs.CPUS in pod_request.needs:
            text = f"node {properties.name} has no usable NodeResourceTopology"
            return Refusal(Reason.NO_REPORT, detail=text)
        reason = pod_request.shared_reason
        if reason and properties.cpus is not None and properties.cpus.kubelet_static:
            text = f"the kubelet's static CPU policy assigns it no CPUs: {reason}"
            return Refusal(Reason.STATIC_KUBELET, detail=text)
        if not pod_request.needs and not properties.aligns_all:
            by_zones = self._by_zones(pod_request, steps)
            if isinstance(by_zones, Refusal):
                return by_zones
        devices = None
        if pod_request.devices is not None:
            provider = self._provider(pod_request, pod_request.devices, steps)
            if isinstance(provider, Refusal):
                return provider
            devices = provider
        offer: Offer | None = None
        if properties.cpus is not None and self._account is not None:
            answer = offering.offer(
                properties.cpus, self._account, pod_request.resources, devices, steps=steps
            )
            if isinstance(answer, Refusal):
                return with_devices(answer, devices)
            offer = answer
        if (rejected := self._rejected_by_kubelet(pod_request, steps)) is not None:
            return rejected
        return _granted(pod_request, offer, devices, self._score(pod_request, offer))

    def as_here(self, pod_request: PodRequest) -> PodRequest:
        """The request as this node serves it: a resource that a Device object of another node
        lists is the kubelet's here, if the Node has it and the node's Device object does not list
        it. Nobody but a Device object gives resources of Koordinator's domain."""
        devices, properties = pod_request.devices, self._properties
        if devices is None or not devices.listed:
            return pod_request
        types = properties.inventory.types if properties.inventory else {}
        of_kubelet = [
            name
            for name in devices.listed
            if name not in types and name in properties.allocatable and not name.startswith(DOMAIN)
        ]
        return pod_request.without_listed(of_kubelet) if of_kubelet else pod_request

    def offer_all(self, pod_requests: Sequence[PodRequest]) -> tuple[Granted, ...] | Refusal:
        """One offer for each request, all of which can be committed; the requests have different
        uids and the same content.

        Whole GPUs are first chosen for all pods as if they were one pod, so that the best links are
        between them; each pod then gets its part of these. If that is impossible (a NUMA policy or
        a partition table admits no set so large), each pod in turn gets its own best offer. Refusal
        after OFFER_STEPS and MEMBER_STEPS for each request."""
        steps = OFFER_STEPS + MEMBER_STEPS * len(pod_requests)
        try:
            return self._offer_all(pod_requests, Steps(steps))
        except TooComplexError:
            return self._too_complex(steps)

    def _offer_all(
        self, pod_requests: Sequence[PodRequest], steps: Steps
    ) -> tuple[Granted, ...] | Refusal:
        outside = self._outside(pod_requests, steps)
        if outside:
            trial = self.without(())
            trial.record(AssignedPod(_OTHERS, _OTHERS, PodAllocation(_OTHERS, _OTHERS), outside))
            granted = trial._in_turn(pod_requests, steps)
            if not isinstance(granted, Refusal):
                return granted
        return self.without(())._in_turn(pod_requests, steps)

    def commit(self, granted: Granted) -> AssignedPod:
        """Raises StaleOfferError, without a change, if a part of the offer was allocated since."""
        pod_request = granted.pod_request
        if missing := self._missing(granted):
            raise StaleOfferError(f"pod {pod_request.title}: {missing}")
        holding = granted.holding()
        self.record(holding)
        allocation = granted.offer.allocation if granted.offer else None
        self._zones.place(holding.uid, allocation, pod_request.taken, self._properties.cpus)
        return holding

    def record(self, holding: AssignedPod) -> None:
        """Adds an assigned pod without checks and replaces its earlier allocation."""
        if holding.kinds or self._kinds(holding.uid):
            self._devices = None
        self._free = None
        self._forget(holding.uid)
        self._requested.update(holding.requests)
        self._kubelet_cpus += holding.kubelet_cpus
        self._holdings[holding.uid] = holding
        if self._account is not None:
            self._account.add(holding.allocation)

    def release(self, uid: str) -> AssignedPod | None:
        """Releases what a pod holds; None for an unknown pod."""
        if self._kinds(uid):
            self._devices = None
        self._free = None
        self._zones.leave(uid)
        return self._forget(uid)

    def free_cpus(self) -> int:
        """Mask of the CPUs that a pod may still own."""
        return self._account.free_cpus() if self._account else 0

    def overlaps(self) -> tuple[Overlap | DeviceOverlap, ...]:
        """The CPUs and devices that more pods hold than may share them."""
        of_devices = device_overlaps(self._properties.inventory, self._holdings.values())
        return (*cpu_overlaps(self._account, self._holdings), *of_devices)

    def _by_zones(self, pod_request: PodRequest, steps: Steps) -> Granted | Refusal:
        found = self._zones.score(
            pod_request.uid, pod_request.zoned, self._properties.rules.zones, steps
        )
        if isinstance(found, int):
            return Granted(pod_request, score=found)
        return found

    def _split_cores(self, pod_request: PodRequest) -> Refusal | None:
        """Why the kubelet would reject the pod under full-pcpus-only; None if it would not."""
        cores = self._properties.whole_cores
        if cores is None:
            return None
        uid, parts = pod_request.uid, pod_request.zoned.parts
        own = self._holdings[uid].kubelet_cpus if uid in self._holdings else 0
        if (found := cores.refused(parts, self._kubelet_cpus - own)) is None:
            return None
        return split_cores(*found, lasting=cores.refused(parts) is not None)

    def _rejected_by_kubelet(self, pod_request: PodRequest, steps: Steps) -> Refusal | None:
        if self._properties.zones is None:
            return None
        return self._zones.restricts(pod_request.uid, pod_request.zoned, steps)

    def _missing(self, granted: Granted) -> str:
        """What the offer needs and the node no longer has; "" if it has all."""
        pod_request = granted.pod_request
        if pod_request.placed_by_zones and isinstance(found := self.offer(pod_request), Refusal):
            return found.text
        rejected = self._split_cores(pod_request)
        try:
            rejected = rejected or self._rejected_by_kubelet(pod_request, Steps(OFFER_STEPS))
        except TooComplexError:
            rejected = self._too_complex(OFFER_STEPS)
        if rejected is not None:
            return rejected.text
        if granted.device_allocation is not None and pod_request.devices is not None:
            if self._properties.inventory is None:
                return "the node no longer has a Device object"
            devices = self._node_devices(excluding=pod_request.uid)
            if missing := unavailable(devices, pod_request.devices, granted.device_allocation):
                return missing
        if granted.offer is None:
            return ""
        allocation = granted.offer.allocation
        if self._account is None:
            lost = allocation.cpus or allocation.amounts
            return "the node no longer has a usable NodeResourceTopology" if lost else ""
        return self._unavailable(pod_request.resources, allocation)

    def _unavailable(self, request: ResourceRequest, allocation: PodAllocation) -> str:
        cpus, account = self._properties.cpus, self._account
        if cpus is None or account is None:
            return ""
        held = self._holdings.get(allocation.uid)
        if held is None:
            return offering.unavailable(cpus, account, request, allocation)
        account.remove(held.allocation)
        try:
            return offering.unavailable(cpus, account, request, allocation)
        finally:
            account.add(held.allocation)

    def _unfit(self, pod_request: PodRequest) -> Refusal | None:
        properties = self._properties
        if properties.inventory is None:
            text = f"node {properties.name} has no Device object"
            return Refusal(Reason.NO_DEVICE_OBJECT, detail=text)
        gpu = pod_request.devices.requests.get(DeviceType.GPU) if pod_request.devices else None
        if gpu is not None and gpu.shared:
            if pod_request.isolation and pod_request.isolation != properties.isolation:
                there = properties.isolation or "none"
                text = f"requested {pod_request.isolation}, available {there}"
                return Refusal(Reason.GPU_ISOLATION, detail=f"GPU isolation provider: {text}")
            if not properties.shares_gpus:
                text = "GPUs of this model are not divided"
                return Refusal(Reason.GPU_NOT_DIVIDED, detail=text)
        return None

    def _provider(
        self, pod_request: PodRequest, request: DeviceRequest, steps: Steps
    ) -> DeviceHintProvider | Refusal:
        typed_request = typed(request, self._properties.inventory or _NO_INVENTORY)
        if isinstance(typed_request, Refusal):
            return typed_request
        if missing := self._unfit(pod_request):
            return missing
        strategy: Strategy | CardOrder = self._properties.rules.strategy_of(typed_request)
        verdict = self.verdict(pod_request) if pod_request.kind.shared else None
        if verdict is not None:
            strategy = CardOrder(verdict.cards)
        node = self._node_devices(excluding=pod_request.uid)
        return DeviceHintProvider(node, typed_request, strategy, steps)

    def _node_devices(self, excluding: str) -> NodeDevices:
        """The current devices, without those of the pod of this uid."""
        if self._kinds(excluding):
            return self.without((excluding,))._node_devices("")
        if self._devices is None:
            inventory = self._properties.inventory
            if inventory is None:
                raise ValueError(f"node {self._properties.name} has no Device object")
            self._devices = held_devices(inventory, self._holdings, self._properties.imported)
        return self._devices

    def _forget(self, uid: str) -> AssignedPod | None:
        holding = self._holdings.pop(uid, None)
        if holding is not None:
            self._requested.subtract(holding.requests)
            self._kubelet_cpus -= holding.kubelet_cpus
            if self._account is not None:
                self._account.remove(holding.allocation)
        return holding

    def _score(self, pod_request: PodRequest, offer: Offer | None) -> int | None:
        """The score of CPU, memory and NUMA nodes; None for a pod that requests neither CPU nor
        memory."""
        if offer is None or not ("cpu" in pod_request.requests or "memory" in pod_request.requests):
            return None
        args, state = self._properties.rules.scoring, self._score_input()
        if args is None or state is None:
            return offer.price.score
        return node_score.score(args, state, pod_request.resources, offer.allocation)

    def _score_input(self) -> ScoreInput | None:
        cpus, account = self._properties.cpus, self._account
        if cpus is None or account is None:
            return None
        return ScoreInput(cpus, account, WholeNode(self._properties.allocatable, self._requested))

    def _kinds(self, uid: str) -> frozenset[str]:
        held = self._holdings.get(uid)
        return frozenset() if held is None else held.kinds

    def _in_turn(
        self, pod_requests: Sequence[PodRequest], steps: Steps
    ) -> tuple[Granted, ...] | Refusal:
        granted = []
        for pod_request in pod_requests:
            found = self._offer(pod_request, steps)
            if isinstance(found, Refusal):
                return found
            self.commit(found)
            granted.append(found)
        return tuple(granted)

    def _outside(self, pod_requests: Sequence[PodRequest], steps: Steps) -> DeviceAmounts:
        """The GPUs outside the best set for all pods; empty without such a set."""
        inventory, request = self._properties.inventory, pod_requests[0].devices
        cards = request.requests.get(DeviceType.GPU) if request is not None else None
        if len(pod_requests) < 2 or inventory is None or cards is None or cards.shared:
            return {}
        found = self._offer(as_one(pod_requests, cards), steps)
        if not isinstance(found, Granted) or found.device_allocation is None:
            return {}
        chosen = {each.minor for each in found.device_allocation.devices[_GPU]}
        totals = inventory.fleets[_GPU].totals
        return {(_GPU, minor): total for minor, total in totals.items() if minor not in chosen}


_NO_INVENTORY: Final = Inventory({})
_GPU: Final = DeviceType.GPU.value
_OTHERS: Final = "cards outside"
_FREE: Final = Price(0, 0, 0)


def _granted(
    pod_request: PodRequest,
    offer: Offer | None,
    devices: DeviceHintProvider | None,
    score: int | None,
) -> Granted | Refusal:
    """The offers of both providers as one. `score`: the score of everything except devices, None if
    nothing else is requested. A node that the pod avoids is the last of all."""
    scores = [] if score is None else [score]
    price = _FREE if offer is None else offer.price
    order: tuple[int, ...] = (price.avoided, price.split_cores, price.numa_nodes)
    allocation = None
    if devices is not None:
        found = devices.found or devices.find(None)
        if not isinstance(found, Allocation):
            return found
        allocation = found
        scores.append(devices.score(found))
        order += (devices.opened(found),)
    mean = sum(scores) // len(scores) if scores and not price.avoided else 0
    return Granted(pod_request, offer, allocation, mean, order)
