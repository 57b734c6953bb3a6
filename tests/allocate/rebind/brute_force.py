"""The best measures of a small node, by enumeration of all places of all pods as sets of CPUs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import TypeAlias

from agent.allocate.rebind.arrangement import Measures, PlacedNode, PlacedPod
from agent.model.cpu.cpuset import members
from agent.model.cpu.policies import ExclusivePolicy

Places: TypeAlias = tuple[frozenset[int], ...]
"""By pod: the CPUs that it owns, or the NUMA nodes whose CPUs it shares."""


class Rules:
    """The node as sets."""

    def __init__(self, node: PlacedNode) -> None:
        self.node = node
        self.pods = node.pods
        self.assignable = frozenset(members(node.assignable))
        layout = node.layout
        self.areas = {area.id: frozenset(members(area.cpus)) for area in layout.nodes}
        self.cores = [
            frozenset(members(layout.expand(1 << lead))) for lead in members(layout.leads)
        ]
        self._misfits: dict[tuple[str, frozenset[int]], tuple[int, int]] = {}
        self.threads = max(map(len, self.cores))
        self.start: Places = tuple(frozenset(members(pod.place)) for pod in node.pods)

    def misfit(self, pod: PlacedPod, place: frozenset[int]) -> tuple[int, int]:
        key = pod.uid, place
        if key not in self._misfits:
            self._misfits[key] = self.crossings(pod, place), self.broken(pod, place)
        return self._misfits[key]

    def crossings(self, pod: PlacedPod, place: frozenset[int]) -> int:
        if pod.cpu_milli is None:
            sizes = [len(area & self.assignable) for area in self.areas.values()]
            need, used = len(place), sum(1 for area in self.areas.values() if area & place)
        else:
            sizes = [room["cpu"] for room in self.node.rooms.values() if "cpu" in room]
            need, used = sum(pod.cpu_milli.values()), len(place)
        fewest = next(
            (n for n in range(1, len(sizes)) if sum(sorted(sizes)[-n:]) >= need),
            max(1, len(sizes)),
        )
        return max(0, used - fewest)

    def broken(self, pod: PlacedPod, place: frozenset[int]) -> int:
        if pod.cpu_milli is not None:
            return 0
        cores = sum(1 for core in self.cores if core & place)
        return len(place) - cores if pod.spread else cores - -(-len(place) // self.threads)

    def measures(self, places: Places) -> Measures:
        owned = frozenset().union(
            *(place for pod, place in zip(self.pods, places, strict=True) if pod.owner)
        )
        shared = frozenset().union(
            *(place for pod, place in zip(self.pods, places, strict=True) if not pod.owner)
        )
        misfits = [self.misfit(*pair) for pair in zip(self.pods, places, strict=True)]
        return Measures(
            sum(crossings for crossings, _ in misfits),
            sum(broken for _, broken in misfits),
            sum(1 for core in self.cores if core & owned or not core <= self.assignable),
            sum(1 for id_, area in self.areas.items() if area & owned or id_ in shared),
        )

    def demand(self, places: Places) -> dict[tuple[int, str], int]:
        found: dict[tuple[int, str], int] = {}

        def add(id_: int, name: str, amount: int) -> None:
            found[id_, name] = found.get((id_, name), 0) + amount

        for index, place in enumerate(places):
            pod, same = self.pods[index], place == self.start[index]
            for id_, area in self.areas.items():
                here = len(area & place) if pod.owner else int(id_ in place)
                if not here:
                    continue
                if pod.owner:
                    add(id_, "cpu", here * self.node.cpu_cost_milli)
                    add(id_, "owned", here)
                elif pod.cpu_milli is not None:
                    milli = pod.cpu_milli
                    add(id_, "cpu", milli[id_] if same else sum(milli.values()))
            # The pods of these tests have memory that fits one NUMA node.
            if pod.memory and not same:
                here_ids = [
                    id_
                    for id_, area in self.areas.items()
                    if (area & place if pod.owner else id_ in place)
                ]
                left = len(place)
                amount = sum(each["memory"] for each in pod.memory.values())
                for id_ in here_ids:
                    part = len(self.areas[id_] & place) if pod.owner else 1
                    add(id_, "memory", amount * part // left)
                    amount, left = amount - amount * part // left, left - part
            elif pod.memory:
                for id_, amounts in pod.memory.items():
                    add(id_, "memory", amounts["memory"])
        return found

    def allowed(self, places: Places) -> bool:
        owned: set[int] = set()
        moved = [i for i, place in enumerate(places) if place != self.start[i]]
        for pod, place in zip(self.pods, places, strict=True):
            if pod.owner and owned & place:
                return False
            owned |= place if pod.owner else set()
        for index in moved:
            pod, now, before = self.pods[index], places[index], self.start[index]
            if (
                pod.fixed
                or self.crossings(pod, now) > self.crossings(pod, before)
                or self.broken(pod, now) > self.broken(pod, before)
                or (pod.owner and not now <= self.assignable)
                or (not pod.owner and len(now) != 1)
            ):
                return False
            on = {
                id_
                for id_, area in self.areas.items()
                if (area & now if pod.owner else {id_} & now)
            }
            if pod.near is not None and not on <= pod.near:
                return False
            for other, (another, place) in enumerate(zip(self.pods, places, strict=True)):
                if other == index or another.exclusive is not pod.exclusive or not another.owner:
                    continue
                if pod.exclusive is ExclusivePolicy.PCPU_LEVEL and any(
                    core & now and core & place for core in self.cores
                ):
                    return False
                if pod.exclusive is ExclusivePolicy.NUMA_NODE_LEVEL and any(
                    area & now and area & place for area in self.areas.values()
                ):
                    return False
        before_demand, demand = self.demand(self.start), self.demand(places)
        for (id_, name), amount in demand.items():
            limit = (
                self.node.most_owned.get(id_)
                if name == "owned"
                else self.node.rooms.get(id_, {}).get(name)
            )
            if limit is not None and amount > max(limit, before_demand.get((id_, name), 0)):
                return False
        return True

    def all_places(self) -> Iterator[Places]:
        """Places in which no CPU has two owners; fixed pods stay."""

        def extend(index: int, taken: frozenset[int]) -> Iterator[Places]:
            if index == len(self.pods):
                yield ()
                return
            pod = self.pods[index]
            if pod.fixed:
                options = [self.start[index]]
            elif pod.owner:
                free = sorted((self.assignable | self.start[index]) - taken)
                options = [frozenset(each) for each in combinations(free, len(self.start[index]))]
            else:
                options = [self.start[index], *(frozenset({id_}) for id_ in self.areas)]
            for place in options:
                if pod.owner and place & taken:
                    continue
                for rest in extend(index + 1, taken | place if pod.owner else taken):
                    yield (place, *rest)

        yield from extend(0, frozenset())


def best(node: PlacedNode, max_moves: int | None = None) -> tuple[Measures, int]:
    """The best measures, and the fewest moved pods that reach them."""
    rules = Rules(node)
    before = rules.measures(rules.start)
    found = (before, 0)
    for places in rules.all_places():
        moves = sum(1 for i, place in enumerate(places) if place != rules.start[i])
        if max_moves is not None and moves > max_moves:
            continue
        measures = rules.measures(places)
        if (measures, moves) < found and measures.no_worse_than(before) and rules.allowed(places):
            found = (measures, moves)
    return found
