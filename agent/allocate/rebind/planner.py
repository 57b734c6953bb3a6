"""Makes the plan: which pods move to which CPUs, in which steps, and what the plan gains. The input
is read from a node allocator and the pods' requests.

Between two steps no CPU has two owners, and every owner has as many CPUs as before. The next step
is the first of these that is possible: a pod whose new CPUs are all free moves to them; a pod takes
the free part of its new CPUs; or, where pods wait for each other's CPUs, the pod that has most of
these CPUs moves to free CPUs."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from agent.allocate.node_allocation import Amounts, NodeAllocation, PodAllocation, TopologyOptions
from agent.allocate.node_allocator.allocator import NodeAllocator
from agent.allocate.node_allocator.assigned_pods import AssignedPod
from agent.allocate.policies_in_force import InForce, in_force
from agent.allocate.rebind import local_search
from agent.allocate.rebind.arrangement import (
    Arrangement,
    Measures,
    PlacedNode,
    PlacedPod,
    lower_bound,
)
from agent.model.cpu.cpuset import EMPTY, CpuSet, lowest, members
from agent.model.cpu.policies import BindPolicy
from agent.model.pod.resource_request import ResourceRequest

_CPU = "cpu"


def placed_node(
    allocator: NodeAllocator,
    requests: Mapping[str, ResourceRequest],
    fixed: Mapping[str, str],
) -> PlacedNode | NoPlan:
    """The node as the planner sees it, or why no plan is possible.

    `requests`: the requests of the node's pods by uid; a pod without one is not moved.
    `fixed`: why pods must not be moved, by uid."""
    options, name = allocator.properties.cpus, allocator.properties.name
    if options is None or options.layout is None:
        return NoPlan((f"node {name} has no usable NodeResourceTopology",))
    if options.kubelet_static:
        return NoPlan((f"the kubelet of node {name} assigns CPUs (static CPU policy)",))
    layout = options.layout
    node_allocation = NodeAllocation(options)
    for holding in allocator.holdings.values():
        node_allocation.add(holding.allocation)
    placed = []
    most_owned = {}
    for uid in sorted(allocator.holdings):
        request = requests.get(uid)
        if request is not None:
            request = msgspec.structs.replace(request, default_bind=options.profile.bind)
        pod = _placed_pod(
            options, node_allocation, allocator.holdings[uid], request, fixed.get(uid, "")
        )
        if pod is None:
            continue
        placed.append(pod)
        if request is not None and request.burst_milli and not pod.owner:
            # The pool of a pod that bursts must not shrink, since its limit must fit into the pool.
            for area in layout.nodes:
                if pod.place >> area.id & 1:
                    held = node_allocation.holdings.full(1)
                    most_owned[area.id] = (area.cpus & held).bit_count()
    return PlacedNode(
        layout,
        layout.cpus & ~options.kept.mask,
        tuple(placed),
        _rooms(node_allocation, placed),
        options.amplified(1000),
        most_owned,
    )


def moved_allocation(
    options: TopologyOptions, before: PodAllocation, place: PodPlace
) -> PodAllocation:
    """The allocation of the pod in this place. A pod that had no amounts by NUMA node gets none."""
    if not before.cpus:
        amounts = {node: {_CPU: milli} for node, milli in place.cpu_milli.items()}
        return msgspec.structs.replace(before, amounts=_with(amounts, place.memory))
    if not before.amounts:
        return msgspec.structs.replace(before, cpus=place.cpus)
    areas = options.layout.nodes if options.layout else ()
    counts = {area.id: (area.cpus & place.cpus.mask).bit_count() for area in areas}
    amounts = {node: {_CPU: 1000 * count} for node, count in counts.items() if count}
    if not any(_CPU in of for of in before.amounts.values()):
        amounts = {}
    return msgspec.structs.replace(before, cpus=place.cpus, amounts=_with(amounts, place.memory))


def _with(amounts: Amounts, memory: Mapping[int, Mapping[str, int]]) -> Amounts:
    for node, of_node in memory.items():
        amounts.setdefault(node, {}).update(of_node)
    return amounts


def _placed_pod(
    options: TopologyOptions,
    node_allocation: NodeAllocation,
    assigned: AssignedPod,
    request: ResourceRequest | None,
    fixed: str,
) -> PlacedPod | None:
    """The pod, None if it has no CPUs of its own and is not bound to NUMA nodes."""
    allocation = assigned.allocation
    if not allocation.cpus and not allocation.amounts:
        return None
    memory = {
        node: rest
        for node, amounts in allocation.amounts.items()
        if (rest := {name: amount for name, amount in amounts.items() if name != _CPU})
    }
    cpu_milli = None
    place = allocation.cpus.mask
    if not place:
        cpu_milli = {node: of.get(_CPU, 0) for node, of in allocation.amounts.items()}
        place = CpuSet(cpu_milli).mask
    layout = options.layout
    nodes = frozenset(layout.node_ids(place) if layout and cpu_milli is None else cpu_milli or ())
    policies = None
    if request is not None:
        policies = in_force(options.policies, options.profile, request)
    near = None
    if isinstance(policies, InForce):
        near = nodes if _stays(options, assigned, policies, memory) else None
    else:
        fixed = fixed or "its policies are not known or contradict those of the node"
    bind = policies.bind if isinstance(policies, InForce) else None
    return PlacedPod(
        assigned.uid,
        assigned.title,
        place,
        cpu_milli,
        bind is not None and bind.policy is BindPolicy.SPREAD_BY_PCPUS,
        allocation.exclusive,
        memory,
        near,
        _not_movable(options, node_allocation, assigned) or fixed,
    )


def _stays(
    options: TopologyOptions,
    assigned: AssignedPod,
    policies: InForce,
    memory: Mapping[int, Mapping[str, int]],
) -> bool:
    """Whether the pod has to stay on its NUMA nodes: it has devices or huge pages there, its bound
    memory is not recorded by NUMA node, or its NUMA exclusive policy restricts the choice."""
    names = {name for of_node in memory.values() for name in of_node}
    if assigned.kinds or policies.numa_exclusive is not None:
        return True
    if any(name.startswith("hugepages-") for name in (*names, *assigned.allocation.memory)):
        return True
    unrecorded = options.counts_memory and assigned.allocation.memory.keys() - names
    return bool(unrecorded)


def _not_movable(
    options: TopologyOptions, node_allocation: NodeAllocation, assigned: AssignedPod
) -> str:
    """Why the pod is never moved, "" if it may be."""
    cpus = assigned.allocation.cpus
    if assigned.reservation:
        return "it is a Reservation"
    if assigned.faults:
        return f"its allocation can't be read: {assigned.faults[0]}"
    online = CpuSet.from_int(options.layout.cpus if options.layout else 0)
    if offline := cpus - online:
        return f"its CPUs {offline} are not online"
    if shared := cpus & CpuSet.from_int(node_allocation.holdings.full(2)):
        return f"other pods hold its CPUs {shared} too"
    return ""


def _rooms(node_allocation: NodeAllocation, pods: list[PlacedPod]) -> Amounts:
    """The most that the pods of the plan may have together: the allocatable amounts, without those
    that other pods use, and without those that these pods use without a record."""
    counted: dict[tuple[int, str], int] = {}
    for pod in pods:
        for node, of_node in pod.memory.items():
            for name, amount in of_node.items():
                counted[node, name] = counted.get((node, name), 0) + amount
    return {
        node: {
            name: total
            if name == _CPU
            else total - node_allocation.used(node, name) + counted.get((node, name), 0)
            for name, total in amounts.items()
        }
        for node, amounts in node_allocation.totals().items()
    }


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
