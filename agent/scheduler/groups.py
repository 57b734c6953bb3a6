"""Pods that belong together on one node: annotation `topolet.io/group: NAME/SIZE`.

The first member that is asked about is offered nodes that hold the whole group, and the best of
them is held for all of it, one part a member. Later members are offered that node alone, and each
takes a part when it is bound. What nobody took in time is free again; members that are still to
come are then held to the node where the others are.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from typing import Final

import msgspec

from agent.allocate.ledger import StaleOfferError
from agent.allocate.place.answer import Granted, Missing, Refused, refused
from agent.allocate.place.together import together
from agent.allocate.place.wish import Wish
from agent.scheduler.cluster import Cluster, ReserveError
from agent.scheduler.groupname import Group
from agent.scheduler.shapes import Misfit

HELD_SECONDS: Final = 60.0

# How often it is looked whether the members of a group, whose time is over, are known by a watch.
_LOOK_SECONDS: Final = 1.0


def parts(group: Group, wish: Wish, size: int) -> list[Wish]:
    """That wish for each of `size` members that are still to come."""
    return [
        msgspec.structs.replace(
            wish,
            ask=msgspec.structs.replace(
                wish.ask, uid=group.part(number), title=f"{group.title}, part {number}"
            ),
        )
        for number in range(size)
    ]


class _Held(msgspec.Struct):
    """`shape`: of the pod that the parts were made for. `parts`: what nobody took yet, by what
    stands for a uid; `members`: by uid, what each took the place of, None where that was before
    this process began."""

    group: Group
    node: str
    shape: bytes
    until: float
    parts: dict[str, Granted] = {}
    members: dict[str, Granted | None] = {}


class Groups:
    """What is held for which group. All methods under the cluster's lock."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        seconds: float = HELD_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._seconds = seconds
        self._clock = clock
        self._held: dict[str, _Held] = {}
        self._due = math.inf

    def expire(self) -> None:
        """Frees what was held for too long. Groups of which a watch has shown all are forgotten:
        what is to be known of them the cluster knows."""
        now = self._clock()
        if now < self._due:
            return
        for title, held in list(self._held.items()):
            if now < held.until:
                continue
            for part in held.parts:
                self._cluster.release(part)
            held.parts.clear()
            if self._alive(held).keys() <= self._cluster.companions(held.group).keys():
                del self._held[title]
            else:
                held.until = now + _LOOK_SECONDS
        self._due = min((each.until for each in self._held.values()), default=math.inf)

    def node(self, group: Group) -> str | None:
        """Where the group is; None where that is still open."""
        held = self._known(group)
        return held.node if held else None

    def held(self, group: Group) -> str | None:
        """Where parts are held for members that are still to come."""
        held = self._held.get(group.title)
        return held.node if held is not None and held.parts else None

    def hold(self, group: Group, wish: Wish, node: str) -> Refused | None:
        """A part of that wish for each member that has none, on a node that may have changed since
        it was asked about."""
        held = self._known(group)
        members = self._alive(held) if held else {}
        state = self._cluster.node(node)
        if state is None:
            return refused(Missing(f"node {node} is gone"))
        found = together(state.place, parts(group, wish, group.size - len(members)))
        if isinstance(found, Refused):
            return found
        held_parts = {each.uid: each for each in found}
        for granted in found:
            self._cluster.reserve(node, granted)
        until = self._clock() + self._seconds
        self._held[group.title] = _Held(group, node, wish.shape, until, held_parts, members)
        self._due = min(self._due, until)
        return None

    def lacks(self, group: Group, wish: Wish) -> Misfit | None:
        """Why the pod can't be a member of a group that has its node; None where it can, or the
        group has none yet."""
        held = self._known(group)
        if held is None:
            return None
        if held.group.size != group.size:
            text = f"{group.title} has the size {held.group.size} already, not {group.size}"
            return Misfit(text, unresolvable=True)
        members = self._alive(held)
        if wish.uid in members:
            return None
        if held.parts:
            found = self._part(group, held, wish)
            return Misfit(found, unresolvable=True) if isinstance(found, str) else None
        if len(members) >= group.size:
            return Misfit(f"{group.title} has its {group.size} members", unresolvable=True)
        full = self.hold(group, wish, held.node)
        if full is None:
            return None
        return Misfit(f"{group.title} is on node {held.node}: {full.text()}", full.unresolvable)

    def take(self, group: Group, wish: Wish, node: str) -> Granted | str:
        """Reserves a part for the pod itself; a text says why that can't be."""
        held = self._known(group)
        if held is None:
            if refused := self.hold(group, wish, node):
                return f"{group.title}: {refused.text()}"
        elif held.node != node:
            return f"{group.title} is held to node {held.node}"
        elif wish.uid in self._alive(held):
            return f"pod {wish.title} has its part of {group.title} already"
        elif lack := self.lacks(group, wish):
            return lack.reason
        held = self._held[group.title]
        found = self._part(group, held, wish)
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
        held.members[wish.uid] = part
        return granted

    def give_back(self, group: Group, uid: str) -> None:
        """The pod was not bound, and its reservation is released."""
        held = self._held.get(group.title)
        if held is None or uid not in held.members:
            return
        part = held.members.pop(uid)
        if part is not None and self._clock() < held.until:
            self._return(held, part)

    def _return(self, held: _Held, part: Granted) -> None:
        # Where others took some of it meanwhile, a member finds no part and says so.
        with contextlib.suppress(StaleOfferError, ReserveError):
            self._cluster.reserve(held.node, part)
            held.parts[part.uid] = part

    def _known(self, group: Group) -> _Held | None:
        """Of a group whose members were bound before this process began, what is left to know."""
        held = self._held.get(group.title)
        if held is None and (node := self._cluster.home(group)) is not None:
            bound = self._cluster.companions(group)
            told = next(iter(bound.values())).group or group
            held = _Held(told, node, b"", self._clock(), {}, dict.fromkeys(bound))
            self._held[group.title] = held
            self._due = min(self._due, held.until)
        return held

    def _alive(self, held: _Held) -> dict[str, Granted | None]:
        """The members that are still there."""
        state = self._cluster.node(held.node)
        there = state.place.holdings if state is not None else {}
        return {uid: part for uid, part in held.members.items() if uid in there}

    def _part(self, group: Group, held: _Held, wish: Wish) -> tuple[Granted, Granted] | str:
        """The part for a pod with that wish, and what it gets in its place."""
        state = self._cluster.node(held.node)
        if state is None:
            return f"{group.title} is held to node {held.node}, which is gone"
        first = next(iter(held.parts.values()))
        if wish.shape == held.shape:
            return first, first.to(wish)
        # The parts are alike: what one of them does not hold, none does.
        reason = _beyond(wish, first.wish)
        if not reason:
            found = state.place.without((first.uid,)).offer(wish)
            if isinstance(found, Granted):
                return first, found
            reason = found.text()
        return f"{group.title} holds too small a part on node {held.node}: {reason}"


def _beyond(wish: Wish, part: Wish) -> str:
    """What the pod asks for beyond what is held for it; empty for nothing."""
    return "; ".join(
        f"{name}: asked {amount}, held {part.requests.get(name, 0)}"
        for name, amount in sorted(wish.requests.items())
        if amount > part.requests.get(name, 0)
    )
