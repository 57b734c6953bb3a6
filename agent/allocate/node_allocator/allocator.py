"""The account of a node for whole pod requests: CPUs, NUMA nodes and devices together. `offer`
changes nothing; `commit` applies an offer, if it is still possible; `record` takes the content of a
pod's annotations. The state is the sum of the holdings, so a restart rebuilds it from the pods'
annotations in any order. For one thread at a time."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping
from types import MappingProxyType

import msgspec

from agent.allocate import node_score
from agent.allocate.devices.allocation import gone
from agent.allocate.devices.inventory import NodeDevices
from agent.allocate.ledger import Ledger, Overlap, StaleOfferError
from agent.allocate.node_allocator.answer import Granted, Missing, Refused, refused
from agent.allocate.node_allocator.companion import DeviceCompanion, declined, offered
from agent.allocate.node_allocator.holders import DeviceOverlap, device_overlaps, held_devices
from agent.allocate.node_allocator.holding import AssignedPod
from agent.allocate.node_allocator.pod_request import Needs, PodRequest
from agent.allocate.node_allocator.properties import NodeProperties
from agent.allocate.node_allocator.zones import Zones
from agent.allocate.node_score import ScoreInput, WholeNode
from agent.allocate.nrt.node import ZonedNode, ZoneReport
from agent.allocate.offer import Declined, Offer
from agent.model.devices import DeviceType


class NodeAllocator:
    """Holdings by pod uid on a node of these facts."""

    def __init__(self, facts: NodeProperties, holdings: Iterable[AssignedPod] = ()) -> None:
        self._facts = facts
        self._holdings: dict[str, AssignedPod] = {}
        self._requested: Counter[str] = Counter()
        self._ledger = Ledger(facts.cpus) if facts.cpus else None
        self._devices: NodeDevices | None = None
        self._zones = Zones(facts.zones)
        for holding in holdings:
            self.record(holding)

    @property
    def facts(self) -> NodeProperties:
        return self._facts

    @property
    def holdings(self) -> Mapping[str, AssignedPod]:
        """A live view, by uid."""
        return MappingProxyType(self._holdings)

    def with_facts(self, facts: NodeProperties, uncounted: Container[str] = ()) -> NodeAllocator:
        """The same pods on a node that has changed. `uncounted`: uids of pods that the node's
        report of its NUMA nodes does not count yet."""
        if facts.cpus == self._facts.cpus:
            other = self.without(())
            other._facts, other._devices = facts, None
        else:
            other = NodeAllocator(facts, self._holdings.values())
        other._zones = self._zones.with_report(facts.zones, uncounted)
        return other

    def update_report(
        self, report: ZoneReport | None, left: ZonedNode | None, uncounted: Container[str] = ()
    ) -> None:
        """The node's report of its NUMA nodes has changed, or the pods that it counts. `left`: the
        amounts that all pods but those of `uncounted` leave free; None: unknown."""
        self._facts = msgspec.structs.replace(self._facts, zones=report)
        self._zones.update_report(report, left, uncounted)

    def without(self, uids: Collection[str]) -> NodeAllocator:
        """A copy in which these pods hold nothing."""
        other = copy.copy(self)
        other._holdings = {uid: held for uid, held in self._holdings.items() if uid not in uids}
        other._requested = self._requested.copy()
        for uid in uids:
            other._forget(self._holdings.get(uid))
        if self._ledger is not None:
            other._ledger = self._ledger.without(uids)
        if any(self._kinds(uid) for uid in uids):
            other._devices = None
        other._zones = self._zones.without(uids)
        return other

    def offer(self, pod_request: PodRequest) -> Granted | Refused:
        """An offer in the current state; for a pod that holds something, as if it did not."""
        facts = self._facts
        if not pod_request.needs and not facts.binds_all:
            return self._zones.offer(pod_request, facts.rules)
        if pod_request.uid in self._holdings:
            return self.without((pod_request.uid,)).offer(pod_request)
        if facts.cpus is None and Needs.CPUS in pod_request.needs:
            return refused(Missing(f"node {facts.name} has no usable NodeResourceTopology"))
        if pod_request.unserved and facts.cpus is not None and facts.cpus.kubelet_static:
            reason = pod_request.unserved
            text = f"the kubelet's static CPU policy gives it no CPUs of its own: {reason}"
            return refused(Missing(text))
        if not pod_request.needs and not facts.aligns_all:
            by_zones = self._zones.offer(pod_request, facts.rules)
            if isinstance(by_zones, Refused):
                return by_zones
        companion = None
        if pod_request.devices is not None:
            if missing := self._unfit(pod_request):
                return refused(missing)
            devices = self._node_devices(beside=pod_request.uid)
            strategy = facts.rules.strategy_of(pod_request.devices)
            companion = DeviceCompanion(devices, pod_request.devices, strategy)
        offer: Offer | None = None
        if self._ledger is not None:
            got = self._ledger.offer(pod_request.ask, companion)
            if isinstance(got, Declined):
                return declined(got, companion)
            offer = got
        return offered(pod_request, offer, companion, self._score(pod_request, offer))

    def commit(self, granted: Granted) -> AssignedPod:
        """Raises StaleOfferError, and changes nothing, where something was given away since."""
        pod_request = granted.pod_request
        if pod_request.zoned is not None and isinstance(found := self.offer(pod_request), Refused):
            raise StaleOfferError(f"pod {pod_request.title}: {found.text()}")
        if granted.allocation is not None and pod_request.devices is not None:
            if self._facts.inventory is None:
                raise StaleOfferError(
                    f"pod {pod_request.title}: the node has no Device object any more"
                )
            devices = self._node_devices(beside=pod_request.uid)
            if missing := gone(devices, pod_request.devices, granted.allocation):
                raise StaleOfferError(f"pod {pod_request.title}: {missing}")
        if granted.offer is not None:
            claim = granted.offer.claim
            if self._ledger is None and (claim.cpus or claim.amounts):
                reason = "the node has no usable NodeResourceTopology any more"
                raise StaleOfferError(f"pod {pod_request.title}: {reason}")
            if self._ledger is not None:
                if missing := self._ledger.outgrown(pod_request.ask, claim):
                    raise StaleOfferError(f"pod {pod_request.title}: {missing}")
                self._ledger.commit(granted.offer)
        elif self._ledger is not None:
            self._ledger.record(pod_request.nothing)
        holding = granted.holding()
        self._put(holding)
        self._zones.place(granted, self._facts.cpus)
        return holding

    def record(self, holding: AssignedPod) -> None:
        """Takes a holding as it is, in place of an earlier one of the same pod."""
        if self._ledger is not None:
            self._ledger.record(holding.claim)
        self._put(holding)

    def release(self, uid: str) -> AssignedPod | None:
        """Releases what a pod holds; None for an unknown pod."""
        if self._kinds(uid):
            self._devices = None
        holding = self._holdings.pop(uid, None)
        self._forget(holding)
        self._zones.leave(uid)
        if holding is not None and self._ledger is not None:
            self._ledger.release(uid)
        return holding

    def overlaps(self) -> tuple[Overlap | DeviceOverlap, ...]:
        """What is held by more pods than may share it."""
        of_cpus = self._ledger.overlaps() if self._ledger else ()
        return (*of_cpus, *device_overlaps(self._facts.inventory, self._holdings.values()))

    def _unfit(self, pod_request: PodRequest) -> Missing | None:
        facts = self._facts
        if facts.inventory is None:
            return Missing(f"node {facts.name} has no Device object")
        gpu = pod_request.devices.asks.get(DeviceType.GPU) if pod_request.devices else None
        if gpu is not None and gpu.shared:
            if pod_request.isolation and pod_request.isolation != facts.isolation:
                there = facts.isolation or "none"
                return Missing(
                    f"GPU isolation provider: asked {pod_request.isolation}, available {there}"
                )
            if not facts.shares_gpus:
                return Missing("parts of GPUs of this model are not given")
        return None

    def _node_devices(self, beside: str) -> NodeDevices:
        """The current devices, without those of the pod of this uid."""
        if self._kinds(beside):
            return self.without((beside,))._node_devices("")
        if self._devices is None:
            inventory = self._facts.inventory
            if inventory is None:
                raise ValueError(f"node {self._facts.name} has no Device object")
            self._devices = held_devices(inventory, self._holdings, self._facts.imported)
        return self._devices

    def _put(self, holding: AssignedPod) -> None:
        if holding.kinds or self._kinds(holding.uid):
            self._devices = None
        self._forget(self._holdings.get(holding.uid))
        self._requested.update(holding.requests)
        self._holdings[holding.uid] = holding

    def _forget(self, holding: AssignedPod | None) -> None:
        if holding is not None:
            self._requested.subtract(holding.requests)

    def _score(self, pod_request: PodRequest, offer: Offer | None) -> int | None:
        """Of CPU, memory and NUMA nodes; None for a pod that asks for neither CPU nor memory."""
        if offer is None or not ("cpu" in pod_request.requests or "memory" in pod_request.requests):
            return None
        args, cpus = self._facts.rules.scoring, self._facts.cpus
        if args is None or cpus is None or self._ledger is None:
            return offer.price.score
        whole = WholeNode(self._facts.allocatable, self._requested)
        state = ScoreInput(cpus, self._ledger.account, whole)
        return node_score.score(args, state, pod_request.ask, offer.claim)

    def _kinds(self, uid: str) -> frozenset[str]:
        held = self._holdings.get(uid)
        return frozenset() if held is None else held.kinds
