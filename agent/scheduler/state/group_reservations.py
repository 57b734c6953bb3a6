"""Reserves one node for all pods of a group: annotation `topolet.io/group: NAME/SIZE`.

For the first member the filter considers only nodes with room for the whole group, and reserves the
best of them for all members, one part for each. For later members it returns only that node, and
each takes a part when it is bound. A part that no member takes in time is released; the remaining
members must still go to the node of the others.

A single pod can claim any size. Parts of members that do not exist are therefore kept only as long
as a controller needs to create them. If they do not come, no group of that namespace gets such
parts for as long as a reservation lasts.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from typing import Final

import msgspec

from agent.allocate.node_allocator.allocator import StaleOfferError
from agent.allocate.node_allocator.answer import NodeOffer
from agent.allocate.refusal import Reason, Refusal
from agent.model.pod.apiobjects import PodGroup
from agent.model.pod_request import PodRequest
from agent.scheduler.state.cluster import ReserveError, SchedulerCache
from agent.scheduler.state.pod_info import parts

RESERVED_SECONDS: Final = 60.0
MISSING_SECONDS: Final = 5.0
"""A controller creates the 64 pods of the largest group in less."""

# Interval of the check whether all members of an expired group are bound.
_RECHECK_SECONDS: Final = 1.0


class _GroupReservation(msgspec.Struct):
    """`equivalence_key` is that of the pod for which the parts were reserved. `parts` has the parts
    that are not taken yet, by a placeholder for the uid of a pod. `members` has, by uid, the part
    that each member took; None if it was bound before this process started. At `missing_until` the
    parts of members that do not exist are released."""

    group: PodGroup
    node: str
    equivalence_key: bytes
    until: float
    parts: dict[str, NodeOffer] = {}
    members: dict[str, NodeOffer | None] = {}
    missing_until: float = math.inf


class GroupReservations:
    """The reservations of all groups. The caller of a method holds the cluster's lock, except of
    `prepare`, `reserve` and `rejection`: they take it themselves, and compute the offers to a whole
    group without it."""

    def __init__(
        self,
        cluster: SchedulerCache,
        *,
        seconds: float = RESERVED_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._seconds = seconds
        self._clock = clock
        self._reservations: dict[str, _GroupReservation] = {}
        self._incomplete_until: dict[str, float] = {}
        self._due = math.inf

    def expire(self) -> None:
        """Releases the parts that are too old. Drops the groups whose members are all bound, since
        the cluster knows them."""
        now = self._clock()
        if now < self._due:
            return
        for title, reserved in list(self._reservations.items()):
            if now >= reserved.missing_until:
                self._release_missing(reserved)
            if now < reserved.until:
                continue
            for part in reserved.parts:
                self._cluster.release(part)
            reserved.parts.clear()
            if self._members(reserved).keys() <= self._cluster.bound_members(reserved.group).keys():
                del self._reservations[title]
            else:
                reserved.until = now + _RECHECK_SECONDS
        self._due = min(
            (min(each.until, each.missing_until) for each in self._reservations.values()),
            default=math.inf,
        )

    def _release_missing(self, reserved: _GroupReservation) -> None:
        reserved.missing_until = math.inf
        waiting = self._cluster.waiting_members(reserved.group)
        missing = list(reserved.parts)[len(waiting) :]
        for part in missing:
            self._cluster.release(part)
            del reserved.parts[part]
        if missing:
            now = self._clock()
            self._incomplete_until = {
                namespace: until
                for namespace, until in self._incomplete_until.items()
                if now < until
            }
            self._incomplete_until[reserved.group.namespace] = now + self._seconds

    def _size(self, group: PodGroup, members: int) -> int:
        """The number of parts to reserve for a group with so many members."""
        left, now = group.size - members, self._clock()
        if now < self._incomplete_until.get(group.namespace, now):
            return min(left, max(1, len(self._cluster.waiting_members(group))))
        return left

    def node(self, group: PodGroup) -> str | None:
        """Returns the node of the group; None if it does not have one yet."""
        reserved = self._find(group)
        return reserved.node if reserved else None

    def reserved_node(self, group: PodGroup) -> str | None:
        """Returns the node where parts are reserved for members that are not bound yet, or None."""
        reserved = self._reservations.get(group.title)
        return reserved.node if reserved is not None and reserved.parts else None

    def reserve(self, group: PodGroup, pod_request: PodRequest, node: str) -> Refusal | None:
        """Reserves a part with that request for each member that does not have one, and for those
        that do not exist unless members of the namespace's groups did not come. Returns why that is
        not possible: the node may have changed since it was checked."""
        with self._cluster.lock:
            reserved = self._find(group)
            members = self._members(reserved) if reserved else {}
            state = self._cluster.node(node)
            if state is None:
                return Refusal(Reason.NODE_UNKNOWN, detail=f"node {node} does not exist")
            number = self._size(group, len(members))
            allocator = state.allocator.without(())
        offers = allocator.offer_all(parts(group, pod_request, number))
        if isinstance(offers, Refusal):
            return offers
        with self._cluster.lock:
            if self._find(group) is not reserved:
                return None  # another request has reserved parts meanwhile
            unused: dict[str, NodeOffer] = {}
            try:
                for node_offer in offers:
                    self._cluster.reserve(node, node_offer)
                    unused[node_offer.uid] = node_offer
            except (StaleOfferError, ReserveError) as error:
                for part in unused:
                    self._cluster.release(part)
                return Refusal(Reason.GROUP, detail=str(error))
            now = self._clock()
            until, missing_until = now + self._seconds, now + min(MISSING_SECONDS, self._seconds)
            self._reservations[group.title] = _GroupReservation(
                group, node, pod_request.equivalence_key, until, unused, members, missing_until
            )
            self._due = min(self._due, missing_until)
        return None

    def rejection(self, group: PodGroup, pod_request: PodRequest) -> Refusal | None:
        """Returns why the pod can't join a group that has a node; None if it can, or if the group
        has no node. Reserves parts again if those of the missing members were released."""
        with self._cluster.lock:
            reserved = self._find(group)
            if reserved is None:
                return None
            if reserved.group.size != group.size:
                text = f"{group.title} has size {reserved.group.size}, not {group.size}"
                return Refusal(Reason.GROUP, detail=text, lasting=True)
            members = self._members(reserved)
            if pod_request.uid in members:
                return None
            if reserved.parts:
                part = self._part(group, reserved, pod_request)
                if isinstance(part, str):
                    return Refusal(Reason.GROUP, detail=part, lasting=True)
                return None
            if len(members) >= group.size:
                text = f"{group.title} has all {group.size} members"
                return Refusal(Reason.GROUP, detail=text, lasting=True)
        full = self.reserve(group, pod_request, reserved.node)
        if full is None:
            return None
        text = f"{group.title} is on node {reserved.node}"
        return Refusal(Reason.GROUP, detail=text, others=full.reasons)

    def prepare(self, group: PodGroup, pod_request: PodRequest, node: str) -> str | None:
        """Reserves the parts that `take` needs and that do not exist yet, on the group's node, or
        on `node` for a group without one. Returns the reason if that fails."""
        with self._cluster.lock:
            self.expire()
            reserved = self._find(group)
        if reserved is None:
            full = self.reserve(group, pod_request, node)
            return f"{group.title}: {full.text}" if full else None
        rejection = self.rejection(group, pod_request)
        return rejection.text if rejection else None

    def take(self, group: PodGroup, pod_request: PodRequest, node: str) -> NodeOffer | str:
        """Reserves a part for the pod itself; returns the reason if that fails. `prepare`, called
        before, keeps the time with the lock short."""
        reserved = self._find(group)
        if reserved is not None and reserved.node != node:
            return f"{group.title} is assigned to node {reserved.node}"
        if reserved is not None and pod_request.uid in self._members(reserved):
            return f"pod {pod_request.title} has its part of {group.title} already"
        if reason := self.prepare(group, pod_request, node):
            return reason
        reserved = self._reservations[group.title]
        found = self._part(group, reserved, pod_request)
        if isinstance(found, str):
            return found
        part, node_offer = found
        reserved.parts.pop(part.uid)
        self._cluster.release(part.uid)
        try:
            self._cluster.reserve(node, node_offer)
        except (StaleOfferError, ReserveError) as error:
            self._return_part(reserved, part)
            return f"{group.title}: {error}"
        reserved.members[pod_request.uid] = part
        return node_offer

    def release(self, group: PodGroup, uid: str) -> None:
        """Returns to the group the part of a pod whose bind failed and whose reservation is
        released."""
        reserved = self._reservations.get(group.title)
        if reserved is None or uid not in reserved.members:
            return
        part = reserved.members.pop(uid)
        if part is not None and self._clock() < reserved.until:
            self._return_part(reserved, part)

    def _return_part(self, reserved: _GroupReservation, part: NodeOffer) -> None:
        # If another pod took some of it meanwhile, the next member is rejected.
        with contextlib.suppress(StaleOfferError, ReserveError):
            self._cluster.reserve(reserved.node, part)
            reserved.parts[part.uid] = part

    def _find(self, group: PodGroup) -> _GroupReservation | None:
        """Returns the reservation of the group. Restores that of a group whose members were bound
        before this process started."""
        reserved = self._reservations.get(group.title)
        if reserved is None and (node := self._cluster.group_node(group)) is not None:
            bound = self._cluster.bound_members(group)
            group = next(iter(bound.values())).group or group
            reserved = _GroupReservation(group, node, b"", self._clock(), {}, dict.fromkeys(bound))
            self._reservations[group.title] = reserved
            self._due = min(self._due, reserved.until)
        return reserved

    def _members(self, reserved: _GroupReservation) -> dict[str, NodeOffer | None]:
        """The members that still have an allocation on the node."""
        state = self._cluster.node(reserved.node)
        allocated = state.allocator.assigned_pods if state is not None else {}
        return {uid: part for uid, part in reserved.members.items() if uid in allocated}

    def _part(
        self, group: PodGroup, reserved: _GroupReservation, pod_request: PodRequest
    ) -> tuple[NodeOffer, NodeOffer] | str:
        """Returns a part for a pod with that request, and the offer that replaces it."""
        state = self._cluster.node(reserved.node)
        if state is None:
            return f"{group.title} is assigned to node {reserved.node}, which does not exist"
        first = next(iter(reserved.parts.values()))
        if pod_request.equivalence_key == reserved.equivalence_key:
            return first, first.to(pod_request)
        # All parts are equal.
        reason = _excess(pod_request, first.pod_request)
        if not reason:
            found = state.allocator.without((first.uid,)).offer(pod_request)
            if isinstance(found, NodeOffer):
                return first, found
            reason = found.text
        return f"the part of {group.title} on node {reserved.node} is too small: {reason}"


def _excess(pod_request: PodRequest, part: PodRequest) -> str:
    """Names the requests of the pod that exceed the part; empty for none."""
    return "; ".join(
        f"{name}: requested {amount}, reserved {part.requests.get(name, 0)}"
        for name, amount in sorted(pod_request.requests.items())
        if amount > part.requests.get(name, 0)
    )
