"""Simulates a cluster: places the pods of a trace with the scheduler's own code. Each node is a
`NodeAllocator`; its offers decide whether a pod fits, and its placement rates it.

`run` follows the protocol of the published results for the openb traces (Weng et al., USENIX ATC
2023). The pods of the trace arrive in random order, and more pods, drawn from the trace with
replacement, until they request a given part of all GPUs. A pod that fits is placed, and no pod
leaves. The order of the nodes is random too. In `run_with_departures` pods leave after some time.

The traces are CSV files with the columns of the openb traces: nodes, pods, and the order in which
pods arrive. The column `gpu_milli` has the requested thousandths of each GPU, and `gpu_spec` the
allowed models, separated by `|`.

`FreeAmounts.fits` compares the sums of a node, as kube-scheduler does before it calls the extender.
The nodes are tried in the order of their ratings, the best first. So the first node with an offer
is the one that the scheduler would choose."""

from __future__ import annotations

import csv
import random
import statistics
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from math import inf
from typing import Final

import msgspec

from agent.allocate.node_allocator.allocator import NodeAllocator
from agent.allocate.node_allocator.answer import NodeOffer
from agent.allocate.node_allocator.properties import AllocatorRules, node_properties
from agent.allocate.placement.demand import Demand
from agent.allocate.placement.published import Fragmentation
from agent.allocate.placement.residual import placement
from agent.model.cpu.policies import PlacementPolicy
from agent.model.devices.device_object import (
    GPU_CORE,
    GPU_MEMORY_RATIO,
    Device,
    DeviceObject,
    DeviceType,
)
from agent.model.nrt.node_status import GPU_MODEL
from agent.model.pod.apiobjects import from_object
from agent.model.pod_request import GPU_MILLI, PodKind, PodRequest, request_of

FIRST_SEED: Final = 42
_MIB: Final = 1 << 20
_MAX_GPUS: Final = 64

_NODE_COLUMNS: Final = ("cpu_milli", "memory_mib", "gpu", "model")
_POD_COLUMNS: Final = ("cpu_milli", "memory_mib", "num_gpu", "gpu_milli")


class TraceError(ValueError):
    """A trace that can't be read; the message names file, line and column."""


class TraceNode(msgspec.Struct, frozen=True):
    """A node with GPUs of one `model`, "" without GPUs."""

    cpu_milli: int
    memory_bytes: int
    gpus: int
    model: str


def read_nodes(lines: Iterable[str], title: str) -> list[TraceNode]:
    """Raises TraceError. `title` names the file in errors."""
    nodes = [
        TraceNode(row["cpu_milli"], row["memory_mib"] * _MIB, row["gpu"], texts["model"] or "")
        for row, texts in _rows(lines, title, _NODE_COLUMNS, {"model"}, {"gpu": _MAX_GPUS})
    ]
    if not any(each.gpus for each in nodes):
        raise TraceError(f"{title}: no node has GPUs")
    return nodes


