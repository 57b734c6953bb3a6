"""The pods on a node as who chooses victims sees them, beside a place to try it out."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from agent.allocate.place.place import Place
from agent.allocate.place.wish import Wish
from agent.scheduler.cluster import Cluster
from agent.scheduler.groupname import Group
from agent.scheduler.readings import PodReading
from agent.scheduler.sacrifice import Room, Tenant


class House(msgspec.Struct, frozen=True):
    """A node of one moment. `place` is a copy, the caller's own; `tenants` are those that may be
    evicted, whatever their priority."""

    place: Place
    tenants: tuple[Tenant, ...]
    room: Room


class Tenants:
    """Any thread may ask."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def on(self, node: str, wish: Wish, group: Group | None = None) -> House | None:
        """None where the node can't take such a pod, whoever ends. Nobody ends for a companion."""
        cluster = self._cluster
        with cluster.lock:
            state = cluster.node(node)
            if state is None or state.node is None or cluster.eligible(node, wish) is not None:
                return None
            place = state.place.without((wish.uid,))
            mates = cluster.companions(group) if group is not None else {}
            pods = [cluster.pod(uid) for uid in place.holdings if uid not in mates]
            allocatable = state.node.allocatable
        return House(
            place,
            tuple(_tenant(each) for each in pods if each is not None and not each.fixed),
            Room(allocatable, {uid: held.requests for uid, held in place.holdings.items()}),
        )

    def leaving(self, tenants: Iterable[Tenant]) -> bool:
        """Whether somebody has asked for the end of one of them, who is there still."""
        pods = [self._cluster.pod(each.uid) for each in tenants]
        return any(each is not None and each.leaving for each in pods)

    def gone(self, tenants: Iterable[Tenant]) -> bool:
        """Whether none of them is on a node any more."""
        return not any(self._cluster.bound(each.uid) for each in tenants)


def _tenant(pod: PodReading) -> Tenant:
    assert pod.holding is not None, "the cluster keeps pods that hold something"
    namespace, _, name = pod.holding.title.partition("/")
    return Tenant(
        pod.uid,
        namespace,
        name,
        pod.holding.priority,
        pod.started_at,
        pod.labels,
        pod.leaving,
    )
