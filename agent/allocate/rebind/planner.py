"""Makes the plan: which pods move to which CPUs, in which steps, and what the plan gains.

Between two steps no CPU has two owners, and every owner has as many CPUs as before. The next step
is the first of these that is possible: a pod whose new CPUs are all free moves to them; a pod takes
the free part of its new CPUs; or, where pods wait for each other's CPUs, the pod that has most of
these CPUs moves to free CPUs."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from agent.allocate.rebind import local_search
from agent.allocate.rebind.arrangement import Arrangement, Measures, PlacedNode, lower_bound
from agent.model.cpu.cpuset import EMPTY, CpuSet, lowest, members


class PodPlace(msgspec.Struct, frozen=True):
    """What a pod has in one place."""

    cpus: CpuSet = EMPTY
    """The CPUs that it owns."""
    cpu_milli: dict[int, int] = {}
    """By NUMA node, if it shares CPUs."""
    memory: dict[int, dict[str, int]] = {}
    """By NUMA node and resource, if its memory follows its place."""


class PodMove(msgspec.Struct, frozen=True):
    """A pod moves to another place. A plan has several moves of a pod that first moves to other
    CPUs to make room."""

    uid: str
    title: str
    source: PodPlace
    target: PodPlace


class RebindPlan(msgspec.Struct, frozen=True):
    """The moves of pods, and what they improve."""

    moves: tuple[PodMove, ...]
    """In the order in which they must be made."""
    before: Measures
    after: Measures

    @property
    def uids(self) -> tuple[str, ...]:
        """The moved pods, each once, sorted."""
        return tuple(sorted({move.uid for move in self.moves}))


class NoPlan(msgspec.Struct, frozen=True):
    """At least one reason."""

    reasons: tuple[str, ...]


def plan(node: PlacedNode, max_moves: int | None = None) -> RebindPlan | NoPlan:
    """The moves that improve the node most, or why there are none. The same input gives the same
    plan.

    `max_moves`: how many pods may move, None for all."""
    arrangement = Arrangement(node)
    limit = len(node.pods) if max_moves is None else max_moves
    if node.pods and limit < 1:
        return NoPlan(("no pod may move now",))
    local_search.improve(arrangement, limit)
    if arrangement.measures() == arrangement.before:
        return NoPlan(_why_none(node, arrangement))
    moves = _moves(arrangement)
    if moves is None:
        return NoPlan(("pods would have to exchange their CPUs, and no CPU is free in between",))
    return RebindPlan(moves, arrangement.before, arrangement.measures())


def _why_none(node: PlacedNode, arrangement: Arrangement) -> tuple[str, ...]:
    if not node.pods:
        return ("no pod owns CPUs or is bound to NUMA nodes",)
    fixed = [pod for pod in node.pods if pod.fixed]
    why = [f"pod {pod.title} is not moved: {pod.fixed}" for pod in fixed]
    if len(fixed) == len(node.pods):
        return tuple(why)
    if arrangement.before == lower_bound(arrangement):
        return ("no pods could be placed better", *why)
    return ("no moves were found that improve the places of pods", *why)


def _moves(arrangement: Arrangement) -> tuple[PodMove, ...] | None:
    now = {i: pod.place for i, pod in enumerate(arrangement.pods) if pod.owner}
    wanted = {index: arrangement.places[index] for index in now}
    held = 0
    for cpus in now.values():
        held |= cpus
    steps = _ordered(now, wanted, arrangement.node.assignable & ~held)
    if steps is None:
        return None
    found = []
    for step in steps:
        found.append(_move(arrangement, step.pod, now[step.pod], step.cpus))
        now[step.pod] = step.cpus
    for index in arrangement.moved():
        if index not in now:
            found.append(
                _move(arrangement, index, arrangement.pods[index].place, arrangement.places[index])
            )
    return tuple(found)


def _move(arrangement: Arrangement, index: int, source: int, target: int) -> PodMove:
    pod = arrangement.pods[index]
    return PodMove(
        pod.uid,
        pod.title,
        _pod_place(arrangement, index, source),
        _pod_place(arrangement, index, target),
    )


def _pod_place(arrangement: Arrangement, index: int, place: int) -> PodPlace:
    pod = arrangement.pods[index]
    memory = arrangement.memory_at(index, place) if pod.memory else {}
    if pod.owner:
        return PodPlace(CpuSet.from_int(place), memory=memory)
    milli: Mapping[int, int] = pod.cpu_milli or {}
    if place != pod.place:
        milli = dict.fromkeys(members(place), sum(milli.values()))
    return PodPlace(cpu_milli=dict(milli), memory=memory)


class _Step(msgspec.Struct, frozen=True):
    """The pod with this index has the CPUs of the mask after the step."""

    pod: int
    cpus: int


def _ordered(now: Mapping[int, int], wanted: Mapping[int, int], free: int) -> list[_Step] | None:
    """The steps from `now` to `wanted`, masks by pod. None if pods wait for each other and no CPU
    is free.

    `free`: the CPUs that pods may have and no pod has."""
    places = {pod: cpus for pod, cpus in now.items() if wanted[pod] != cpus}
    targets = {pod: wanted[pod] for pod in places}
    steps: list[_Step] = []

    def move(pod: int, cpus: int) -> None:
        nonlocal free
        free = (free | places[pod]) & ~cpus
        places[pod] = cpus
        steps.append(_Step(pod, cpus))
        if cpus == targets[pod]:
            del places[pod], targets[pod]

    while places:
        ready = [pod for pod in places if not targets[pod] & ~places[pod] & ~free]
        if ready:
            move(ready[0], targets[ready[0]])
            continue
        part = [pod for pod in places if targets[pod] & ~places[pod] & free]
        if part:
            pod = part[0]
            here = targets[pod] & ~places[pod] & free
            move(pod, places[pod] & ~lowest(places[pod] & ~targets[pod], here.bit_count()) | here)
            continue
        pod, leaves = _in_the_way(places, targets)
        count = min(leaves.bit_count(), free.bit_count())
        if not count:
            return None
        move(pod, places[pod] & ~lowest(leaves, count) | lowest(free, count))
    return steps


def _in_the_way(places: Mapping[int, int], targets: Mapping[int, int]) -> tuple[int, int]:
    """The pod that has most of the CPUs that others wait for, and these CPUs."""
    awaited = 0
    for pod, cpus in targets.items():
        awaited |= cpus & ~places[pod]
    candidates = [(places[pod] & ~targets[pod] & awaited, pod) for pod in places]
    leaves, pod = max(candidates, key=lambda candidate: (candidate[0].bit_count(), -candidate[1]))
    return pod, leaves
