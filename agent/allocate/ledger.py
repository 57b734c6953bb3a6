"""The ledger of a node's CPUs and NUMA nodes: what each pod holds, and what a further pod would
get.

`offer` prices an allocation and changes nothing; `commit` applies an offer, if that is still
possible; `record` takes the allocation in a pod's annotations as it is: two pods that hold the same
CPU both count and are reported. The state depends on the allocations alone, so a restart rebuilds
it from the pods' annotations in any order. One thread at a time."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from types import MappingProxyType

import msgspec

from agent.allocate import burst, offering
from agent.allocate.alignment import Companion
from agent.allocate.node_allocation import NodeAllocation
from agent.allocate.offer import Declined, Offer
from agent.allocate.pod_allocation import PodAllocation
from agent.allocate.resource_request import ResourceRequest
from agent.allocate.topology_options import TopologyOptions
from agent.model.cpuset import CpuSet


class StaleOfferError(Exception):
    """An offer that can't be committed any more; the message names what is gone."""


class Overlap(msgspec.Struct, frozen=True):
    """CPUs that more pods hold than may share one; `uids` ascending."""

    cpus: CpuSet
    uids: tuple[str, ...]


class Ledger:
    """Claims by pod uid on a node of these facts."""

    def __init__(self, facts: TopologyOptions, claims: Iterable[PodAllocation] = ()) -> None:
        self._facts = facts
        self._claims: dict[str, PodAllocation] = {}
        self._account = NodeAllocation(facts)
        for claim in claims:
            self.record(claim)

    @property
    def facts(self) -> TopologyOptions:
        return self._facts

    @property
    def claims(self) -> Mapping[str, PodAllocation]:
        """A live view, by uid."""
        return MappingProxyType(self._claims)

    @property
    def account(self) -> NodeAllocation:
        """The sums, to read."""
        return self._account

    def without(self, uids: Iterable[str]) -> Ledger:
        """A copy in which these pods hold nothing."""
        other = copy.copy(self)
        other._claims = dict(self._claims)
        other._account = self._account.copy()
        for uid in uids:
            other.release(uid)
        return other

    def offer(self, ask: ResourceRequest, companion: Companion | None = None) -> Offer | Declined:
        """A place for the pod as things stand; a pod that has one is offered another as if it had
        none. `companion`: see `alignment`."""
        held = self._claims.get(ask.uid)
        if held is None:
            return offering.offer(self._facts, self._account, ask, companion)
        self._account.remove(held)
        try:
            return offering.offer(self._facts, self._account, ask, companion)
        finally:
            self._account.add(held)

    def commit(self, offer: Offer) -> PodAllocation:
        """Raises StaleOfferError, and changes nothing, where something was given away since."""
        held = self.release(offer.claim.uid)
        if gone := offering.gone(self._facts, self._account, offer.claim):
            if held:
                self.record(held)
            raise StaleOfferError(f"pod {offer.claim.title}: {gone}")
        self.record(offer.claim)
        return offer.claim

    def outgrown(self, ask: ResourceRequest, claim: PodAllocation) -> str:
        """What the shared pools have left where they do not hold the limit of a pod that bursts any
        more; "" where they do."""
        limit = ask.burst_milli
        if not limit or claim.cpus or not claim.amounts:
            return ""
        pools = burst.pools(self._facts, self._account)
        pool = sum(pools.get(node, 0) for node in claim.amounts)
        if pool >= limit:
            return ""
        nodes = ", ".join(map(str, sorted(claim.amounts)))
        return f"the pools of NUMA nodes {nodes} have {pool} of {limit} milli-CPU left"

    def record(self, claim: PodAllocation) -> None:
        """Takes a claim as it is, in place of an earlier one of the same pod."""
        self.release(claim.uid)
        self._claims[claim.uid] = claim
        self._account.add(claim)

    def release(self, uid: str) -> PodAllocation | None:
        """Gives back what a pod held; None for one that is not known."""
        claim = self._claims.pop(uid, None)
        if claim:
            self._account.remove(claim)
        return claim

    def overlaps(self) -> tuple[Overlap, ...]:
        """CPUs that are held too often, in one entry for each set of holders."""
        excess = self._account.overcommitted()
        if not excess:
            return ()
        holders: dict[int, tuple[str, ...]] = {}
        for uid in sorted(self._claims):
            for cpu in CpuSet.from_int(self._claims[uid].cpus.mask & excess):
                holders[cpu] = (*holders.get(cpu, ()), uid)
        shared: dict[tuple[str, ...], list[int]] = {}
        for cpu, uids in sorted(holders.items()):
            shared.setdefault(uids, []).append(cpu)
        return tuple(Overlap(CpuSet(cpus), uids) for uids, cpus in shared.items())