def read_pods(lines: Iterable[str], title: str) -> list[PodKind]:
    """Raises TraceError. Parts of GPUs are rounded up to whole percents, the unit of pods'
    requests. `title` names the file in errors."""
    pods = []
    limits = {"num_gpu": _MAX_GPUS, "gpu_milli": GPU_MILLI}
    for row, texts in _rows(lines, title, _POD_COLUMNS, set(), limits):
        gpus = row["num_gpu"]
        step = GPU_MILLI // _PERCENT
        gpu_milli = -(-row["gpu_milli"] // step) * step if gpus else 0
        models = tuple(sorted({*(texts.get("gpu_spec") or "").split("|")} - {""}))
        pods.append(
            PodKind(
                row["cpu_milli"],
                row["memory_mib"] * _MIB,
                gpus if gpu_milli else 0,
                gpu_milli,
                models,
            )
        )
    if not any(each.gpus for each in pods):
        raise TraceError(f"{title}: no pod requests GPUs")
    return pods


def _rows(
    lines: Iterable[str],
    title: str,
    columns: Sequence[str],
    text_columns: set[str],
    limits: Mapping[str, int],
) -> Iterator[tuple[dict[str, int], dict[str, str]]]:
    """The numbers of each line by column, and its texts. `limits`: the largest number of a
    column."""
    reader = csv.DictReader(lines)
    if missing := [name for name in columns if name not in (reader.fieldnames or ())]:
        raise TraceError(f"{title}: line 1: no column {missing[0]}")
    try:
        for row in reader:
            numbers = {}
            for name in columns:
                if name in text_columns:
                    continue
                text = row[name] or ""
                if not (text.isascii() and text.isdigit() and len(text) <= 15):
                    where = f"{title}: line {reader.line_num}: {name}"
                    raise TraceError(f"{where}: {text!r} is not a whole number")
                numbers[name] = int(text)
                if (most := limits.get(name)) is not None and numbers[name] > most:
                    where = f"{title}: line {reader.line_num}: {name}"
                    raise TraceError(f"{where}: {text} is more than {most}")
            yield numbers, row
    except csv.Error as error:
        raise TraceError(f"{title}: line {reader.line_num}: {error}") from None


def arrivals(pods: Sequence[PodKind], gpus: int, load: float, seed: int) -> list[PodKind]:
    """All pods of the trace, and pods drawn from it until they request `load`, a part of all
    `gpus`, in the order in which they arrive."""
    drawn, requested_milli = random.Random(seed), sum(each.total_gpu_milli for each in pods)
    arriving = list(pods)
    while requested_milli < load * gpus * GPU_MILLI:
        arriving.append(chosen := drawn.choice(pods))
        requested_milli += chosen.total_gpu_milli
    drawn.shuffle(arriving)
    return arriving


def shuffled(nodes: Sequence[TraceNode], seed: int) -> list[TraceNode]:
    return random.Random(seed * 7 + 1).sample(list(nodes), len(nodes))


_PERCENT: Final = 100
_SETTLING_LIFETIMES: Final = 3.0
"""Mean lifetimes of a pod after which averages begin."""
_MEASURED_LIFETIMES: Final = 2.0
"""Mean lifetimes of a pod over which averages are taken."""
_REPORTED_LOADS: Final = (1.0, 1.3)
"""The loads at which the allocated part is reported, as parts of all GPUs."""


class LoadPoint(msgspec.Struct, frozen=True):
    """Percent of all GPUs: requested by the pods that have arrived, and allocated."""

    load: float
    allocated: float


class TraceRun(msgspec.Struct, frozen=True):
    """The result of one seed. `marks`: by reported load that was reached, the allocated percent of
    all GPUs. `fragmented`: the percent that typical pods can't use at a load of 1.0, None if the
    load stayed below."""

    curve: tuple[LoadPoint, ...]
    marks: Mapping[float, float]
    fragmented: float | None


class SeedSpread(msgspec.Struct, frozen=True):
    """A figure over the seeds."""

    mean: float
    stdev: float


class PolicyResult(msgspec.Struct, frozen=True):
    """The figures of one policy; None for a load that a seed did not reach."""

    alloc_pct_at_100: SeedSpread | None
    alloc_pct_at_130: SeedSpread | None
    frag_pct_at_100: SeedSpread | None


class TraceOccupancy(msgspec.Struct, frozen=True):
    """The result of one seed with departures. `allocated`: percent of all GPUs, `queued`: pods in
    the queue, both averaged over time. `longest_wait`: in mean lifetimes of a pod."""

    allocated: float
    queued: float
    longest_wait: float


class OccupancyResult(msgspec.Struct, frozen=True):
    """The figures of one policy with departures."""

    alloc_pct_mean: SeedSpread
    queued_pods_mean: SeedSpread
    longest_wait_lifetimes: SeedSpread


class SimulationReport(msgspec.Struct, frozen=True):
    """The figures by the name of the policy."""

    policies: Mapping[str, PolicyResult | OccupancyResult]


class TraceCluster:
    """The allocators of the nodes, in the order of the nodes. The placement is rebuilt from the
    pods that have arrived."""

    def __init__(
        self,
        nodes: Sequence[TraceNode],
        policy: PlacementPolicy,
        ties: random.Random,
        expected: Demand | None = None,
    ) -> None:
        """`ties`: it chooses among equal ratings of BestFit.
        `expected`: the placement is built once, from these pods instead of those that arrive."""
        self._policy, self._ties, self._fixed = policy, ties, expected is not None
        self._demand, self._built_from = expected or Demand(), 0
        self.allocators = [_allocator(f"n{number:05d}", node) for number, node in enumerate(nodes)]
        self._capacities = [each.free.capacity for each in self.allocators]
        self._requests: dict[PodKind, PodRequest] = {}
        self._cached_costs: dict[PodKind, tuple[list[float], int]] = {}
        """By kind, the cost of each node, and how many entries of `_changed` it includes."""
        self._changed: list[int] = []
        self._placed = 0
        self.gpus = sum(each.gpus for each in nodes)
        if self._fixed:
            self._rebuild()

    def place(self, kind: PodKind) -> str | None:
        """Places a pod and returns its uid; None if it fits on no node."""
        costs = self._costs(kind)
        while (best := min(costs)) < inf:
            node = costs.index(best)
            if self._policy is PlacementPolicy.BEST_FIT:
                node = self._ties.choice([at for at, each in enumerate(costs) if each == best])
            offer = self.allocators[node].offer(self.request(kind))
            if isinstance(offer, NodeOffer):
                return self._commit(node, offer)
            costs[node] = inf
        return None

    def leave(self, uid: str) -> None:
        node = int(uid.partition("/")[0])
        self.allocators[node].release(uid)
        self._changed.append(node)

    def fragmented(self, fragmentation: Fragmentation) -> float:
        """The percent of all GPUs that a typical pod can't use."""
        unusable = sum(fragmentation.of_node(each.free) for each in self.allocators)
        return 100 * unusable / GPU_MILLI / self.gpus

    def _commit(self, node: int, offer: NodeOffer) -> str:
        """Allocates the offer for a new pod, and returns the pod's uid: INDEX OF THE
        NODE/NUMBER."""
        self._placed += 1
        uid, request = f"{node}/{self._placed}", offer.pod_request
        resources = msgspec.structs.replace(request.resources, uid=uid)
        self.allocators[node].commit(
            offer.to(msgspec.structs.replace(request, resources=resources))
        )
        self._changed.append(node)
        return uid

    def count_arrival(self, kind: PodKind) -> None:
        """Counts a pod that has arrived, for the placement of later ones."""
        if self._fixed:
            return
        self._demand.add(kind)
        if self._demand.due(self._built_from):
            self._rebuild()

    def _rebuild(self) -> None:
        self._built_from = self._demand.pods
        rules = AllocatorRules(
            placement=placement(self._policy, self._demand.counts, self._capacities)
        )
        self._cached_costs.clear()
        self._changed.clear()
        for node, each in enumerate(self.allocators):
            properties = msgspec.structs.replace(each.properties, rules=rules)
            self.allocators[node] = each.with_properties(properties)

    def _costs(self, kind: PodKind) -> list[float]:
        """The cost of each node; infinite where the pod does not fit."""
        request, allocators = self.request(kind), self.allocators
        costs, included = self._cached_costs.get(kind) or ([inf] * len(allocators), -1)
        stale = range(len(allocators)) if included < 0 else set(self._changed[included:])
        for node in stale:
            free = allocators[node].free
            rating = allocators[node].rating(request) if free.fits(kind) else None
            costs[node] = inf if rating is None else rating.cost
        self._cached_costs[kind] = costs, len(self._changed)
        return costs

    def request(self, kind: PodKind) -> PodRequest:
        """The request of a pod of this kind."""
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
            allocatable={"cpu": node.cpu_milli, "memory": node.memory_bytes},
        )
    )


