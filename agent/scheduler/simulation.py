"""Places the pods of a trace with the scheduler's own code: each node is a `NodeAllocator`, whose
offers decide what fits, and the placement of its rules decides which node is best.

The protocol is that of the published results for the openb traces (Weng et al., USENIX ATC 2023):
all pods of the trace, and pods drawn with replacement until they request a given part of all GPUs,
arrive in random order. No pod leaves, and none that fits is refused. The order of the nodes is
random too.

kube-scheduler compares the sums of a node before it asks the extender; `Room.fits` does so here.
Offers are made in the order of the verdicts, best first, so the first one that is granted is the
one that the scheduler would choose among all."""

from __future__ import annotations

import random
import statistics
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heappop, heappush
from math import inf
from typing import Final

import msgspec

from agent.allocate.node_allocator.allocator import NodeAllocator
from agent.allocate.node_allocator.answer import Granted
from agent.allocate.node_allocator.pod_request import PodRequest, request_of
from agent.allocate.node_allocator.properties import AllocatorRules, node_properties
from agent.allocate.placement.demand import FULL, Demand, PodKind
from agent.allocate.placement.residual import placement
from agent.allocate.placement.rivals import Fragmentation
from agent.model.apiobjects import from_object
from agent.model.cpu.policies import PlacementPolicy
from agent.model.devices.device_object import Device, DeviceObject, DeviceType
from agent.model.nrt.node_status import GPU_CORE, GPU_MEMORY_RATIO, GPU_MODEL
from agent.scheduler.traces import TraceNode, arrivals, shuffled

_PERCENT: Final = 100
_SETTLED: Final = 3.0
_MEASURED: Final = 2.0
"""Mean lifetimes of a pod until averages begin, and over which they go."""
_MARKS: Final = (1.0, 1.3)
"""Parts of all GPUs whose requests are reported."""


class LoadPoint(msgspec.Struct, frozen=True):
    """Percent of all GPUs: requested by the pods that have arrived, and allocated."""

    load: float
    allocated: float


class TraceRun(msgspec.Struct, frozen=True):
    """One seed. `marks`: the allocated percent at a load; `fragmented`: the percent that typical
    pods can't use at a load of 100; None if the load is below."""

    curve: tuple[LoadPoint, ...]
    marks: Mapping[float, float]
    fragmented: float | None


class SeedSpread(msgspec.Struct, frozen=True):
    """Over the seeds."""

    mean: float
    stdev: float


class PolicyResult(msgspec.Struct, frozen=True):
    """Of one policy; None: the load is not reached."""

    alloc_pct_at_100: SeedSpread | None
    alloc_pct_at_130: SeedSpread | None
    frag_pct_at_100: SeedSpread | None


class TraceOccupancy(msgspec.Struct, frozen=True):
    """One seed with departures, averages over time: percent of all GPUs, pods in the queue;
    `longest_wait` in mean lifetimes of a pod."""

    allocated: float
    queued: float
    longest_wait: float


class OccupancyResult(msgspec.Struct, frozen=True):
    """Of one policy with departures."""

    alloc_pct_mean: SeedSpread
    queued_pods_mean: SeedSpread
    longest_wait_lifetimes: SeedSpread


class SimulationReport(msgspec.Struct, frozen=True):
    """By policy."""

    policies: Mapping[str, PolicyResult | OccupancyResult]


