"""Selects the victims on a node: few pods of low priority, so that without them a pod, or a group,
has room there.

`select_victims` checks on a copy of the node allocator whether the eviction of a set of pods makes
room; `best_set` searches for the best set. A superset of a set that makes room makes room too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from agent.allocate.node_allocator.allocator import NodeAllocator
from agent.model.pod.apiobjects import PodGroup
from agent.model.pod_request import PodRequest
from agent.scheduler.preemption.disruption_budgets import Budgets
from agent.scheduler.state.cluster import SchedulerCache
from agent.scheduler.state.pod_info import Feasible, Requirements
from agent.scheduler.state.records import PodRecord

TRIALS: Final = 400
"""The most sets that a search checks; then the best set so far is the result."""


class BoundPod(msgspec.Struct, frozen=True, gc=False):
    """A pod on a node. `started_at` is in nanoseconds since 1970, 0 if it is unknown.
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
    disruption budgets do not allow their eviction."""

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

    def fits(self, requests: Mapping[str, int], evicted: Collection[str], pods: int = 1) -> bool:
        """Whether `pods` pods with these requests in sum fit without the pods in `evicted`."""
        left = [each for uid, each in self.requested.items() if uid not in evicted]
        if len(left) + pods > self.allocatable.get("pods", len(left) + pods):
            return False
        return all(
            amount + sum(each.get(name, 0) for each in left) <= self.allocatable.get(name, 0)
            for name, amount in requests.items()
        )

    def explains(self, requests: Mapping[str, int], victims: Collection[str]) -> bool:
        """Whether resources alone explain these victims: each of them is needed."""
        return self.fits(requests, victims) and not any(
            self.fits(requests, [each for each in victims if each != spared]) for spared in victims
        )


def select_victims(
    allocator: NodeAllocator,
    pods: Sequence[BoundPod],
    requirements: Requirements,
    budgets: Budgets,
    *,
    required: Collection[str] = (),
    resources: NodeResources | None = None,
    trials: int = TRIALS,
    expired: Callable[[], bool] = lambda: False,
) -> PreemptionCandidate | None:
    """Returns the fewest and least important pods of lower priority whose eviction makes room on
    the node; None if there are none. Changes `allocator`, which must be a copy.

    The pods in `required` must be among the victims. The requests must fit into `resources` too.
    Terminating pods are selected first, since they end anyway. Once the time is `expired`, the best
    set so far is the result.
    """
    lower = [each for each in pods if each.priority < requirements.pod_request.priority]
    by_uid = {each.uid: each for each in lower}
    if not by_uid.keys() >= set(required):
        return None
    allowed: dict[str, int] = {}
    candidates = [_candidate(each, budgets, allowed) for each in lower]
    trial = _Trial(allocator, requirements)

    def makes_room(evicted: frozenset[str]) -> bool:
        if not evicted.issuperset(required):
            return False
        if resources is not None and not resources.fits(
            requirements.requests, evicted, requirements.pods
        ):
            return False
        return trial.has_room(evicted)

    found = best_set(candidates, allowed, makes_room, trials=trials, expired=expired)
    if found is None:
        return None
    victims = sorted((by_uid[uid] for uid in found.uids), key=importance)
    return PreemptionCandidate(allocator.properties.name, tuple(victims), found.violations)


class _Trial:
    """Removes pods from a node allocator, and restores them."""

    def __init__(self, allocator: NodeAllocator, requirements: Requirements) -> None:
        self._allocator = allocator
        self._requirements = requirements
        self._assigned = dict(allocator.assigned_pods)
        self._evicted: frozenset[str] = frozenset()

    def has_room(self, evicted: frozenset[str]) -> bool:
        for uid in evicted - self._evicted:
            self._allocator.release(uid)
        for uid in self._evicted - evicted:
            if (assigned := self._assigned.get(uid)) is not None:
                self._allocator.record(assigned)
        self._evicted = evicted
        return isinstance(self._requirements.check(self._allocator), Feasible)


# The priority of terminating pods, below that of all others.
_TERMINATING: Final = -(1 << 31) - 1


def _candidate(pod: BoundPod, budgets: Budgets, allowed: dict[str, int]) -> PotentialVictim:
    if pod.terminating:
        return PotentialVictim(pod.uid, _TERMINATING, pod.started_at)
    covering = budgets.covering(pod.namespace, pod.name, pod.labels)
    for budget in covering:
        allowed[budget.title] = budget.allowed
    titles = tuple(budget.title for budget in covering)
    return PotentialVictim(pod.uid, pod.priority, pod.started_at, titles)


class NodeSnapshot(msgspec.Struct, frozen=True):
    """A node at one time. `allocator` is a copy that the caller may change. `potential_victims` are
    the pods that may be evicted, of any priority."""

    allocator: NodeAllocator
    potential_victims: tuple[BoundPod, ...]
    resources: NodeResources


class NodeSnapshots:
    """Takes snapshots of nodes, on which victims are tried. Safe for many threads."""

    def __init__(self, cluster: SchedulerCache) -> None:
        self._cluster = cluster

    def take(
        self, node: str, pod_request: PodRequest, group: PodGroup | None = None
    ) -> NodeSnapshot | None:
        """Returns None if the node is not eligible for the pod, or if a member of `group` does not
        exist yet: a single pod can claim any size. Members are not potential victims."""
        cluster = self._cluster
        with cluster.lock:
            state = cluster.node(node)
            if (
                state is None
                or state.node is None
                or cluster.ineligibility(node, pod_request) is not None
            ):
                return None
            members = cluster.bound_members(group) if group is not None else {}
            if group is not None:
                # The watch of pods may not have reported this one yet.
                existing = {pod_request.uid, *members, *cluster.waiting_members(group)}
                if len(existing) < group.size:
                    return None
            allocator = state.allocator.without((pod_request.uid,))
            pods = [cluster.pod(uid) for uid in allocator.assigned_pods if uid not in members]
            allocatable = state.node.allocatable
        return NodeSnapshot(
            allocator,
            tuple(_bound_pod(each) for each in pods if each is not None and not each.mirror),
            NodeResources(
                allocatable,
                {
                    uid: held.requests
                    for uid, held in allocator.assigned_pods.items()
                    if not held.reservation
                },
            ),
        )

    def any_terminating(self, pods: Iterable[BoundPod]) -> bool:
        """Whether one of the pods still exists and is terminating."""
        records = (self._cluster.pod(each.uid) for each in pods)
        return any(each is not None and each.terminating for each in records)

    def all_ended(self, pods: Iterable[BoundPod]) -> bool:
        """Whether none of the pods is on a node any more."""
        return not any(self._cluster.node_of(each.uid) for each in pods)


def _bound_pod(pod: PodRecord) -> BoundPod:
    assert pod.assigned is not None, "the cluster keeps assigned pods only"
    namespace, _, name = pod.assigned.title.partition("/")
    return BoundPod(
        pod.uid,
        namespace,
        name,
        pod.assigned.priority,
        pod.started_at,
        pod.labels,
        pod.terminating,
    )


MakesRoom: TypeAlias = Callable[[frozenset[str]], bool]
_Key: TypeAlias = tuple[int, tuple[int, ...], tuple[int, ...]]


class PotentialVictim(msgspec.Struct, frozen=True):
    """A pod that may be a victim; `started_at` in nanoseconds since 1970. `budgets`: the disruption
    budgets that it counts in."""

    uid: str
    priority: int
    started_at: int = 0
    budgets: tuple[str, ...] = ()


class Victims(msgspec.Struct, frozen=True):
    """`uids`, the most important pod first. `violations`: the number of them that their budgets do
    not allow."""

    uids: tuple[str, ...]
    violations: int


def importance(candidate: BoundPod | PotentialVictim) -> tuple[int, int, str]:
    """Sorts the most important pod first, as kube-scheduler does: by priority, then by start
    time."""
    return -candidate.priority, candidate.started_at, candidate.uid


def violations(chosen: Iterable[PotentialVictim], allowed: Mapping[str, int]) -> int:
    """The number of these pods that their budgets do not allow; `chosen` by importance."""
    return sum(_violating(chosen, allowed))


def _violating(chosen: Iterable[PotentialVictim], allowed: Mapping[str, int]) -> Iterator[bool]:
    """Yields for each pod whether one of its budgets is exceeded by it or the pods before it."""
    left = dict(allowed)
    for each in chosen:
        for budget in each.budgets:
            left[budget] = left.get(budget, 0) - 1
        yield any(left[budget] < 0 for budget in each.budgets)


def best_set(
    candidates: Sequence[PotentialVictim],
    allowed: Mapping[str, int],
    makes_room: MakesRoom,
    *,
    trials: int = TRIALS,
    expired: Callable[[], bool] = lambda: False,
) -> Victims | None:
    """Returns the set that makes room with the fewest violations of budgets, then with the lowest
    priorities: they are compared from the highest one on, and fewer pods are better if these are
    equal. Among equal sets it is that of the pods that started last. None if not even all pods make
    room.

    `allowed`: disruptions that each budget still allows. After `trials` checks the best set so far
    is the result, which is never worse than reprieving pods one by one, unless the time `expired`
    before: one check may take 50 ms, if the node's reports are made for that."""
    return _Search(candidates, allowed, makes_room, trials, expired).run()


