"""The room that a pod, or the members of a group without a node, need on one node."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Final, TypeAlias

import msgspec

from agent.allocate.node_allocator.allocator import NodeAllocator
from agent.allocate.node_allocator.answer import Refused
from agent.allocate.node_allocator.pod_request import PodRequest
from agent.scheduler.cluster import SchedulerCache
from agent.scheduler.cycle_state import PodInfo
from agent.scheduler.equivalence_cache import UNKNOWN_NODE, Feasibility, Feasible, Infeasible
from agent.scheduler.group_reservations import parts
from agent.scheduler.pod_group import PodGroup

_GROUP: Final = "no room for the whole group"
_ANY: Final = PodGroup("", "", 0)


class PodRequirements(msgspec.Struct, frozen=True):
    """One pod. `pods` is the number of pods, `requests` their sum."""

    pod_request: PodRequest

    @property
    def pods(self) -> int:
        return 1

    @property
    def requests(self) -> Mapping[str, int]:
        return self.pod_request.requests

    @property
    def equivalence_class(self) -> Hashable:
        """Equal where the result is equal on every node."""
        return self.pod_request.shape

    def check(self, place: NodeAllocator) -> Feasibility:
        # What this pod itself holds of the node must not count as free for other pods of its class.
        ask = msgspec.structs.replace(self.pod_request.ask, uid="")
        found = place.offer(msgspec.structs.replace(self.pod_request, ask=ask))
        if isinstance(found, Refused):
            return Infeasible(found.text(), found.unresolvable, found.words())
        return Feasible(found.score, found.order)


class GroupRequirements(msgspec.Struct, frozen=True):
    """Several equal pods of one group. What the group has reserved already counts as used."""

    pod_request: PodRequest
    pods: int

    @property
    def requests(self) -> Mapping[str, int]:
        return {name: amount * self.pods for name, amount in self.pod_request.requests.items()}

    @property
    def equivalence_class(self) -> Hashable:
        return self.pod_request.shape, self.pods

    def check(self, place: NodeAllocator) -> Feasibility:
        found = place.offer_all(parts(_ANY, self.pod_request, self.pods))
        if isinstance(found, Refused):
            return Infeasible(
                f"{_GROUP}: {found.text()}", found.unresolvable, f"{_GROUP}: {found.words()}"
            )
        return Feasible(
            sum(each.score for each in found) // len(found), max(each.order for each in found)
        )


Requirements: TypeAlias = PodRequirements | GroupRequirements


def requirements_of(info: PodInfo, cluster: SchedulerCache) -> Requirements:
    """The requirements of a pod without node: for a group, those of all members without node."""
    if info.group is None:
        return PodRequirements(info.pod_request)
    missing = info.group.size - len(cluster.bound_members(info.group))
    return GroupRequirements(info.pod_request, max(1, missing))


class RequirementsCheck(msgspec.Struct, frozen=True):
    """Checks whether a node is eligible and has room."""

    cluster: SchedulerCache
    requirements: Requirements

    @property
    def equivalence_class(self) -> Hashable:
        return self.requirements.equivalence_class

    @property
    def reads_zone_report(self) -> bool:
        return self.requirements.pod_request.zoned is not None

    def run(self, node: str) -> Feasibility:
        """The caller holds the cluster's lock."""
        ineligibility = self.cluster.eligible(node, self.requirements.pod_request)
        state = self.cluster.node(node)
        if state is None:
            return UNKNOWN_NODE
        if ineligibility is not None:
            return Infeasible(ineligibility, unresolvable=True)
        return self.requirements.check(state.place)
