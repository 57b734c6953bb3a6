"""What is asked of each node: room for one pod, or for all members of a group."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final

import msgspec

from agent.allocate.place.answer import Refused
from agent.allocate.place.place import Place
from agent.allocate.place.together import together
from agent.allocate.place.wish import Wish
from agent.scheduler.cluster import Cluster
from agent.scheduler.groupname import Group
from agent.scheduler.groups import parts
from agent.scheduler.shapes import UNKNOWN, Answer, Fit, Misfit

_GROUP: Final = "no room for the whole group"


class OfPod(msgspec.Struct, frozen=True):
    """Room for such a pod."""

    cluster: Cluster
    wish: Wish

    @property
    def shape(self) -> Hashable:
        return self.wish.shape

    @property
    def by_word(self) -> bool:
        return self.wish.zoned is not None

    def answer(self, node: str) -> Answer:
        """Under the lock."""
        return _answer(self.cluster, self.wish, node, self._room)

    def _room(self, place: Place) -> Answer:
        # What this very pod may hold of the node is no room for others of its shape.
        ask = msgspec.structs.replace(self.wish.ask, uid="")
        found = place.offer(msgspec.structs.replace(self.wish, ask=ask))
        if isinstance(found, Refused):
            return Misfit(found.text(), found.unresolvable, found.words())
        return Fit(found.score, found.order)


class OfGroup(msgspec.Struct, frozen=True):
    """Room for a whole group of such pods."""

    cluster: Cluster
    wish: Wish
    group: Group

    @property
    def shape(self) -> Hashable:
        return self.wish.shape, self.group.size

    @property
    def by_word(self) -> bool:
        return self.wish.zoned is not None

    def answer(self, node: str) -> Answer:
        """Under the lock."""
        return _answer(self.cluster, self.wish, node, self._room)

    def _room(self, place: Place) -> Answer:
        found = together(place, parts(self.group, self.wish, self.group.size))
        if isinstance(found, Refused):
            return Misfit(
                f"{_GROUP}: {found.text()}", found.unresolvable, f"{_GROUP}: {found.words()}"
            )
        return Fit(
            sum(each.score for each in found) // len(found), max(each.order for each in found)
        )


def _answer(cluster: Cluster, wish: Wish, node: str, room: Callable[[Place], Answer]) -> Answer:
    hindrance = cluster.eligible(node, wish)
    state = cluster.node(node)
    if state is None:
        return UNKNOWN
    if hindrance is not None:
        return Misfit(hindrance, unresolvable=True)
    return room(state.place)
