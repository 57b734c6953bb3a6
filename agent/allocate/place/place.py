"""The one account of a node for pods' whole wishes: CPUs, NUMA nodes and devices together.

`offer` changes nothing; `commit` makes an offer come true, if it still can; `record` takes what a
pod's annotations say. The state is that of the holdings alone, so that a restart rebuilds it from
the pods' annotations in any order. One thread at a time.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping
from types import MappingProxyType

import msgspec

from agent.allocate import scoring
from agent.allocate.devices.standing import gone
from agent.allocate.devices.state import NodeDevices
from agent.allocate.ledger import Ledger, Overlap, StaleOfferError
from agent.allocate.offer import Declined, Offer
from agent.allocate.place.answer import Granted, Missing, Refused, refused
from agent.allocate.place.companion import DeviceCompanion, declined, offered
from agent.allocate.place.facts import PlaceFacts
from agent.allocate.place.holders import DeviceOverlap, device_overlaps, held_devices
from agent.allocate.place.holding import Holding
from agent.allocate.place.wish import Needs, Wish
from agent.allocate.place.zones import Zones
from agent.allocate.scoring import Scene, Whole
from agent.allocate.zoned.node import ZonedNode, ZoneFacts
from agent.model.devices import DeviceType


class Place:
    """Holdings by pod uid on a node of these facts."""

    def __init__(self, facts: PlaceFacts, holdings: Iterable[Holding] = ()) -> None:
        self._facts = facts
        self._holdings: dict[str, Holding] = {}
        self._requested: Counter[str] = Counter()
        self._ledger = Ledger(facts.cpus) if facts.cpus else None
        self._devices: NodeDevices | None = None
        self._zones = Zones(facts.zones)
        for holding in holdings:
            self.record(holding)

    @property
    def facts(self) -> PlaceFacts:
        return self._facts

    @property
    def holdings(self) -> Mapping[str, Holding]:
        """A live view, by uid."""
        return MappingProxyType(self._holdings)

    def with_facts(self, facts: PlaceFacts, untold: Container[str] = ()) -> Place:
        """The same holdings on a node that has changed. `untold`: uids of pods that the node's word
        about its NUMA nodes does not count yet."""
        if facts.cpus == self._facts.cpus:
            other = self.without(())
            other._facts, other._devices = facts, None
        else:
            other = Place(facts, self._holdings.values())
        other._zones = self._zones.with_word(facts.zones, untold)
        return other

    def hear(
        self, word: ZoneFacts | None, left: ZonedNode | None, untold: Container[str] = ()
    ) -> None:
        """Of a node of which nothing else changed: its word about its NUMA nodes, or what is known
        of the pods that it counts. `left`: what they have beside all pods but those of `untold`;
        None: nobody knows."""
        self._facts = msgspec.structs.replace(self._facts, zones=word)
        self._zones.hear(word, left, untold)

    def without(self, uids: Collection[str]) -> Place:
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

    def offer(self, wish: Wish) -> Granted | Refused:
        """A place as things stand; a pod that holds something is offered another as if it did
        not."""
        facts = self._facts
        if not wish.needs and not facts.binds_all:
            return self._zones.offer(wish, facts.rules)
        if wish.uid in self._holdings:
            return self.without((wish.uid,)).offer(wish)
        if facts.cpus is None and Needs.CPUS in wish.needs:
            return refused(Missing(f"node {facts.name} has no usable NodeResourceTopology"))
        if not wish.needs and not facts.aligns_all:
            by_zones = self._zones.offer(wish, facts.rules)
            if isinstance(by_zones, Refused):
                return by_zones
        companion = None
        if wish.devices is not None:
            if missing := self._unfit(wish):
                return refused(missing)
            devices = self._node_devices(beside=wish.uid)
            liking = facts.rules.liking(wish.devices)
            companion = DeviceCompanion(devices, wish.devices, liking)
        offer: Offer | None = None
        if self._ledger is not None:
            got = self._ledger.offer(wish.ask, companion)
            if isinstance(got, Declined):
                return declined(got, companion)
            offer = got
        return offered(wish, offer, companion, self._score(wish, offer))

    def commit(self, granted: Granted) -> Holding:
        """Raises StaleOfferError, and changes nothing, where something was given away since."""
        wish = granted.wish
        if wish.zoned is not None and isinstance(found := self.offer(wish), Refused):
            raise StaleOfferError(f"pod {wish.title}: {found.text()}")
        if granted.allocation is not None and wish.devices is not None:
            if self._facts.inventory is None:
                raise StaleOfferError(f"pod {wish.title}: the node has no Device object any more")
            devices = self._node_devices(beside=wish.uid)
            if missing := gone(devices, wish.devices, granted.allocation):
                raise StaleOfferError(f"pod {wish.title}: {missing}")
        if granted.offer is not None:
            claim = granted.offer.claim
            if self._ledger is None and (claim.cpus or claim.amounts):
                reason = "the node has no usable NodeResourceTopology any more"
                raise StaleOfferError(f"pod {wish.title}: {reason}")
            if self._ledger is not None:
                if missing := self._ledger.outgrown(wish.ask, claim):
                    raise StaleOfferError(f"pod {wish.title}: {missing}")
                self._ledger.commit(granted.offer)
        elif self._ledger is not None:
            self._ledger.record(wish.nothing)
        holding = granted.holding()
        self._put(holding)
        self._zones.place(granted, self._facts.cpus)
        return holding

    def record(self, holding: Holding) -> None:
        """Takes a holding as it is, in place of an earlier one of the same pod."""
        if self._ledger is not None:
            self._ledger.record(holding.claim)
        self._put(holding)

    def release(self, uid: str) -> Holding | None:
        """Gives back what a pod held; None for one that is not known."""
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

    def _unfit(self, wish: Wish) -> Missing | None:
        facts = self._facts
        if facts.inventory is None:
            return Missing(f"node {facts.name} has no Device object")
        gpu = wish.devices.asks.get(DeviceType.GPU) if wish.devices else None
        if gpu is not None and gpu.shared:
            if wish.isolation and wish.isolation != facts.isolation:
                there = facts.isolation or "none"
                return Missing(f"GPU isolation provider: asked {wish.isolation}, available {there}")
            if not facts.shares_gpus:
                return Missing("parts of GPUs of this model are not given")
        return None

    def _node_devices(self, beside: str) -> NodeDevices:
        """As they stand, without what the pod of this uid holds."""
        if self._kinds(beside):
            return self.without((beside,))._node_devices("")
        if self._devices is None:
            inventory = self._facts.inventory
            if inventory is None:
                raise ValueError(f"node {self._facts.name} has no Device object")
            self._devices = held_devices(inventory, self._holdings, self._facts.imported)
        return self._devices

    def _put(self, holding: Holding) -> None:
        if holding.kinds or self._kinds(holding.uid):
            self._devices = None
        self._forget(self._holdings.get(holding.uid))
        self._requested.update(holding.requests)
        self._holdings[holding.uid] = holding

    def _forget(self, holding: Holding | None) -> None:
        if holding is not None:
            self._requested.subtract(holding.requests)

    def _score(self, wish: Wish, offer: Offer | None) -> int | None:
        """Of CPU, memory and NUMA nodes; None for a pod that asks for neither CPU nor memory."""
        if offer is None or not ("cpu" in wish.requests or "memory" in wish.requests):
            return None
        args, cpus = self._facts.rules.scoring, self._facts.cpus
        if args is None or cpus is None or self._ledger is None:
            return offer.price.score
        whole = Whole(self._facts.allocatable, self._requested)
        scene = Scene(cpus, self._ledger.account, whole)
        return scoring.score(args, scene, wish.ask, offer.claim)

    def _kinds(self, uid: str) -> frozenset[str]:
        held = self._holdings.get(uid)
        return frozenset() if held is None else held.kinds