def _pod(kind: PodKind) -> object:
    amounts = {"cpu": f"{kind.cpu_milli}m", "memory": str(kind.memory_bytes)}
    if kind.gpus:
        percent = kind.total_gpu_milli * _PERCENT // GPU_MILLI
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
    """Pods arrive and stay. `load`: the requests of all pods, as a part of all GPUs. `progress` is
    called with the part that is done."""
    cluster = TraceCluster(
        shuffled(nodes, seed), policy, random.Random(seed), _expected(policy, pods)
    )
    arriving = arrivals(pods, cluster.gpus, load, seed)
    fragmentation = Fragmentation(_demand(pods).counts)
    all_milli = cluster.gpus * GPU_MILLI
    requested_milli = allocated_milli = 0
    curve, marks, fragmented = [LoadPoint(0.0, 0.0)], dict[float, float](), None
    for number, kind in enumerate(arriving, start=1):
        milli = kind.total_gpu_milli
        requested_milli += milli
        cluster.count_arrival(kind)
        if cluster.place(kind) is not None:
            allocated_milli += milli
        allocated = allocated_milli / all_milli * 100
        for mark in _REPORTED_LOADS:
            if mark not in marks and requested_milli >= mark * all_milli:
                marks[mark] = allocated
                if mark == 1.0:
                    fragmented = cluster.fragmented(fragmentation)
        if number % 50 == 0 or number == len(arriving):
            curve.append(LoadPoint(requested_milli / all_milli * 100, allocated))
            progress(number / len(arriving))
    return TraceRun(tuple(curve), marks, fragmented)