class TraceCluster:
    """The nodes in their order, each with its allocator, under the placement of a policy, which is
    rebuilt from the pods that were seen."""

    def __init__(
        self,
        nodes: Sequence[TraceNode],
        policy: PlacementPolicy,
        ties: random.Random,
        known: Demand | None = None,
    ) -> None:
        """`ties`: where equal verdicts of BestFit are drawn. `known`: the pods to expect, if they
        are known beforehand."""
        self._policy, self._ties, self._fixed = policy, ties, known is not None
        self._demand, self._built_at = known or Demand(), 0
        self.allocators = [_allocator(f"n{number:05d}", node) for number, node in enumerate(nodes)]
        self._sites = [each.room.site for each in self.allocators]
        self._requests: dict[PodKind, PodRequest] = {}
        self._rows: dict[PodKind, tuple[list[float], int]] = {}
        self._changed: list[int] = []
        self._names = 0
        self.gpus = sum(each.gpus for each in nodes)
        if self._fixed:
            self._rebuild()

    def place(self, kind: PodKind) -> str | None:
        """Places a pod and returns its uid; None: it fits nowhere."""
        costs = self._costs(kind)
        while (best := min(costs)) < inf:
            place = costs.index(best)
            if self._policy is PlacementPolicy.BEST_FIT:
                place = self._ties.choice([at for at, each in enumerate(costs) if each == best])
            allocator = self.allocators[place]
            offer = allocator.offer(self.request(kind))
            if isinstance(offer, Granted):
                self._names += 1
                return self._commit(allocator, place, offer, f"{place}/{self._names}")
            costs[place] = inf
        return None

    def leave(self, uid: str) -> None:
        place = int(uid.partition("/")[0])
        self.allocators[place].release(uid)
        self._changed.append(place)

    def fragmented(self, meter: Fragmentation) -> float:
        """Percent of all GPUs."""
        idle = sum(meter.of_room(each.room) for each in self.allocators)
        return 100 * idle / FULL / self.gpus

    def _commit(self, allocator: NodeAllocator, place: int, offer: Granted, uid: str) -> str:
        request = offer.pod_request
        resources = msgspec.structs.replace(request.resources, uid=uid)
        allocator.commit(offer.to(msgspec.structs.replace(request, resources=resources)))
        self._changed.append(place)
        return uid

    def see(self, kind: PodKind) -> None:
        """Counts a pod that has arrived."""
        if self._fixed:
            return
        self._demand.add(kind)
        if self._demand.due(self._built_at):
            self._rebuild()

    def _rebuild(self) -> None:
        self._built_at = self._demand.pods
        rules = AllocatorRules(placement=placement(self._policy, self._demand.counts, self._sites))
        self._rows.clear()
        self._changed.clear()
        for place, each in enumerate(self.allocators):
            properties = msgspec.structs.replace(each.properties, rules=rules)
            self.allocators[place] = each.with_properties(properties)

    def _costs(self, kind: PodKind) -> list[float]:
        """Of each node; infinite where the pod does not fit."""
        request, allocators = self.request(kind), self.allocators
        costs, seen = self._rows.get(kind) or ([inf] * len(allocators), -1)
        stale = range(len(allocators)) if seen < 0 else set(self._changed[seen:])
        for place in stale:
            room = allocators[place].room
            verdict = allocators[place].verdict(request) if room.fits(kind) else None
            costs[place] = inf if verdict is None else verdict.cost
        self._rows[kind] = costs, len(self._changed)
        return costs

    def request(self, kind: PodKind) -> PodRequest:
        found = self._requests.get(kind)
        if found is None:
            found = self._requests[kind] = request_of(from_object(_pod(kind)))
        return found


def _allocator(name: str, node: TraceNode) -> NodeAllocator:
    whole = {GPU_CORE: _PERCENT, GPU_MEMORY_RATIO: _PERCENT}
    devices = tuple(
        Device(DeviceType.GPU, f"{name}-{minor}", minor, whole) for minor in range(node.gpus)
    )
    return NodeAllocator(
        node_properties(
            name,
            {GPU_MODEL: node.model},
            None,
            DeviceObject(name, devices) if devices else None,
            allocatable={"cpu": node.cpu, "memory": node.memory},
        )
    )


def _pod(kind: PodKind) -> object:
    amounts = {"cpu": f"{kind.cpu}m", "memory": str(kind.memory)}
    if kind.gpus:
        percent = kind.gpus * kind.milli * _PERCENT // FULL
        amounts |= {GPU_CORE: str(percent), GPU_MEMORY_RATIO: str(percent)}
    return {
        "metadata": {"name": "pod", "namespace": "default", "uid": "pod"},
        "spec": {"containers": [{"name": "main", "resources": {"requests": amounts}}]},
    }


def run(
    nodes: Sequence[TraceNode],
    pods: Sequence[PodKind],
    policy: PlacementPolicy,
    load: float,
    seed: int,
    progress: Callable[[float], None] = lambda part: None,
) -> TraceRun:
    """`progress` is called with the part that is done."""
    cluster = TraceCluster(
        shuffled(nodes, seed), policy, random.Random(seed), _typical(policy, pods)
    )
    arriving = arrivals(pods, cluster.gpus, load, seed)
    meter = Fragmentation(_demand(pods).counts)
    asked = got = 0
    curve, marks, fragmented = [LoadPoint(0.0, 0.0)], dict[float, float](), None
    for number, kind in enumerate(arriving, start=1):
        gpu = kind.gpus * kind.milli
        asked += gpu
        cluster.see(kind)
        if cluster.place(kind) is not None:
            got += gpu
        allocated = got / (cluster.gpus * FULL) * 100
        for mark in _MARKS:
            if mark not in marks and asked >= mark * cluster.gpus * FULL:
                marks[mark] = allocated
                if mark == 1.0:
                    fragmented = cluster.fragmented(meter)
        if number % 50 == 0 or number == len(arriving):
            curve.append(LoadPoint(asked / (cluster.gpus * FULL) * 100, allocated))
            progress(number / len(arriving))
    return TraceRun(tuple(curve), marks, fragmented)


