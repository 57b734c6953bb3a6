"""Reserves one node for all pods of a group: annotation `topolet.io/group: NAME/SIZE`.

The filter offers the first member only nodes with room for the whole group, and reserves the best
of them for all members, one part for each. It offers later members that node alone, and each takes
a part when it is bound. A part that no member takes in time is released; the remaining members must
still go to the node of the others.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from typing import Final

import msgspec

from agent.allocate.node_allocator.allocator import StaleOfferError
from agent.allocate.node_allocator.answer import Granted, Missing, Refused, refused
from agent.allocate.node_allocator.pod_request import PodRequest
from agent.model.apiobjects import PodGroup
from agent.scheduler.state.cluster import ReserveError, SchedulerCache
from agent.scheduler.state.pod_info import Infeasible, parts

RESERVED_SECONDS: Final = 60.0

# Between two checks whether a watch shows all members of an expired group bound.
_RECHECK_SECONDS: Final = 1.0


class _Held(msgspec.Struct):
    """`shape` is that of the pod that the parts were made for. `parts` are not taken yet, by their
    stand-in for a uid. `members` has, by uid, the part that each member took; None where it was
    bound before this process began."""

    group: PodGroup
    node: str
    shape: bytes
    until: float
    parts: dict[str, Granted] = {}
    members: dict[str, Granted | None] = {}


class GroupReservations:
    """The reservations of all groups. The caller of a method holds the cluster's lock."""

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
        self._held: dict[str, _Held] = {}
        self._due = math.inf

    def expire(self) -> None:
        """Releases the parts that are too old. Drops groups all of whose members a watch shows
        bound, since the cluster knows them."""
        now = self._clock()
        if now < self._due:
            return
        for title, held in list(self._held.items()):
            if now < held.until:
                continue
            for part in held.parts:
                self._cluster.release(part)
            held.parts.clear()
            if self._alive(held).keys() <= self._cluster.bound_members(held.group).keys():
                del self._held[title]
            else:
                held.until = now + _RECHECK_SECONDS
        self._due = min((each.until for each in self._held.values()), default=math.inf)

    def node(self, group: PodGroup) -> str | None:
        """Returns the node of the group; None where the group has none yet."""
        held = self._known(group)
        return held.node if held else None

    def held(self, group: PodGroup) -> str | None:
        """Returns the node where parts are reserved for members that are not bound yet."""
        held = self._held.get(group.title)
        return held.node if held is not None and held.parts else None

    def hold(self, group: PodGroup, pod_request: PodRequest, node: str) -> Refused | None:
        """Reserves a part with that request for each member that has none. The node may have
        changed since it was checked."""
        held = self._known(group)
        members = self._alive(held) if held else {}
        state = self._cluster.node(node)
        if state is None:
            return refused(Missing(f"node {node} is gone"))
        found = state.place.offer_all(parts(group, pod_request, group.size - len(members)))
        if isinstance(found, Refused):
            return found
        held_parts = {each.uid: each for each in found}
        for granted in found:
            self._cluster.reserve(node, granted)
        until = self._clock() + self._seconds
        self._held[group.title] = _Held(group, node, pod_request.shape, until, held_parts, members)
        self._due = min(self._due, until)
        return None

    def rejection(self, group: PodGroup, pod_request: PodRequest) -> Infeasible | None:
        """Returns why the pod can't join a group that has its node; None where it can, or the group
        has no node."""
        held = self._known(group)
        if held is None:
            return None
        if held.group.size != group.size:
            text = f"{group.title} has the size {held.group.size} already, not {group.size}"
            return Infeasible(text, unresolvable=True)
        members = self._alive(held)
        if pod_request.uid in members:
            return None
        if held.parts:
            found = self._part(group, held, pod_request)
            return Infeasible(found, unresolvable=True) if isinstance(found, str) else None
        if len(members) >= group.size:
            return Infeasible(f"{group.title} has its {group.size} members", unresolvable=True)
        full = self.hold(group, pod_request, held.node)
        if full is None:
            return None
        return Infeasible(f"{group.title} is on node {held.node}: {full.text()}", full.unresolvable)

    def take(self, group: PodGroup, pod_request: PodRequest, node: str) -> Granted | str:
        """Reserves a part for the pod itself; returns a text where that fails."""
        held = self._known(group)
        if held is None:
            if refused := self.hold(group, pod_request, node):
                return f"{group.title}: {refused.text()}"
        elif held.node != node:
            return f"{group.title} is held to node {held.node}"
        elif pod_request.uid in self._alive(held):
            return f"pod {pod_request.title} has its part of {group.title} already"
        elif lack := self.rejection(group, pod_request):
            return lack.reason
        held = self._held[group.title]
        found = self._part(group, held, pod_request)
        if isinstance(found, str):
            return found
        part, granted = found
        held.parts.pop(part.uid)
        self._cluster.release(part.uid)
        try:
            self._cluster.reserve(node, granted)
        except (StaleOfferError, ReserveError) as error:
            self._return(held, part)
            return f"{group.title}: {error}"
        held.members[pod_request.uid] = part
        return granted

    def give_back(self, group: PodGroup, uid: str) -> None:
        """Returns the part of a pod that was not bound and whose reservation is released."""
        held = self._held.get(group.title)
        if held is None or uid not in held.members:
            return
        part = held.members.pop(uid)
        if part is not None and self._clock() < held.until:
            self._return(held, part)

    def _return(self, held: _Held, part: Granted) -> None:
        # Where another pod took some of it meanwhile, the next member is rejected.
        with contextlib.suppress(StaleOfferError, ReserveError):
            self._cluster.reserve(held.node, part)
            held.parts[part.uid] = part

    def _known(self, group: PodGroup) -> _Held | None:
        """Restores a group whose members were bound before this process began."""
        held = self._held.get(group.title)
        if held is None and (node := self._cluster.group_node(group)) is not None:
            bound = self._cluster.bound_members(group)
            known = next(iter(bound.values())).group or group
            held = _Held(known, node, b"", self._clock(), {}, dict.fromkeys(bound))
            self._held[group.title] = held
            self._due = min(self._due, held.until)
        return held

    def _alive(self, held: _Held) -> dict[str, Granted | None]:
        """The members that still hold something on the node."""
        state = self._cluster.node(held.node)
        there = state.place.holdings if state is not None else {}
        return {uid: part for uid, part in held.members.items() if uid in there}

    def _part(
        self, group: PodGroup, held: _Held, pod_request: PodRequest
    ) -> tuple[Granted, Granted] | str:
        """Returns a part for a pod with that request, and the offer that replaces it."""
        state = self._cluster.node(held.node)
        if state is None:
            return f"{group.title} is held to node {held.node}, which is gone"
        first = next(iter(held.parts.values()))
        if pod_request.shape == held.shape:
            return first, first.to(pod_request)
        # All parts are equal.
        reason = _beyond(pod_request, first.pod_request)
        if not reason:
            found = state.place.without((first.uid,)).offer(pod_request)
            if isinstance(found, Granted):
                return first, found
            reason = found.text()
        return f"{group.title} holds too small a part on node {held.node}: {reason}"


def _beyond(pod_request: PodRequest, part: PodRequest) -> str:
    """Names the requests of the pod that exceed the part; empty for none."""
    return "; ".join(
        f"{name}: asked {amount}, held {part.requests.get(name, 0)}"
        for name, amount in sorted(pod_request.requests.items())
        if amount > part.requests.get(name, 0)
    )
