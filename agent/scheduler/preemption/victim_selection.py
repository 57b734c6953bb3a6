"""Selects the pods that must end on a node so that a pod, or a group, has room there: few, and
those of lowest priority.

`select_victims` tries on a copy of the node allocator whether a set of pods helps; `fewest`
searches for the best set. A set that helps goes on helping when more pods end.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from agent.allocate.node_allocator.allocator import NodeAllocator
from agent.allocate.node_allocator.pod_request import PodRequest
from agent.model.apiobjects import PodGroup
from agent.scheduler.preemption.disruption_budgets import Budgets
from agent.scheduler.state.cluster import SchedulerCache
from agent.scheduler.state.pod_info import Feasible, Requirements
from agent.scheduler.state.records import PodRecord

TRIALS: Final = 400
"""How often a search tries whether a set helps; the best set so far is then the result."""


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
    victims = sorted((by_uid[uid] for uid in found.uids), key=importance)
    return PreemptionCandidate(place.properties.name, tuple(victims), found.violations)


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
    assert pod.assigned is not None, "the cluster keeps pods that hold something"
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


Helps: TypeAlias = Callable[[frozenset[str]], bool]
_Key: TypeAlias = tuple[int, tuple[int, ...], tuple[int, ...]]


class PotentialVictim(msgspec.Struct, frozen=True):
    """A pod that may be a victim; `started_at` in nanoseconds since 1970. `budgets`: the disruption
    budgets that it counts in."""

    uid: str
    priority: int
    started_at: int = 0
    budgets: tuple[str, ...] = ()


class Victims(msgspec.Struct, frozen=True):
    """`uids`, the most important pod first; `violations`: how many of them their budgets do not
    allow."""

    uids: tuple[str, ...]
    violations: int


def importance(candidate: BoundPod | PotentialVictim) -> tuple[int, int, str]:
    """Sorts the most important pod first, as kube-scheduler does: by priority, then by start
    time."""
    return -candidate.priority, candidate.started_at, candidate.uid


def violations(chosen: Iterable[PotentialVictim], allowed: Mapping[str, int]) -> int:
    """How many of these pods are more than their budgets allow; `chosen` by importance."""
    return sum(_beyond(chosen, allowed))


def _beyond(chosen: Iterable[PotentialVictim], allowed: Mapping[str, int]) -> Iterator[bool]:
    """Of each whether a budget of its own is used up by then."""
    left = dict(allowed)
    for each in chosen:
        for budget in each.budgets:
            left[budget] = left.get(budget, 0) - 1
        yield any(left[budget] < 0 for budget in each.budgets)


def fewest(
    candidates: Sequence[PotentialVictim],
    allowed: Mapping[str, int],
    helps: Helps,
    *,
    trials: int = TRIALS,
) -> Victims | None:
    """The set that helps and violates the fewest budgets, with the lowest priorities: the highest
    of them is compared first, and a set that goes on is worse than one that ends. Between equals
    those that started last. None where not even all of them help.

    `allowed`: disruptions that each budget still allows. After so many `trials` the best set so far
    is the result, which is never worse than reprieving pods one by one."""
    return _Search(candidates, allowed, helps, trials).run()


class _Search:
    """Depth first over the pods by importance: spare, else end. Sets are bits by that order."""

    def __init__(
        self,
        candidates: Sequence[PotentialVictim],
        allowed: Mapping[str, int],
        helps: Helps,
        trials: int,
    ) -> None:
        self._pods = sorted(candidates, key=importance)
        self._allowed = allowed
        self._ask = helps
        self._left = trials
        self._answers: dict[int, bool] = {}
        self._useless: list[int] = []
        self._best: tuple[_Key, int] | None = None

    def run(self) -> Victims | None:
        everyone = (1 << len(self._pods)) - 1
        if not self._pods or not self._helps(everyone):
            return None
        self._record(self._spared(everyone))
        self._few()
        self._descend(0, 0)
        assert self._best is not None
        (broken, _, _), best = self._best
        return Victims(tuple(each.uid for each in self._of(best)), broken)

    def _spared(self, everyone: int) -> int:
        """What is left when pods are spared one by one, those first that no budget allows. How many
        can be spared together is found by halving."""
        beyond = list(_beyond(self._pods, self._allowed))
        order = sorted(range(len(beyond)), key=lambda place: not beyond[place])
        chosen, start = everyone, 0
        while start < len(order):
            low, high = 0, len(order) - start
            while low < high:
                middle = (low + high + 1) // 2
                spared = sum(1 << place for place in order[start : start + middle])
                if self._helps(chosen & ~spared):
                    low = middle
                else:
                    high = middle - 1
            chosen &= ~sum(1 << place for place in order[start : start + low])
            start += low + 1
        return chosen

    def _few(self) -> None:
        """Single pods and pairs, the least important first: among many similar pods, where one
        large pod replaces several small ones, a search by importance finds it late."""
        places = range(len(self._pods) - 1, -1, -1)
        for place in places:
            self._try((place,))
        for last in places:
            # No pair with it breaks fewer budgets than it alone does.
            broken = violations((self._pods[last],), self._allowed)
            for first in range(last - 1, -1, -1):
                priorities = self._pods[first].priority, self._pods[last].priority
                least = broken, priorities, (-first,)
                if self._left <= 0 or (self._best is not None and least > self._best[0]):
                    break  # so are all more important ones
                self._try((first, last))

    def _try(self, places: tuple[int, ...]) -> None:
        bits = sum([1 << place for place in places])
        if self._left <= 0 or self._in_vain(bits):
            return
        if (self._best is None or self._places_key(places) < self._best[0]) and self._helps(bits):
            self._record(bits)

    def _better(self, chosen: int) -> bool:
        return self._best is None or self._key(chosen) < self._best[0]

    def _descend(self, place: int, chosen: int) -> None:
        """`chosen` of the pods before `place`; with all from there on it helps."""
        if self._left <= 0 or not self._better(chosen):
            return
        if chosen and self._helps(chosen):
            self._record(chosen)
            return
        if place == len(self._pods):
            return
        rest = ((1 << len(self._pods)) - 1) & ~((2 << place) - 1)
        if self._helps(chosen | rest):
            self._descend(place + 1, chosen)
        self._descend(place + 1, chosen | 1 << place)

    def _record(self, chosen: int) -> None:
        found = self._key(chosen), chosen
        if self._best is None or found < self._best:
            self._best = found

    def _key(self, chosen: int) -> _Key:
        """What is less is better; that of a set's first pods is never more than its own."""
        return self._places_key([each for each in range(len(self._pods)) if chosen >> each & 1])

    def _places_key(self, places: Sequence[int]) -> _Key:
        pods = [self._pods[place] for place in places]
        return (
            violations(pods, self._allowed),
            tuple(each.priority for each in pods),
            tuple(-place for place in places),
        )

    def _of(self, chosen: int) -> list[PotentialVictim]:
        return [each for place, each in enumerate(self._pods) if chosen >> place & 1]

    def _in_vain(self, chosen: int) -> bool:
        """No more than what is known not to help."""
        return any(not chosen & ~useless for useless in self._useless)

    def _helps(self, chosen: int) -> bool:
        if not chosen or self._in_vain(chosen):
            return False
        known = self._answers.get(chosen)
        if known is None:
            self._left -= 1
            known = self._answers[chosen] = self._ask(
                frozenset(each.uid for each in self._of(chosen))
            )
            if not known:
                self._useless.append(chosen)
        return known
