"""The node allocator: what is allocated on a node (CPUs, NUMA amounts and devices), and offers for
further pods.

`offer` changes nothing; `commit` applies an offer if that is still possible; `record` takes what a
pod's annotations allocate to it as it is: two pods that hold the same CPU or device both count. The
state is the sum of the assigned pods, so a restart rebuilds it from their annotations in any order.

An offer has three parts, which answer the same calls (`part`): the zones of the node's report, the
CPUs, and the devices. Pods without CPUs or devices from Topolet are placed by the zones alone. For
all others the devices take part in the choice of NUMA nodes as a second hint provider."""

from __future__ import annotations

import copy
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import msgspec

from agent.allocate.devices.allocation import Allocation, DeviceHintProvider
from agent.allocate.devices.inventory import NodeDevices
from agent.allocate.node_allocation import PodAllocation
from agent.allocate.node_allocator.answer import NodeOffer
from agent.allocate.node_allocator.assigned_pods import AssignedPod
from agent.allocate.node_allocator.cpus import CpuAllocator, CpuOffer
from agent.allocate.node_allocator.devices import DeviceAllocator
from agent.allocate.node_allocator.part import NodePart, Priced
from agent.allocate.node_allocator.properties import NodeProperties, free_amounts
from agent.allocate.node_allocator.zones import ZoneAllocator
from agent.allocate.nrt.device_locality import NEAR
from agent.allocate.nrt.node import ZonedNode, ZoneReport
from agent.allocate.placement.demand import CardOrder, FreeAmounts, Rating
from agent.allocate.refusal import Reason, Refusal
from agent.allocate.score import HIGHEST
from agent.allocate.steps import MEMBER_STEPS, OFFER_STEPS, Steps, TooComplexError
from agent.model.devices import device_object
from agent.model.devices.device_allocation import DeviceAmounts
from agent.model.devices.device_object import DOMAIN, DeviceType
from agent.model.nrt.resource_topology import KIND
from agent.model.pod_request import PodRequest, Reads, as_one


class StaleOfferError(Exception):
    """An offer that can no longer be committed; the message names what is missing."""


