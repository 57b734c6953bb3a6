"""Selects the pods that must end on a node so that a pod, or a group, has room there."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from agent.allocate.node_allocator.allocator import NodeAllocator
from agent.allocate.node_allocator.pod_request import PodRequest
from agent.allocate.victims import TRIALS, PotentialVictim, fewest
from agent.scheduler.cluster import SchedulerCache
from agent.scheduler.disruption_budgets import Budgets
from agent.scheduler.pod_info import Feasible, Requirements
from agent.scheduler.records import PodGroup, PodRecord


class BoundPod(msgspec.Struct, frozen=True, gc=False):
    """A pod on a node. `started_at` is in nanoseconds since 1970, 0 where it is unknown.
    `terminating`: its deletion has begun."""

    uid: str
    namespace: str
    name: str
    priority: int = 0
    started_at: int = 0
    labels: Mapping[str, str] = {}
    terminating: bool = False

    @property
    def title(self) -> str:
        return f"{self.namespace}/{self.name}"


class PreemptionCandidate(msgspec.Struct, frozen=True):
    """A node and its victims, the most important first. `violations` is the number of victims whose
    disruption budgets do not allow their end."""

    node: str
    victims: tuple[BoundPod, ...]
    violations: int

    @property
    def key(self) -> tuple[Any, ...]:
        """The candidate with the smaller key is better; no two nodes have equal keys."""
        return (
            self.violations,
            [each.priority for each in self.victims],
            [-each.started_at for each in self.victims],
            self.node,
        )


class NodeResources(msgspec.Struct, frozen=True):
    """The allocatable amounts of a node, and the requests of its pods: the input of
    kube-scheduler's NodeResourcesFit."""

    allocatable: Mapping[str, int]
    requested: Mapping[str, Mapping[str, int]]

    def fits(self, requests: Mapping[str, int], gone: Collection[str], pods: int = 1) -> bool:
        """Whether `pods` pods with these requests in sum fit, once the pods in `gone` are gone."""
        left = [each for uid, each in self.requested.items() if uid not in gone]
        if len(left) + pods > self.allocatable.get("pods", len(left) + pods):
            return False
        return all(
            amount + sum(each.get(name, 0) for each in left) <= self.allocatable.get(name, 0)
            for name, amount in requests.items()
        )

    def explains(self, requests: Mapping[str, int], named: Collection[str]) -> bool:
        """Whether resources alone explain these victims: each of them is needed."""
        return self.fits(requests, named) and not any(
            self.fits(requests, [each for each in named if each != spared]) for spared in named
        )


def select_victims(
    place: NodeAllocator,
    pods: Sequence[BoundPod],
    requirements: Requirements,
    budgets: Budgets,
    *,
    required: Collection[str] = (),
    resources: NodeResources | None = None,
    trials: int = TRIALS,
) -> PreemptionCandidate | None:
    """Returns the fewest and least important pods of lower priority without which `place` has room;
    None where there are none. Changes `place`, which must be a copy.

    The pods in `required` must be among the victims. `resources`: the requests must fit in them
    too. Terminating pods are selected first, since their end costs nothing.
    """
    lower = [each for each in pods if each.priority < requirements.pod_request.priority]
    by_uid = {each.uid: each for each in lower}
    if not by_uid.keys() >= set(required):
        return None
    allowed: dict[str, int] = {}
    candidates = [_candidate(each, budgets, allowed) for each in lower]
    trial = _Trial(place, requirements)

    def helps(gone: frozenset[str]) -> bool:
        if not gone.issuperset(required):
            return False
        if resources is not None and not resources.fits(
            requirements.requests, gone, requirements.pods
        ):
            return False
        return trial.has_room(gone)

    found = fewest(candidates, allowed, helps, trials=trials)
    if found is None:
        return None
    victims = sorted((by_uid[uid] for uid in found.uids), key=_importance)
    return PreemptionCandidate(place.facts.name, tuple(victims), found.violations)


class _Trial:
    """A place from which pods are removed and to which they return."""

    def __init__(self, place: NodeAllocator, requirements: Requirements) -> None:
        self._place = place
        self._requirements = requirements
        self._holdings = dict(place.holdings)
        self._gone: frozenset[str] = frozenset()

    def has_room(self, gone: frozenset[str]) -> bool:
        for uid in gone - self._gone:
            self._place.release(uid)
        for uid in self._gone - gone:
            if (holding := self._holdings.get(uid)) is not None:
                self._place.record(holding)
        self._gone = gone
        return isinstance(self._requirements.check(self._place), Feasible)


_LEAVES: Final = -(1 << 31) - 1


def _candidate(pod: BoundPod, budgets: Budgets, allowed: dict[str, int]) -> PotentialVictim:
    if pod.terminating:
        return PotentialVictim(pod.uid, _LEAVES, pod.started_at)
    covering = budgets.covering(pod.namespace, pod.name, pod.labels)
    for budget in covering:
        allowed[budget.title] = budget.allowed
    titles = tuple(budget.title for budget in covering)
    return PotentialVictim(pod.uid, pod.priority, pod.started_at, titles)


def _importance(pod: BoundPod) -> tuple[int, int, str]:
    return -pod.priority, pod.started_at, pod.uid


class NodeSnapshot(msgspec.Struct, frozen=True):
    """A node at one moment. `place` is a copy that the caller may change. `potential_victims` are
    the pods that may be evicted, of any priority."""

    place: NodeAllocator
    potential_victims: tuple[BoundPod, ...]
    resources: NodeResources


class NodeSnapshots:
    """Safe for many threads."""

    def __init__(self, cluster: SchedulerCache) -> None:
        self._cluster = cluster

    def take(
        self, node: str, pod_request: PodRequest, group: PodGroup | None = None
    ) -> NodeSnapshot | None:
        """Returns None where the node is not eligible for the pod. Members of `group` are not
        potential victims."""
        cluster = self._cluster
        with cluster.lock:
            state = cluster.node(node)
            if (
                state is None
                or state.node is None
                or cluster.eligible(node, pod_request) is not None
            ):
                return None
            place = state.place.without((pod_request.uid,))
            members = cluster.bound_members(group) if group is not None else {}
            pods = [cluster.pod(uid) for uid in place.holdings if uid not in members]
            allocatable = state.node.allocatable
        return NodeSnapshot(
            place,
            tuple(_bound_pod(each) for each in pods if each is not None and not each.fixed),
            NodeResources(
                allocatable, {uid: held.requests for uid, held in place.holdings.items()}
            ),
        )

    def any_terminating(self, pods: Iterable[BoundPod]) -> bool:
        """Whether one of the pods still exists and is terminating."""
        records = (self._cluster.pod(each.uid) for each in pods)
        return any(each is not None and each.terminating for each in records)

    def all_gone(self, pods: Iterable[BoundPod]) -> bool:
        """Whether none of the pods is on a node any more."""
        return not any(self._cluster.bound(each.uid) for each in pods)


def _bound_pod(pod: PodRecord) -> BoundPod:
    assert pod.holding is not None, "the cluster keeps pods that hold something"
    namespace, _, name = pod.holding.title.partition("/")
    return BoundPod(
        pod.uid,
        namespace,
        name,
        pod.holding.priority,
        pod.started_at,
        pod.labels,
        pod.terminating,
    )
