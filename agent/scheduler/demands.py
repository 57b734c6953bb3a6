"""What a node has to have room for: one pod, or all members of a group that have no place yet."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Final, TypeAlias

import msgspec

from agent.allocate.place.answer import Refused
from agent.allocate.place.place import Place
from agent.allocate.place.together import together
from agent.allocate.place.wish import Wish
from agent.scheduler.groupname import Group
from agent.scheduler.groups import parts
from agent.scheduler.shapes import Answer, Fit, Misfit

_GROUP: Final = "no room for the whole group"
_ANY: Final = Group("", "", 0)


class OfPod(msgspec.Struct, frozen=True):
    """Such a pod. `pods`: how many they are, `requests`: of all of them."""

    wish: Wish

    @property
    def pods(self) -> int:
        return 1

    @property
    def requests(self) -> Mapping[str, int]:
        return self.wish.requests

    @property
    def shape(self) -> Hashable:
        """Equal where every node answers the same."""
        return self.wish.shape

    def answer(self, place: Place) -> Answer:
        # What this very pod may hold of the node is no room for others of its shape.
        ask = msgspec.structs.replace(self.wish.ask, uid="")
        found = place.offer(msgspec.structs.replace(self.wish, ask=ask))
        if isinstance(found, Refused):
            return Misfit(found.text(), found.unresolvable, found.words())
        return Fit(found.score, found.order)


class OfGroup(msgspec.Struct, frozen=True):
    """So many such pods of one group. What is held for the group is no room for others alike."""

    wish: Wish
    pods: int

    @property
    def requests(self) -> Mapping[str, int]:
        return {name: amount * self.pods for name, amount in self.wish.requests.items()}

    @property
    def shape(self) -> Hashable:
        return self.wish.shape, self.pods

    def answer(self, place: Place) -> Answer:
        found = together(place, parts(_ANY, self.wish, self.pods))
        if isinstance(found, Refused):
            return Misfit(
                f"{_GROUP}: {found.text()}", found.unresolvable, f"{_GROUP}: {found.words()}"
            )
        return Fit(
            sum(each.score for each in found) // len(found), max(each.order for each in found)
        )


Demand: TypeAlias = OfPod | OfGroup
