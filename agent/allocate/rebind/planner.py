"""Makes the plan: which pods move to which CPUs, in which steps, and what the plan gains. The input
is read from a node allocator and the pods' requests.

Between two steps no CPU has two owners, and every owner has as many CPUs as before. The next step
is the first of these that is possible: a pod whose new CPUs are all free moves to them; a pod takes
the free part of its new CPUs; or, where pods wait for each other's CPUs, the pod that has most of
these CPUs moves to free CPUs.

The places of the node are improved step by step, until nothing more is found. Each trial removes
some pods and places them again, one after the other. Its result is kept if the measures improve, no
measure is worse than at the beginning, and not too many pods are moved. A removed pod gets the best
place. On a NUMA node it gets whole free cores, those with its present CPUs first, and its last CPUs
on a core that is broken already; under SpreadByPCPUs it gets one CPU of each core, of broken cores
first. So as many whole cores as possible stay free."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, permutations
from typing import Final

import msgspec

from agent.allocate.node_allocation import Amounts, NodeAllocation, PodAllocation, TopologyOptions
from agent.allocate.node_allocator.allocator import NodeAllocator
from agent.allocate.node_allocator.assigned_pods import AssignedPod
from agent.allocate.policies_in_force import InForce, in_force
from agent.allocate.rebind.arrangement import (
    Arrangement,
    Measures,
    PlacedNode,
    PlacedPod,
    lower_bound,
)
from agent.model.cpu.cpuset import EMPTY, CpuSet, lowest, members
from agent.model.cpu.layout import Layout
from agent.model.cpu.policies import BindPolicy
from agent.model.pod.resource_request import ResourceRequest

TRIALS: Final = 600
"""The most pods that one search removes, which bounds its time."""
FEW_PODS: Final = 8
"""So many pods are few: the movable ones are tried in all orders of two to four pods, and the moved
ones are placed again."""
PARTNERS: Final = 6
"""The most pods that are tried as partners of one pod."""


def improve(arrangement: Arrangement, max_moves: int) -> None:
    """Improves the places in `arrangement`."""
    search = _Search(arrangement, max_moves)
    while search.once():
        pass
    search.place_all_again()
    search.undo_idle_moves()


class _Search:
    def __init__(self, arrangement: Arrangement, max_moves: int) -> None:
        self._arrangement = arrangement
        self._max_moves = max_moves
        self._trials = TRIALS

    def once(self) -> bool:
        """Makes one round of all kinds of trials. Returns whether it improved the measures."""
        before = self._arrangement.measures()
        for index in self._misplaced():
            if not self._single(index):
                self._with_partners(index)
        for index in self._on_partly_free_cores():
            self._single(index)
        self._empty_numa_nodes()
        pods = list(self._movable())
        if len(pods) <= FEW_PODS and self._arrangement.measures() == before:
            orders = chain.from_iterable(permutations(pods, count) for count in (2, 3, 4))
            any(map(self._try, orders))
        return self._trials > 0 and self._arrangement.measures() < before

    def place_all_again(self) -> None:
        """Places all pods again, the largest first, if some are still badly placed."""
        if self._misplaced():
            everything = sorted(
                self._movable(), key=lambda index: (-self._arrangement.wanted(index), index)
            )
            self._trials = len(everything)
            self._try(everything)

    def undo_idle_moves(self) -> None:
        """Moves each pod back if no measure gets worse. If few pods are moved, it also tries to
        place the others again then, so that fewer are moved."""
        arrangement = self._arrangement
        for index in arrangement.moved():
            moved = arrangement.moved()
            if index in moved and not self._undo(index, ()) and len(moved) <= FEW_PODS:
                moved.remove(index)
                self._undo(index, sorted(moved, key=lambda other: -arrangement.wanted(other)))

    def _undo(self, index: int, others: Sequence[int]) -> bool:
        arrangement = self._arrangement
        now, moved = arrangement.measures(), len(arrangement.moved())

        def place(of: int) -> int:
            if of != index:
                return _best_place(arrangement, of)
            own = arrangement.pods[index].place
            return own if arrangement.allowed(index, own) else 0

        return self._place_again(
            (index, *others),
            place,
            lambda: arrangement.measures().no_worse_than(now) and len(arrangement.moved()) < moved,
        )

    def _try(self, indices: Sequence[int], avoided: int | None = None) -> bool:
        """Removes these pods and places them in this order, each off the NUMA node `avoided`.
        Returns whether that is better."""
        if self._trials <= 0:
            return False
        self._trials -= len(indices)
        now = self._arrangement.measures()
        return self._place_again(
            indices,
            lambda index: _best_place(self._arrangement, index, avoided),
            lambda: self._improves(now),
        )

    def _place_again(
        self, indices: Sequence[int], place_of: Callable[[int], int], accept: Callable[[], bool]
    ) -> bool:
        """Removes these pods and puts each on the CPUs that `place_of` returns for it; 0 means
        that no CPUs suit the pod. Returns whether all pods have CPUs and `accept` agrees; otherwise
        all pods get their former CPUs back."""
        arrangement = self._arrangement
        before = [arrangement.places[index] for index in indices]
        for index in indices:
            arrangement.remove(index)
        placed: list[int] = []
        for index in indices:
            place = place_of(index)
            if not place:
                break
            arrangement.put(index, place)
            placed.append(index)
        if len(placed) == len(indices) and accept():
            return True
        for index in placed:
            arrangement.remove(index)
        for index, place in zip(indices, before, strict=True):
            arrangement.put(index, place)
        return False

    def _improves(self, now: Measures) -> bool:
        """Whether the present places may replace those with the measures `now`."""
        arrangement = self._arrangement
        measures = arrangement.measures()
        return (
            measures < now
            and measures.no_worse_than(arrangement.before)
            and len(arrangement.moved()) <= self._max_moves
        )

    def _single(self, index: int) -> bool:
        return self._try((index,))

    def _with_partners(self, index: int) -> bool:
        """The pod gets its place first, then the pods whose CPUs it may have taken."""
        if any(self._try((index, partner)) for partner in self._partners(index)):
            return True
        crossings, _ = self._arrangement.misfit(index, self._arrangement.places[index])
        if crossings <= 0 or not self._arrangement.pods[index].owner:
            return False
        return any(self._try((index, *leaving)) for leaving in self._leaving_pods(index))

    def _misplaced(self) -> list[int]:
        """The pods with crossings or broken cores, the worst first."""
        arrangement = self._arrangement
        misplaced = []
        for index in self._movable():
            crossings, broken = arrangement.misfit(index, arrangement.places[index])
            if crossings > 0 or broken > 0:
                misplaced.append((-crossings, -broken, index))
        return [index for *_, index in sorted(misplaced)]

    def _movable(self) -> Iterator[int]:
        return (
            index
            for index in range(len(self._arrangement.pods))
            if self._arrangement.movable(index)
        )

    def _partners(self, index: int) -> list[int]:
        """Owners on the cores of the pod, then owners on its NUMA nodes with as many CPUs."""
        arrangement, layout = self._arrangement, self._arrangement.layout
        place = arrangement.places[index]
        if not arrangement.pods[index].owner:
            return []
        cores = layout.expand(layout.touched(place))
        nodes = layout.of_nodes(layout.node_ids(place))
        partners = []
        for other in self._movable():
            there = arrangement.places[other]
            if other == index or not arrangement.pods[other].owner or not there & nodes:
                continue
            size = abs(there.bit_count() - place.bit_count())
            partners.append((not there & cores, size, other))
        return [other for *_, other in sorted(partners)[:PARTNERS]]

    def _leaving_pods(self, index: int) -> Iterator[list[int]]:
        """For each NUMA node, the one with the most free CPUs first: the pods that have to leave it
        so that the pod fits there. These are the largest pods that together have no more CPUs than
        are missing, and then the smallest pod that has the rest."""
        arrangement = self._arrangement
        free = arrangement.node.assignable & ~arrangement.held | arrangement.places[index]
        need = arrangement.wanted(index)
        areas = sorted(
            arrangement.areas.items(), key=lambda area: (-(area[1] & free).bit_count(), area[0])
        )
        for _, cpus in areas:
            missing = need - (cpus & free).bit_count()
            sizes = sorted(
                (
                    (arrangement.places[other].bit_count(), other)
                    for other in self._movable()
                    if other != index
                    and arrangement.pods[other].owner
                    and not arrangement.places[other] & ~cpus
                ),
                key=lambda size: (-size[0], size[1]),
            )
            leaving = []
            for size, other in sizes:
                if 0 < size <= missing:
                    leaving.append(other)
                    missing -= size
            if missing > 0:
                larger = [size for size in sizes if size[0] >= missing and size[1] not in leaving]
                leaving += [larger[-1][1]] if larger else []
            if leaving and len(leaving) < self._max_moves:
                yield leaving

    def _on_partly_free_cores(self) -> list[int]:
        """The owners on cores that are free in part, the smallest first."""
        arrangement, layout = self._arrangement, self._arrangement.layout
        free = arrangement.node.assignable & ~arrangement.held
        part = layout.touched(free) & ~layout.whole(free)
        if part.bit_count() < 2:
            return []
        cores = layout.expand(part)
        owners = [
            (arrangement.places[index].bit_count(), index)
            for index in self._movable()
            if arrangement.pods[index].owner and arrangement.places[index] & cores
        ]
        return [index for _, index in sorted(owners)]

    def _empty_numa_nodes(self) -> None:
        """Tries to move all pods off a NUMA node, one node after the other, the one with the fewest
        pods first."""
        arrangement = self._arrangement
        groups = []
        for id_, cpus in arrangement.areas.items():
            here = [
                index
                for index, place in enumerate(arrangement.places)
                if (place & cpus if arrangement.pods[index].owner else place >> id_ & 1)
            ]
            if here and all(map(arrangement.movable, here)) and len(here) <= self._max_moves:
                groups.append((len(here), id_, here))
        for _, id_, here in sorted(groups):
            here.sort(key=lambda index: (-arrangement.wanted(index), index))
            self._try(here, id_)


def _best_place(arrangement: Arrangement, index: int, avoided: int | None = None) -> int:
    """The allowed place with the best measures, with the fewest changed CPUs among equal ones; 0 if
    there is none. It is off the NUMA node with the id `avoided`."""
    own = arrangement.pods[index].place
    place = _best(arrangement, index, _candidates(arrangement, index, avoided))
    if place in (0, own) and arrangement.pods[index].owner:
        # A NUMA node with enough free CPUs may not take the pod.
        across = [own] if place else []
        across += _across_nodes(arrangement, index, avoided)
        place = _best(arrangement, index, across)
    return place


def _best(arrangement: Arrangement, index: int, candidates: Iterable[int]) -> int:
    own = arrangement.pods[index].place
    by_misfit: dict[tuple[int, int], list[int]] = {}
    for place in candidates:
        by_misfit.setdefault(arrangement.misfit(index, place), []).append(place)
    for _, places in sorted(by_misfit.items()):
        found = [
            (arrangement.measures_with(index, place), (place & ~own).bit_count(), place)
            for place in places
            if arrangement.allowed(index, place)
        ]
        if found:
            return min(found)[2]
    return 0


def _candidates(arrangement: Arrangement, index: int, avoided: int | None) -> Iterator[int]:
    pod, count = arrangement.pods[index], arrangement.wanted(index)
    own = pod.place
    if not pod.owner:
        if avoided is None or not own >> avoided & 1:
            yield own
        for id_ in arrangement.areas:
            if id_ != avoided and 1 << id_ != own:
                yield 1 << id_
        return
    free, off = _free(arrangement, index, avoided)
    if not own & off:
        yield own
    for cpus in arrangement.areas.values():
        if (free & cpus).bit_count() >= count:
            yield _pick(arrangement.layout, free & cpus, count, own, spread=pod.spread)


def _across_nodes(arrangement: Arrangement, index: int, avoided: int | None) -> Iterator[int]:
    """CPUs of the fewest NUMA nodes, and as many on each NUMA node as the pod has now."""
    pod, count, layout = arrangement.pods[index], arrangement.wanted(index), arrangement.layout
    free, _ = _free(arrangement, index, avoided)
    if free.bit_count() >= count:
        yield _over_nodes(arrangement, free, count, pod.place, spread=pod.spread)
    place = 0
    for cpus in arrangement.areas.values():
        here = (pod.place & cpus).bit_count()
        if (free & cpus).bit_count() < here:
            return
        place |= _pick(layout, free & cpus, here, pod.place, spread=pod.spread)
    yield place


def _free(arrangement: Arrangement, index: int, avoided: int | None) -> tuple[int, int]:
    """The CPUs that the pod may take, and those that it must not have."""
    off = arrangement.held | (0 if avoided is None else arrangement.areas[avoided])
    return arrangement.reach(index) & ~off & ~arrangement.barred(index), off


def _over_nodes(arrangement: Arrangement, free: int, count: int, own: int, *, spread: bool) -> int:
    """CPUs of the fewest NUMA nodes: the largest nodes first, and as the last one the smallest that
    has the rest."""
    left = {id_: here for id_, cpus in arrangement.areas.items() if (here := free & cpus)}
    place = 0
    while count:
        enough = [id_ for id_ in left if left[id_].bit_count() >= count]
        if enough:
            id_ = min(enough, key=lambda node: (left[node].bit_count(), node))
        else:
            id_ = max(left, key=lambda node: (left[node].bit_count(), -node))
        here = left.pop(id_)
        part = _pick(arrangement.layout, here, min(count, here.bit_count()), own, spread=spread)
        place |= part
        count -= part.bit_count()
    return place


def _pick(layout: Layout, free: int, count: int, own: int, *, spread: bool) -> int:
    """`count` of the free CPUs, which are at least as many, preferably of `own`."""
    if spread:
        return _one_by_core(layout, free, count, own)
    whole = layout.whole(free)
    place = 0
    # Cores that the pod has as a whole come first: these CPUs do not change.
    for leads in _preferred(layout, whole, own):
        chosen = lowest(leads, count // layout.threads)
        cpus = layout.expand(chosen)
        if cpus.bit_count() <= count:
            place |= cpus
            count -= cpus.bit_count()
    if not count:
        return place
    broken = free & ~layout.expand(whole)
    by_count = layout.at_least(broken)
    exact = by_count[count - 1] if count <= len(by_count) else 0
    for leads in _preferred(layout, exact & ~sum(by_count[count : count + 1]), own):
        if leads:
            return place | _from_core(layout, broken, leads, own, count)
    # The densest broken cores, then a whole core.
    for leads in (*reversed(by_count), whole):
        for some in _preferred(layout, leads, own):
            while some and count:
                lead = some & -some
                some ^= lead
                here = layout.expand(lead) & free & ~place
                part = _own_first(here, own, count)
                place |= part
                count -= part.bit_count()
    return place


def _preferred(layout: Layout, leads: int, own: int) -> tuple[int, int, int]:
    """Divides the cores into those that `own` has as a whole, those that it has in part, and the
    others."""
    mine = layout.whole(own) & leads
    part = layout.touched(own) & leads & ~mine
    return mine, part, leads & ~mine & ~part


def _from_core(layout: Layout, free: int, leads: int, own: int, count: int) -> int:
    return _own_first(layout.expand(leads & -leads) & free, own, count)


def _own_first(here: int, own: int, count: int) -> int:
    first = lowest(here & own, count)
    return first | lowest(here & ~own, count - first.bit_count())


def _one_by_core(layout: Layout, free: int, count: int, own: int) -> int:
    place = 0
    left = free
    while count:
        whole = layout.whole(left)
        firsts = layout.firsts(left & own)
        firsts |= layout.firsts(left & ~layout.expand(layout.touched(firsts)))
        broken = firsts & ~layout.expand(whole)
        for some in (broken & own, broken & ~own, firsts & ~broken & own, firsts & ~broken & ~own):
            part = lowest(some, count)
            place |= part
            count -= part.bit_count()
        left &= ~place & ~firsts
    return place


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
    for assigned in allocator.assigned_pods.values():
        node_allocation.add(assigned.allocation)
    placed = []
    most_owned = {}
    for uid in sorted(allocator.assigned_pods):
        request = requests.get(uid)
        if request is not None:
            request = msgspec.structs.replace(request, default_bind=options.profile.bind)
        pod = _placed_pod(
            options, node_allocation, allocator.assigned_pods[uid], request, fixed.get(uid, "")
        )
        if pod is None:
            continue
        placed.append(pod)
        if request is not None and request.burst_milli and not pod.owner:
            # The pool of a pod that bursts must not shrink, since its limit must fit into the pool.
            for area in layout.nodes:
                if pod.place >> area.id & 1:
                    held = node_allocation.cpu_counts.full(1)
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
    """The pod, None if it has no CPUs of its own and is not bound to NUMA nodes of the node."""
    allocation = assigned.allocation
    amounts = {node: of for node, of in allocation.amounts.items() if node in options.node_ids}
    if not allocation.cpus and not amounts:
        return None
    memory = {
        node: rest
        for node, of in amounts.items()
        if (rest := {name: amount for name, amount in of.items() if name != _CPU})
    }
    cpu_milli = None
    place = allocation.cpus.mask
    if not place:
        cpu_milli = {node: of.get(_CPU, 0) for node, of in amounts.items()}
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
    if assigned.allocation.amounts.keys() - options.node_ids:
        return "it has amounts of NUMA nodes that the node does not have"
    online = CpuSet.from_int(options.layout.cpus if options.layout else 0)
    if offline := cpus - online:
        return f"its CPUs {offline} are not online"
    if shared := cpus & CpuSet.from_int(node_allocation.cpu_counts.full(2)):
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
        for node, amounts in node_allocation.options.totals.items()
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
    improve(arrangement, limit)
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
