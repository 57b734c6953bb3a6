"""What is asked of each node of a cluster."""

from __future__ import annotations

from collections.abc import Hashable

import msgspec

from agent.scheduler.asked import Asked
from agent.scheduler.cluster import Cluster
from agent.scheduler.demands import Demand, OfGroup, OfPod
from agent.scheduler.shapes import UNKNOWN, Answer, Misfit


def demand(asked: Asked, cluster: Cluster) -> Demand:
    """Of a pod that has no node: of a group, room for all members that have none."""
    if asked.group is None:
        return OfPod(asked.wish)
    missing = asked.group.size - len(cluster.companions(asked.group))
    return OfGroup(asked.wish, max(1, missing))


class RoomFor(msgspec.Struct, frozen=True):
    """Whether the node may have it, and has room."""

    cluster: Cluster
    demand: Demand

    @property
    def shape(self) -> Hashable:
        return self.demand.shape

    @property
    def by_word(self) -> bool:
        return self.demand.wish.zoned is not None

    def answer(self, node: str) -> Answer:
        """Under the lock."""
        hindrance = self.cluster.eligible(node, self.demand.wish)
        state = self.cluster.node(node)
        if state is None:
            return UNKNOWN
        if hindrance is not None:
            return Misfit(hindrance, unresolvable=True)
        return self.demand.answer(state.place)