def result(runs: Sequence[TraceRun]) -> PolicyResult:
    full, over = _MARKS
    return PolicyResult(
        _figure([each.marks.get(full) for each in runs]),
        _figure([each.marks.get(over) for each in runs]),
        _figure([each.fragmented for each in runs]),
    )


def mean_curve(curves: Sequence[Sequence[LoadPoint]]) -> list[tuple[float, float]]:
    """The mean of the curves of the seeds, at each whole percent of load that all reach."""
    last = min(curve[-1].load for curve in curves)
    loads = [float(load) for load in range(int(last) + 1)]
    return [(load, sum(_at(curve, load) for curve in curves) / len(curves)) for load in loads]


def _at(curve: Sequence[LoadPoint], load: float) -> float:
    before = curve[0]
    for point in curve:
        if point.load >= load:
            part = (
                (load - before.load) / (point.load - before.load)
                if point.load > before.load
                else 1.0
            )
            return before.allocated + part * (point.allocated - before.allocated)
        before = point
    return before.allocated


def run_with_departures(
    nodes: Sequence[TraceNode],
    pods: Sequence[PodKind],
    policy: PlacementPolicy,
    load: float,
    seed: int,
    progress: Callable[[float], None] = lambda part: None,
) -> TraceOccupancy:
    """Pods of the trace arrive at random, and stay for an exponentially distributed time after they
    have started; in the mean, their requests add up to `load`. A pod that fits nowhere waits, and
    the first in the queue that fits starts when another one leaves. Averages over time begin when
    the cluster has settled."""
    drawn = random.Random(seed)
    cluster = TraceCluster(
        shuffled(nodes, seed), policy, random.Random(seed), _typical(policy, pods)
    )
    mean = sum(each.gpus * each.milli for each in pods) / len(pods)
    each_unit = load * cluster.gpus * FULL / mean
    end = _SETTLED + _MEASURED
    ends: list[tuple[float, str, int]] = []
    queue: dict[PodKind, deque[float]] = {}
    now = held = waiting = 0
    arrives = drawn.expovariate(each_unit)
    time = allocated = queued = waited = 0.0
    while time < end:
        at = min(arrives, ends[0][0] if ends else inf, end)
        span = max(0.0, at - max(time, _SETTLED))
        allocated += span * held
        queued += span * waiting
        time = at
        if time >= end:
            break
        if time < arrives:
            _, uid, gpu = heappop(ends)
            cluster.leave(uid)
            held -= gpu
            starting = sorted(queue, key=lambda kind: queue[kind][0])
        else:
            kind = drawn.choice(pods)
            cluster.see(kind)
            arrives = time + drawn.expovariate(each_unit)
            queue.setdefault(kind, deque()).append(time)
            waiting += 1
            starting = [kind]
            now += 1
            if now % 500 == 0:
                progress(time / end)
        for kind in starting:
            while kind in queue and (started := cluster.place(kind)) is not None:
                gpu = kind.gpus * kind.milli
                heappush(ends, (time + drawn.expovariate(1.0), started, gpu))
                since = queue[kind].popleft()
                waited = max(waited, time - since)
                held += gpu
                waiting -= 1
                if not queue[kind]:
                    del queue[kind]
    progress(1.0)
    whole = _MEASURED * cluster.gpus * FULL
    return TraceOccupancy(100 * allocated / whole, queued / _MEASURED, waited)


def occupancy(runs: Sequence[TraceOccupancy]) -> OccupancyResult:
    return OccupancyResult(
        _some([each.allocated for each in runs]),
        _some([each.queued for each in runs]),
        _some([each.longest_wait for each in runs]),
    )


def _typical(policy: PlacementPolicy, pods: Sequence[PodKind]) -> Demand | None:
    """FGD knows the pods of the trace, as published; all others see the pods that arrive."""
    if policy is not PlacementPolicy.FGD:
        return None
    return _demand(pods)


def _demand(pods: Iterable[PodKind]) -> Demand:
    found = Demand()
    for each in pods:
        found.add(each)
    return found


def _figure(values: Sequence[float | None]) -> SeedSpread | None:
    found = [each for each in values if each is not None]
    return _some(found) if found and len(found) == len(values) else None


def _some(found: Sequence[float]) -> SeedSpread:
    return SeedSpread(round(statistics.mean(found), 4), round(statistics.pstdev(found), 4))