def policy_result(runs: Sequence[TraceRun]) -> PolicyResult:
    full, over = _REPORTED_LOADS
    return PolicyResult(
        _spread_if_all([each.marks.get(full) for each in runs]),
        _spread_if_all([each.marks.get(over) for each in runs]),
        _spread_if_all([each.fragmented for each in runs]),
    )


def run_with_departures(
    nodes: Sequence[TraceNode],
    pods: Sequence[PodKind],
    policy: PlacementPolicy,
    load: float,
    seed: int,
    progress: Callable[[float], None] = lambda part: None,
) -> TraceOccupancy:
    """Pods of the trace arrive at random times. After its start, a pod stays for an exponentially
    distributed time, whose mean is the unit of time. In the mean, the requests of the pods present
    are `load`, a part of all GPUs. A pod that fits on no node waits in the queue. Whenever a pod
    leaves, the waiting pods are tried kind by kind, the kind of the longest wait first. Averages
    over time begin when the cluster has settled."""
    drawn = random.Random(seed)
    cluster = TraceCluster(
        shuffled(nodes, seed), policy, random.Random(seed), _expected(policy, pods)
    )
    mean_milli = sum(each.total_gpu_milli for each in pods) / len(pods)
    arrival_rate = load * cluster.gpus * GPU_MILLI / mean_milli
    end = _SETTLING_LIFETIMES + _MEASURED_LIFETIMES
    departures: list[tuple[float, str, int]] = []
    queue: dict[PodKind, deque[float]] = {}
    arrived = allocated_milli = waiting = 0
    next_arrival = drawn.expovariate(arrival_rate)
    now = allocated_sum = queued_sum = longest_wait = 0.0
    while now < end:
        event = min(next_arrival, departures[0][0] if departures else inf, end)
        measured = max(0.0, event - max(now, _SETTLING_LIFETIMES))
        allocated_sum += measured * allocated_milli
        queued_sum += measured * waiting
        now = event
        if now >= end:
            break
        if now < next_arrival:
            _, uid, milli = heappop(departures)
            cluster.leave(uid)
            allocated_milli -= milli
            tried = sorted(queue, key=lambda kind: queue[kind][0])
        else:
            kind = drawn.choice(pods)
            cluster.count_arrival(kind)
            next_arrival = now + drawn.expovariate(arrival_rate)
            queue.setdefault(kind, deque()).append(now)
            waiting += 1
            tried = [kind]
            arrived += 1
            if arrived % 500 == 0:
                progress(now / end)
        for kind in tried:
            while kind in queue and (started := cluster.place(kind)) is not None:
                milli = kind.total_gpu_milli
                heappush(departures, (now + drawn.expovariate(1.0), started, milli))
                longest_wait = max(longest_wait, now - queue[kind].popleft())
                allocated_milli += milli
                waiting -= 1
                if not queue[kind]:
                    del queue[kind]
    progress(1.0)
    whole = _MEASURED_LIFETIMES * cluster.gpus * GPU_MILLI
    return TraceOccupancy(
        100 * allocated_sum / whole, queued_sum / _MEASURED_LIFETIMES, longest_wait
    )


def occupancy_result(runs: Sequence[TraceOccupancy]) -> OccupancyResult:
    return OccupancyResult(
        _spread([each.allocated for each in runs]),
        _spread([each.queued for each in runs]),
        _spread([each.longest_wait for each in runs]),
    )


def _expected(policy: PlacementPolicy, pods: Sequence[PodKind]) -> Demand | None:
    """The placement of FGD is built from the pods of the trace, as published; those of all other
    policies from the pods that arrive."""
    if policy is not PlacementPolicy.FGD:
        return None
    return _demand(pods)


def _demand(pods: Iterable[PodKind]) -> Demand:
    found = Demand()
    for each in pods:
        found.add(each)
    return found


def _spread_if_all(values: Sequence[float | None]) -> SeedSpread | None:
    """None if a seed has no value."""
    found = [each for each in values if each is not None]
    return _spread(found) if found and len(found) == len(values) else None


def _spread(values: Sequence[float]) -> SeedSpread:
    return SeedSpread(round(statistics.mean(values), 4), round(statistics.pstdev(values), 4))