class _Search:
    """Depth-first search over the pods by importance: each is spared first, then evicted. Sets are
    bits in that order."""

    def __init__(
        self,
        candidates: Sequence[PotentialVictim],
        allowed: Mapping[str, int],
        makes_room: MakesRoom,
        trials: int,
        expired: Callable[[], bool],
    ) -> None:
        self._pods = sorted(candidates, key=importance)
        self._allowed = allowed
        self._check = makes_room
        self._left = trials
        self._expired = expired
        self._results: dict[int, bool] = {}
        self._insufficient: list[int] = []
        self._best: tuple[_Key, int] | None = None

    def run(self) -> Victims | None:
        all_pods = (1 << len(self._pods)) - 1
        if not self._pods or not self._makes_room(all_pods):
            return None
        self._record(self._reprieve(all_pods))
        self._try_few()
        self._descend(0, 0)
        assert self._best is not None
        (violated, _, _), best = self._best
        return Victims(tuple(each.uid for each in self._of(best)), violated)

    def _reprieve(self, all_pods: int) -> int:
        """Returns the pods that are left after pods are spared one by one, first those whose
        eviction violates a budget. Bisection finds how many can be spared together."""
        violating = list(_violating(self._pods, self._allowed))
        order = sorted(range(len(violating)), key=lambda index: not violating[index])
        chosen, start = all_pods, 0
        while start < len(order):
            low, high = 0, len(order) - start
            while low < high:
                middle = (low + high + 1) // 2
                spared = sum(1 << index for index in order[start : start + middle])
                if self._makes_room(chosen & ~spared):
                    low = middle
                else:
                    high = middle - 1
            chosen &= ~sum(1 << index for index in order[start : start + low])
            start += low + 1
        return chosen

    def _try_few(self) -> None:
        """Tries single pods and pairs, the least important first. The search by importance finds
        them late, for instance one large pod that replaces several small ones."""
        indexes = range(len(self._pods) - 1, -1, -1)
        for index in indexes:
            self._try((index,))
        for last in indexes:
            # No pair with it violates fewer budgets than it alone does.
            violated = violations((self._pods[last],), self._allowed)
            for first in range(last - 1, -1, -1):
                priorities = self._pods[first].priority, self._pods[last].priority
                least = violated, priorities, (-first,)
                if self._left <= 0 or (self._best is not None and least > self._best[0]):
                    break  # so are all pairs with more important pods
                self._try((first, last))

    def _try(self, indexes: tuple[int, ...]) -> None:
        bits = sum([1 << index for index in indexes])
        if self._left <= 0 or self._known_insufficient(bits):
            return
        if (self._best is None or self._key_of(indexes) < self._best[0]) and self._makes_room(bits):
            self._record(bits)

    def _better(self, chosen: int) -> bool:
        return self._best is None or self._key(chosen) < self._best[0]

    def _descend(self, index: int, chosen: int) -> None:
        """`chosen` are pods before index `index`; with all pods from `index` on they make room."""
        if self._left <= 0 or not self._better(chosen):
            return
        if chosen and self._makes_room(chosen):
            self._record(chosen)
            return
        if index == len(self._pods):
            return
        rest = ((1 << len(self._pods)) - 1) & ~((2 << index) - 1)
        if self._makes_room(chosen | rest):
            self._descend(index + 1, chosen)
        self._descend(index + 1, chosen | 1 << index)

    def _record(self, chosen: int) -> None:
        found = self._key(chosen), chosen
        if self._best is None or found < self._best:
            self._best = found

    def _key(self, chosen: int) -> _Key:
        """Smaller is better. The key of the first pods of a set is never greater than its own."""
        return self._key_of([each for each in range(len(self._pods)) if chosen >> each & 1])

    def _key_of(self, indexes: Sequence[int]) -> _Key:
        pods = [self._pods[index] for index in indexes]
        return (
            violations(pods, self._allowed),
            tuple(each.priority for each in pods),
            tuple(-index for index in indexes),
        )

    def _of(self, chosen: int) -> list[PotentialVictim]:
        return [each for index, each in enumerate(self._pods) if chosen >> index & 1]

    def _known_insufficient(self, chosen: int) -> bool:
        """Whether the set is a subset of one that is known not to make room."""
        return any(not chosen & ~each for each in self._insufficient)

    def _makes_room(self, chosen: int) -> bool:
        if not chosen or self._known_insufficient(chosen):
            return False
        result = self._results.get(chosen)
        if result is None:
            if self._expired():
                self._left = 0
                return False
            self._left -= 1
            result = self._results[chosen] = self._check(
                frozenset(each.uid for each in self._of(chosen))
            )
            if not result:
                self._insufficient.append(chosen)
        return result