class NodeAllocator:
    """Assigned pods by uid on a node with these properties. Not thread-safe."""

    def __init__(
        self, properties: NodeProperties, assigned_pods: Iterable[AssignedPod] = ()
    ) -> None:
        self.properties = properties
        self._assigned: dict[str, AssignedPod] = {}
        self._cpus = CpuAllocator(properties)
        self._devices = DeviceAllocator(properties)
        self._zones = ZoneAllocator(properties)
        self._free: FreeAmounts | None = None
        for pod in assigned_pods:
            self.record(pod)

    @property
    def assigned_pods(self) -> Mapping[str, AssignedPod]:
        """A live view, by uid."""
        return MappingProxyType(self._assigned)

    @property
    def requested(self) -> Mapping[str, int]:
        """A live view of the sum of the pods' requests: `cpu` in milli-CPU, the rest in units."""
        return MappingProxyType(self._cpus.requested)

    def state(self, reads: Reads) -> tuple[object, ...]:
        """What an offer reads besides the properties; equal for equal states."""
        if reads in (Reads.ZONES, Reads.DEVICE_ZONES):
            return (self._zones.state(reads),)
        return tuple(part.state(reads) for part in self._parts())

    def _parts(self) -> tuple[NodePart[Any], ...]:
        return self._zones, self._cpus, self._devices

    def with_properties(self, new: NodeProperties, uncounted: Container[str] = ()) -> NodeAllocator:
        """The same pods on the node with new properties. `uncounted`: uids of pods that the node's
        report of its NUMA nodes does not count yet."""
        if new.cpus == self.properties.cpus:
            other = self.without(())
            other.properties = other._cpus.properties = new
            other._devices = self._devices.with_properties(new)
        else:
            other = NodeAllocator(new, self._assigned.values())
        other._zones = self._zones.with_properties(new, uncounted)
        return other

    def update_report(
        self, report: ZoneReport | None, left: ZonedNode | None, uncounted: Container[str] = ()
    ) -> None:
        """The node's report of its NUMA nodes has changed, or the pods that it counts. `left`: the
        amounts that all pods but those of `uncounted` leave free; None: unknown."""
        new = msgspec.structs.replace(self.properties, zones=report)
        self.properties = self._cpus.properties = self._devices.properties = new
        self._zones.update_report(new, left, uncounted)

    def without(self, uids: Collection[str]) -> NodeAllocator:
        """A copy in which these pods hold nothing."""
        other = copy.copy(self)
        other._assigned, other._free = dict(self._assigned), None
        left_out = [other._assigned.pop(uid) for uid in uids if uid in other._assigned]
        other._cpus = self._cpus.without(left_out)
        other._devices = self._devices.without(left_out)
        other._zones = self._zones.without(left_out)
        return other

    def offer(self, pod_request: PodRequest) -> NodeOffer | Refusal:
        """An offer in the current state. What the pod itself holds counts as free. Refusal after
        OFFER_STEPS."""
        try:
            return self._offer(pod_request, Steps(OFFER_STEPS))
        except TooComplexError:
            return self._too_complex(OFFER_STEPS)

    def _too_complex(self, steps: int) -> Refusal:
        properties = self.properties
        kinds = [KIND] if properties.cpus or properties.zones else []
        kinds += [device_object.KIND] if properties.inventory else []
        text = f"{' and '.join(kinds)} {properties.name}: too complex for an offer in {steps} steps"
        return Refusal(Reason.TOO_COMPLEX, detail=text)

    def _offer(self, pod_request: PodRequest, steps: Steps) -> NodeOffer | Refusal:
        answer = self._unplaced(self.as_here(pod_request), steps)
        if isinstance(answer, Refusal) or (rating := self.rating(pod_request)) is None:
            return answer
        return answer.placed(rating)

    def score_bound(self, pod_request: PodRequest) -> int:
        """No offer to the pod, which holds nothing here, has a higher score. Negative if there is
        surely none."""
        here = self.as_here(pod_request)
        if self.properties.rules.placement or here.reads_zones(self.properties):
            return HIGHEST
        bound = self._cpus.score_bound(here)
        return bound if here.devices is None or bound < 0 else (bound + HIGHEST) // 2

    def rating(self, pod_request: PodRequest) -> Rating | None:
        """How good the node is for a pod that fits, by the placement of the rules; None without
        one."""
        placement = self.properties.rules.placement
        if placement is None:
            return None
        uid = pod_request.uid
        free = self.without((uid,)).free if uid in self._assigned else self.free
        return placement.rating(free, pod_request.kind)

    @property
    def free(self) -> FreeAmounts:
        """What the pods leave free, for placements."""
        if self._free is None:
            self._free = free_amounts(self.properties, self._cpus.requested, self.devices)
        return self._free

    @property
    def devices(self) -> NodeDevices | None:
        """The devices with the amounts that pods hold; None without a Device object."""
        return self._devices.held if self.properties.inventory else None

    def _unplaced(self, pod_request: PodRequest, steps: Steps) -> NodeOffer | Refusal:
        """The offer without the rating of a placement."""
        by_zones = pod_request.reads_zones(self.properties)
        if not by_zones and pod_request.uid in self._assigned:
            return self.without((pod_request.uid,))._unplaced(pod_request, steps)
        zones = self._zones if by_zones or self._zones.checks_all else None
        cpus = None if by_zones else self._cpus
        devices = self._devices if pod_request.devices is not None else None
        for part in (zones, cpus, devices):
            if part is not None and (refusal := part.admits(pod_request, steps)):
                return refusal
        hints = devices.hints(pod_request, steps, self._cards(pod_request)) if devices else None
        if isinstance(hints, Refusal):
            return hints
        of_cpus = cpus.offer(pod_request, steps, hints) if cpus else None
        if isinstance(of_cpus, Refusal):
            return of_cpus
        of_zones = zones.offer(pod_request, steps) if zones else None
        if isinstance(of_zones, Refusal):
            return of_zones
        of_devices = devices.offer(pod_request, steps, hints) if devices else None
        if isinstance(of_devices, Refusal):
            return of_devices
        bound = of_cpus and of_cpus.choice and of_cpus.choice.allocation.bound
        if of_cpus and not of_devices and not bound:
            near = self._zones.by_locality(pod_request, steps)
            if isinstance(near, Refusal):
                return near
            if near and (near.score or 0) < NEAR:
                of_cpus = msgspec.structs.replace(of_cpus, score=(of_cpus.score or 0) // 2)
        if of_devices and hints and not bound:
            of_devices = self._near(pod_request, hints, of_devices, steps)
            if isinstance(of_devices, Refusal):
                return of_devices
        return _node_offer(pod_request, of_cpus, of_zones, of_devices)

    def _near(
        self,
        pod_request: PodRequest,
        hints: DeviceHintProvider,
        offer: Priced[Allocation],
        steps: Steps,
    ) -> Priced[Allocation] | Refusal:
        """The offer of devices to a pod that shares CPUs. If it would be far from them, the node
        counts half, unless the policy is `require`: then the pod gets devices to which it is near,
        or the node is refused."""
        far = self._zones.far(pod_request, offer.choice, steps)
        if far is None:
            return offer
        if not self._zones.requires(pod_request):
            return msgspec.structs.replace(offer, score=(offer.score or 0) // 2)
        for mask in self._zones.near_masks(offer.choice):
            steps.take(_STEPS_OF_MASK)
            allocation = hints.find(mask)
            if isinstance(allocation, Refusal):
                continue
            if self._zones.far(pod_request, allocation, steps) is None:
                return Priced(allocation, hints.score(allocation), (hints.opened(allocation),))
        return far

    def _cards(self, pod_request: PodRequest) -> CardOrder | None:
        """The order of the cards for a part of a GPU, if a placement has one."""
        rating = self.rating(pod_request) if pod_request.kind.shared else None
        return None if rating is None else CardOrder(rating.cards)

    def as_here(self, pod_request: PodRequest) -> PodRequest:
        """The request as this node serves it: a resource that a Device object of another node
        lists is the kubelet's here, if the Node has it and the node's Device object does not list
        it. Nobody but a Device object gives resources of Koordinator's domain. Whole cards are the
        kubelet's if the node's Device object lists no cards, and the zones of its agent have
        them."""
        devices, properties = pod_request.devices, self.properties
        if devices is None:
            return pod_request
        inventory = properties.inventory
        types = inventory.types if inventory else {}
        of_kubelet = [
            name
            for name in devices.listed
            if name not in types and name in properties.allocatable and not name.startswith(DOMAIN)
        ]
        if (inventory is None or _GPU not in inventory.fleets) and self._zones.of_agent:
            of_kubelet += (name for name in pod_request.cards if self._zones.have(name))
        return pod_request.without_devices(of_kubelet) if of_kubelet else pod_request

    def offer_all(self, pod_requests: Sequence[PodRequest]) -> tuple[NodeOffer, ...] | Refusal:
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
    ) -> tuple[NodeOffer, ...] | Refusal:
        outside = self._outside(pod_requests, steps)
        if outside:
            other = self.without(())
            other.record(AssignedPod(_OTHERS, _OTHERS, PodAllocation(_OTHERS, _OTHERS), outside))
            offers = other._in_turn(pod_requests, steps)
            if not isinstance(offers, Refusal):
                return offers
        return self.without(())._in_turn(pod_requests, steps)

    def commit(self, node_offer: NodeOffer) -> AssignedPod:
        """Raises StaleOfferError, without a change, if a part of the offer was allocated since."""
        pod_request = node_offer.pod_request
        if missing := self._missing(node_offer):
            raise StaleOfferError(
                f"pod {pod_request.title} on node {self.properties.name}: {missing}"
            )
        pod = node_offer.assigned_pod()
        self.record(pod)
        allocation = node_offer.cpus.allocation if node_offer.cpus else None
        self._zones.place(allocation, pod.devices, pod_request)
        return pod

    def record(self, pod: AssignedPod) -> None:
        """Adds an assigned pod without checks and replaces its earlier allocation."""
        self._forget(pod.uid)
        self._assigned[pod.uid] = pod
        for part in self._parts():
            part.record(pod)

    def release(self, uid: str) -> AssignedPod | None:
        """Releases what a pod holds; None for an unknown pod."""
        self._zones.leave(uid)
        return self._forget(uid)

    def _forget(self, uid: str) -> AssignedPod | None:
        self._free = None
        pod = self._assigned.pop(uid, None)
        if pod is not None:
            for part in self._parts():
                part.forget(pod)
        return pod

    def free_cpus(self) -> int:
        """Mask of the CPUs that a pod may still own."""
        return self._cpus.free_cpus()

    def _missing(self, node_offer: NodeOffer) -> str:
        """What the offer needs and the node no longer has; "" if it has all."""
        pod_request, steps = node_offer.pod_request, Steps(OFFER_STEPS)
        if pod_request.placed_by_zones and isinstance(now := self.offer(pod_request), Refusal):
            return now.text
        others = self
        if pod_request.uid in self._assigned:
            others = self.without((pod_request.uid,))
        try:
            return (
                self._zones.missing(pod_request, None, steps)
                or others._devices.missing(pod_request, node_offer.device_allocation, steps)
                or others._cpus.missing(pod_request, node_offer.cpus, steps)
                or self._far(node_offer, steps)
            )
        except TooComplexError:
            return self._too_complex(OFFER_STEPS).text

    def _far(self, node_offer: NodeOffer, steps: Steps) -> str:
        """Why a pod that has to be near to its devices would not be; "" if it would."""
        pod_request, cpus = node_offer.pod_request, node_offer.cpus
        bound = cpus is not None and cpus.allocation.bound
        if bound or not self._zones.requires(pod_request):
            return ""
        if (devices := node_offer.device_allocation) is not None:
            far = self._zones.far(pod_request, devices, steps)
            return far.text if far else ""
        near = self._zones.by_locality(pod_request, steps)
        return near.text if isinstance(near, Refusal) else ""

    def _in_turn(
        self, pod_requests: Sequence[PodRequest], steps: Steps
    ) -> tuple[NodeOffer, ...] | Refusal:
        offers = []
        for pod_request in pod_requests:
            found = self._offer(pod_request, steps)
            if isinstance(found, Refusal):
                return found
            self.commit(found)
            offers.append(found)
        return tuple(offers)

    def _outside(self, pod_requests: Sequence[PodRequest], steps: Steps) -> DeviceAmounts:
        """The GPUs outside the best set for all pods; empty without such a set."""
        inventory, request = self.properties.inventory, pod_requests[0].devices
        cards = request.requests.get(DeviceType.GPU) if request is not None else None
        if len(pod_requests) < 2 or inventory is None or cards is None or cards.shared:
            return {}
        found = self._offer(as_one(pod_requests, cards), steps)
        if not isinstance(found, NodeOffer) or found.device_allocation is None:
            return {}
        chosen = {each.minor for each in found.device_allocation.devices[_GPU]}
        totals = inventory.fleets[_GPU].totals
        return {(_GPU, minor): total for minor, total in totals.items() if minor not in chosen}


_GPU: Final = DeviceType.GPU.value
_STEPS_OF_MASK: Final = 100
"""To look for devices on one set of NUMA nodes."""
_OTHERS: Final = "cards outside"


def _node_offer(
    pod_request: PodRequest,
    of_cpus: Priced[CpuOffer | None] | None,
    of_zones: Priced[None] | None,
    of_devices: Priced[Allocation] | None,
) -> NodeOffer:
    """The offers of the parts as one: their mean score, and their orders in turn."""
    priced = [each for each in (of_cpus, of_zones, of_devices) if each is not None]
    scores = [each.score for each in priced if each.score is not None]
    order = tuple(number for each in priced for number in each.order)
    avoided = any(each.avoided for each in priced)
    return NodeOffer(
        pod_request,
        of_cpus.choice if of_cpus else None,
        of_devices.choice if of_devices else None,
        sum(scores) // len(scores) if scores and not avoided else 0,
        order,
        avoided,
    )
