"""A pod that found no node."""

from __future__ import annotations

import msgspec

from agent.scheduler.demands import Demand
from agent.scheduler.groupname import Group
from agent.scheduler.shapes import Question


class Waiter(msgspec.Struct, frozen=True, eq=False):
    """`since`: when it was refused first, `refused_at`: when last, by a clock that never goes back;
    `offered`: the nodes that kube-scheduler had nothing against, as bits (see `NodeNames`), None
    where nobody knows; `candidates`: those of them where an eviction may help, or some of these,
    and `demand` what they need room for. `nominated`: where a scheduler has room made for it, ""
    for nowhere. `group`: the one that it is a member of, whose members are served as one."""

    uid: str
    namespace: str
    name: str
    question: Question
    since: float
    refused_at: float
    priority: int = 0
    offered: int | None = None
    candidates: tuple[str, ...] = ()
    demand: Demand | None = None
    nominated: str = ""
    group: Group | None = None

    @property
    def title(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def party(self) -> str:
        return party(self.uid, self.group)

    @property
    def rank(self) -> tuple[int, float, str]:
        """The smaller comes first: the most important, then who waits longest."""
        return -self.priority, self.since, self.uid


def party(uid: str, group: Group | None) -> str:
    """Who is placed as one: a pod by its uid, or a group."""
    return uid if group is None else group.title
