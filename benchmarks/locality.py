"""CPUs near to GPUs: what a cluster of GPU nodes makes of the same jobs under five sets of rules.

40 nodes of 2 NUMA nodes with 4 GPUs each, and 40 nodes of 4 with 2; 128 CPUs a node, of which 2 are
reserved. Jobs of 1, 2, 4 and 8 GPUs with 12 CPUs a GPU arrive at random beside pods without GPUs;
all are Guaranteed with whole CPUs, and stay for an exponentially distributed time of an hour on
average. On average those that have arrived request 85 or 90 % of the GPUs, and 80 % of the CPUs; a
scheduler that keeps 12 CPUs beside each free GPU can carry this load. All arms get the same pods in
the same order:

- `stock_single_numa_node`, `stock_best_effort`: kube-scheduler, which counts the amounts of whole
  nodes and scores by LeastAllocated and BalancedAllocation; equal nodes are drawn at random. The
  kubelets have the CPU manager policy static, and the topology manager policy of the name.
- `nrt_match_single_numa_node`: the same kubelets with single-numa-node, and kube-scheduler with
  NodeResourceTopologyMatch (LeastAllocated), whose reports are always current.
- `prefer`, `require`: Topolet's scheduler by the handlers of its extender, with kube-scheduler's
  scores where the extender's are equal. The kubelets have no CPU manager and the topology manager
  policy best-effort; the CPUs of a job are those that Topolet's agent gives to containers with
  devices. `require`: each job has the annotation of that policy.

A pod that its kubelet rejects (TopologyAffinityError) is replaced as a Job does, after 10 s, and
twice as long after each further rejection, up to 10 minutes. When a pod ends, the waiting pods are
tried in order, and smaller ones may overtake. The measurement begins after a warm-up.

single-numa-node can't run a job of more GPUs than one NUMA node has: the stock scheduler sends it
again until its Job gives up (`backoffLimit` 6), and NodeResourceTopologyMatch leaves it Pending.
`rejections` does not count these pods; `rejections_too_large` counts them alone. Their GPUs are
missing in `gpus_in_use` all the same.

Figures: `rejections`: per 1,000 pods that arrive. `gpus_in_use`: percent of all GPUs over the time.
`near_percent`: of the jobs that start, those whose GPUs are on the fewest NUMA nodes that have as
many on an empty machine, and whose CPUs are on no others. `wait_8_mean`, `wait_8_p99`: of jobs of 8
GPUs, from their arrival to their start, or to the end of the run for those that did not start
(`unstarted_8_percent`). `gpus_in_use_vs_best`, `gpus_in_use_vs_best_require`: Topolet's arm and the
best other one, on the machine and under the load with the least ratio. Nothing is timed, and every
run has the same result.
"""

from __future__ import annotations

import enum
import functools
import heapq
import json
import random
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import msgspec

from agent.allocate.kubelet.static_policy import StaticOptions
from agent.allocate.locality import Distances, Key, LocalityInput, NearContainer, NearNodes, places
from agent.allocate.nrt.filter import filter as by_zones
from agent.allocate.nrt.node import zoned_node
from agent.allocate.nrt.score import score as zone_score
from agent.allocate.numa.hint import TopologyHint, ids, of_nodes, subsets
from agent.allocate.refusal import Refusal
from agent.kube.objects import Change, ChangeKind, ObjectKey
from agent.model.cpu import layout as layouts
from agent.model.cpu.cpuset import EMPTY, CpuSet
from agent.model.cpu.layout import Layout
from agent.model.cpu.policies import NumaPolicy, Strategy
from agent.model.cpu.topology import NumaNode, Topology
from agent.model.devices.device_object import Portion
from agent.model.nrt.node_annotations import NearRequests, NodeConfiguration
from agent.model.nrt.resource_topology import NodeTopology, fingerprint_of
from agent.model.pod import apiobjects
from agent.model.pod.annotations import DEVICE_LOCALITY
from agent.model.pod.numa_request import NumaRequest, numa_request_of
from agent.model.pod_request import ContainerCpu, PodCpu
from agent.model.settings.plugin_args import Rules, defaults
from agent.node.node_resource_topology import Allocated, ReportValues, Reserved, build
from agent.node.report import near_requests
from agent.scheduler.extender.equivalence_cache import EquivalenceCache
from agent.scheduler.extender.extender import ExtenderArgs, ExtenderPreemptionResult
from agent.scheduler.extender.handlers import ExtenderHandlers
from agent.scheduler.rules import allocator_rules
from agent.scheduler.state import records
from agent.scheduler.state.cluster import SchedulerCache
from agent.scheduler.state.group_reservations import GroupReservations
from agent.scheduler.state.pod_info import PodInfoCache, PodName
from agent.scheduler.state.records import AgentSelector, Unreadable
from benchmarks.common import Row, arguments, percentile, ratio_row, report, value_row
from conformance import machines, static_cpu_manager
from conformance.merge_hints import kubelet_merge
from conformance.static_cpu_manager import Exclusive, StaticPolicy

NODES: Final = 40
GPU: Final = "nvidia.com/gpu"
"""The nodes have no Device object, so that Topolet's scheduler leaves the choice of the GPUs to the
kubelet."""
CPUS_OF_GPU: Final = 12
MEMORY_OF_GPU: Final = 64 << 30
MEMORY_OF_CPU: Final = 4 << 30
NODE_MEMORY: Final = 1 << 40
CONTAINER: Final = "main"
GUARANTEED: Final = "guaranteed"
NAMESPACE: Final = "default"

JOB_SHARES: Final = {1: 0.40, 2: 0.25, 4: 0.20, 8: 0.15}
"""The part of the jobs that have so many GPUs."""
LARGEST: Final = 8
CPU_LOAD: Final = 0.8
"""The part of all CPUs that all pods request together."""
PLAIN_CPUS: Final = (4, 8, 16)
"""The CPUs of pods without GPUs, each as frequent."""

HOUR: Final = 3600.0
FIRST_BACKOFF: Final = 10.0
MAX_BACKOFF: Final = 600.0
BACKOFF_LIMIT: Final = 6
"""The defaults of Jobs (pkg/controller/job), in seconds."""


class Extent(msgspec.Struct, frozen=True):
    """The extent of the measurement. The times are in hours, the mean lifetime of a pod."""

    seeds: int = 6
    loads: tuple[int, ...] = (85, 90)
    warm_up: float = 3.0
    measured: float = 15.0


QUICK: Final = Extent(seeds=1, loads=(90,), warm_up=2.0, measured=4.0)


class Machine:
    """A model of nodes."""

    def __init__(self, shape: tuple[int, int, int, int], gpus: int) -> None:
        """`shape`: sockets, NUMA nodes of a socket, cores of a NUMA node, threads of a core.
        `gpus`: of a NUMA node."""
        cpus = machines.cpus(shape, "adjacent")
        of_socket = shape[1]
        count = shape[0] * of_socket
        self.numa_nodes = tuple(range(count))
        self.gpus = gpus
        self.topology = Topology(
            cpus,
            tuple(
                NumaNode(
                    node,
                    CpuSet(cpu.id for cpu in cpus if cpu.node == node),
                    NODE_MEMORY // count,
                    tuple(_distance(node, other, of_socket) for other in self.numa_nodes),
                )
                for node in self.numa_nodes
            ),
            EMPTY,
            EMPTY,
            smt=shape[3] > 1,
        )
        self.layout: Layout = layouts.of(cpus)
        self.reserved = CpuSet(range(shape[3]))
        self.capacity = Amounts(len(cpus) - len(self.reserved), count * gpus, NODE_MEMORY)

    def fewest(self, gpus: int) -> int:
        """The fewest NUMA nodes that have so many GPUs on an empty machine."""
        return -(-gpus // self.gpus)

    def __hash__(self) -> int:
        return id(self)


def _distance(node: int, other: int, of_socket: int) -> int:
    if node == other:
        return 10
    return 12 if node // of_socket == other // of_socket else 21


class Amounts(msgspec.Struct, frozen=True):
    """Amounts of the resources that kube-scheduler counts."""

    cpus: int
    gpus: int
    memory: int

    def __sub__(self, other: Amounts) -> Amounts:
        return Amounts(self.cpus - other.cpus, self.gpus - other.gpus, self.memory - other.memory)

    def __add__(self, other: Amounts) -> Amounts:
        return Amounts(self.cpus + other.cpus, self.gpus + other.gpus, self.memory + other.memory)


MACHINES: Final = {"2x4": Machine((2, 1, 32, 2), 4), "4x2": Machine((2, 2, 16, 2), 2)}
"""NUMA nodes, and the GPUs of each."""

JOBS: Final = {gpus: Amounts(CPUS_OF_GPU * gpus, gpus, MEMORY_OF_GPU * gpus) for gpus in JOB_SHARES}
PLAIN: Final = tuple(Amounts(cpus, 0, MEMORY_OF_CPU * cpus) for cpus in PLAIN_CPUS)


class Pod(msgspec.Struct, frozen=True):
    """A pod of a Job. The times are in seconds. `rejections`: of the pods before it."""

    number: int
    request: Amounts
    arrives: float
    lasts: float
    rejections: int = 0

    @property
    def name(self) -> str:
        return f"pod-{self.number}-{self.rejections}"


def arrivals(machine: Machine, load_percent: int, end: float, seed: int) -> list[Pod]:
    """Pods in the order of their arrival, which on average request this part of all GPUs."""
    rng = random.Random(f"{load_percent} {seed}")
    load, capacity = load_percent / 100, machine.capacity
    job_rate = load * NODES * capacity.gpus / sum(n * part for n, part in JOB_SHARES.items())
    plain_cpus = NODES * (CPU_LOAD * capacity.cpus - load * CPUS_OF_GPU * capacity.gpus)
    plain_rate = plain_cpus / statistics.mean(PLAIN_CPUS)
    pods: list[Pod] = []
    now = 0.0
    while (now := now + rng.expovariate(job_rate + plain_rate) * HOUR) < end:
        if rng.random() < job_rate / (job_rate + plain_rate):
            request = JOBS[rng.choices(tuple(JOB_SHARES), tuple(JOB_SHARES.values()))[0]]
        else:
            request = rng.choice(PLAIN)
        pods.append(Pod(len(pods), request, now, rng.expovariate(1 / HOUR)))
    return pods


class Placement(msgspec.Struct, frozen=True):
    """What the kubelet gave to a pod: GPUs by NUMA node, and the CPUs that it has alone, as a
    mask. `near`: see the figures."""

    gpus: Mapping[int, int]
    cpus: int
    near: bool


class Kubelet:
    """The kubelet of one node: its device manager, its topology manager and its CPU manager policy
    static."""

    def __init__(self, machine: Machine, numa: NumaPolicy) -> None:
        self.machine = machine
        self.free_gpus = [machine.gpus] * len(machine.numa_nodes)
        self.placements: dict[str, Placement] = {}
        self._numa = numa
        self._policy = _static_policy(machine, numa)
        self._state = static_cpu_manager.start(self._policy, static_cpu_manager.EMPTY)

    def admit(self, pod: Pod) -> Placement | None:
        """Returns None if it rejects the pod."""
        requested = pod.request.gpus
        pod_cpu = PodCpu(pod.name, GUARANTEED, (ContainerCpu(CONTAINER, 1000 * pod.request.cpus),))
        cpu_hints = static_cpu_manager.container_hints(
            self._policy, self._state, pod_cpu, CONTAINER
        )
        merged = kubelet_merge(
            [{"cpu": cpu_hints}, self._gpu_hints(requested)], self.machine.numa_nodes, self._numa
        )
        if not merged.admit:
            return None
        nodes = None if merged.mask is None else ids(merged.mask)
        state, placed = static_cpu_manager.allocate(
            self._policy, self._state, pod_cpu, CONTAINER, nodes
        )
        if not isinstance(placed, Exclusive):
            return None
        self._state = state
        gpus = self._take_gpus(requested, merged.mask)
        used = of_nodes(self.machine.layout.node_ids(placed.cpus))
        near = len(gpus) == self.machine.fewest(requested) and not used & ~of_nodes(gpus)
        return self._placed(pod, Placement(gpus, placed.cpus, near))

    def end(self, name: str) -> None:
        for node, count in self.placements.pop(name).gpus.items():
            self.free_gpus[node] += count
        self._state = static_cpu_manager.remove(self._state, name, CONTAINER)

    @property
    def near(self) -> tuple[NearRequests, ...] | None:
        """What the node's agent reports of containers near to devices; None without an agent."""
        return None

    def _placed(self, pod: Pod, placement: Placement) -> Placement:
        self.placements[pod.name] = placement
        return placement

    def _gpu_hints(self, requested: int) -> dict[str, tuple[TopologyHint, ...]]:
        if not requested:
            return {}
        return {GPU: device_hints(requested, tuple(self.free_gpus), self.machine.gpus)}

    def _take_gpus(self, requested: int, mask: int | None) -> dict[int, int]:
        """Takes GPUs from the NUMA nodes of the mask, then from others. Of several, those with most
        free GPUs come first: NVIDIA's device plugin prefers GPUs that are close to each other."""
        free, taken = self.free_gpus, dict[int, int]()
        order = sorted(
            self.machine.numa_nodes,
            key=lambda node: (mask is not None and not mask >> node & 1, -free[node], node),
        )
        for node in order:
            if count := min(free[node], requested):
                taken[node] = count
                free[node] -= count
                requested -= count
        return dict(sorted(taken.items()))


@functools.cache
def _static_policy(machine: Machine, numa: NumaPolicy) -> StaticPolicy:
    return static_cpu_manager.make(machine.layout, StaticOptions(), numa, machine.reserved.mask)


@functools.cache
def device_hints(requested: int, free: tuple[int, ...], of_node: int) -> tuple[TopologyHint, ...]:
    """The hints of a device plugin's resource (kubelet: pkg/kubelet/cm/devicemanager,
    topology_hints.go, generateDeviceTopologyHints): all sets of NUMA nodes with enough free
    devices; those of as few NUMA nodes as an empty machine needs are preferred.

    `free`: by NUMA node. `of_node`: the devices of each NUMA node."""
    fewest = min(-(-requested // of_node), len(free))
    return tuple(
        TopologyHint(mask, mask.bit_count() == fewest)
        for mask in subsets(range(len(free)))
        if sum(free[node] for node in ids(mask)) >= requested
    )


class KubeletWithAgent(Kubelet):
    """A kubelet without CPU manager, beside Topolet's agent: a container with devices runs on the
    part of the shared pool that is near to them."""

    def __init__(self, machine: Machine, numa: NumaPolicy) -> None:
        super().__init__(machine, numa)
        self._distances = _distances(machine)
        self._containers: dict[str, NearContainer] = {}
        self._places: dict[Key, NearNodes] = {}
        self._started = 0
        self._pool = {node.id: node.cpus - machine.reserved for node in machine.topology.numa_nodes}

    def admit(self, pod: Pod) -> Placement | None:
        requested = pod.request.gpus
        merged = kubelet_merge([self._gpu_hints(requested)], self.machine.numa_nodes, self._numa)
        if not merged.admit:
            return None
        gpus = self._take_gpus(requested, merged.mask)
        near = bool(gpus) and len(gpus) == self.machine.fewest(requested)
        if gpus:
            self._started += 1
            container = NearContainer(
                pod.name,
                CONTAINER,
                self._distances.near(tuple(CpuSet((node,)) for node in gpus)),
                1000 * pod.request.cpus,
                self._started,
            )
            self._containers[pod.name] = container
            near = self._place()[container.key].nodes <= CpuSet(gpus) and near
        return self._placed(pod, Placement(gpus, 0, near))

    def end(self, name: str) -> None:
        for node, count in self.placements.pop(name).gpus.items():
            self.free_gpus[node] += count
        if self._containers.pop(name, None) is not None:
            self._place()

    @property
    def near(self) -> tuple[NearRequests, ...]:
        return near_requests(self._places.values())

    def _place(self) -> dict[Key, NearNodes]:
        before = {key: place.nodes for key, place in self._places.items()}
        wanted = LocalityInput(tuple(self._containers.values()), before)
        self._places = places(self._distances, self._pool, wanted, {})
        return self._places


@functools.cache
def _distances(machine: Machine) -> Distances:
    return Distances(machine.topology)


class Node:
    """A node as kube-scheduler counts it, and its kubelet."""

    def __init__(self, name: str, kubelet: Kubelet) -> None:
        self.name = name
        self.kubelet = kubelet
        self.free = kubelet.machine.capacity

    def fits(self, request: Amounts) -> bool:
        free = self.free
        return (
            request.gpus <= free.gpus
            and request.cpus <= free.cpus
            and request.memory <= free.memory
        )

    def stock_score(self, request: Amounts) -> int:
        """The sum of LeastAllocated and BalancedAllocation for CPU and memory, the resources of
        their defaults (pkg/scheduler/framework/plugins/noderesources)."""
        capacity = self.kubelet.machine.capacity
        cpus, memory = self.free.cpus - request.cpus, self.free.memory - request.memory
        least = (cpus * 100 // capacity.cpus + memory * 100 // capacity.memory) // 2
        apart = abs(cpus / capacity.cpus - memory / capacity.memory) / 2
        return least + int((1 - apart) * 100)


class Scheduler(Protocol):
    """Chooses nodes for pods. The simulation calls it when a pod starts or ends on a node."""

    def choose(self, pod: Pod, fitting: Sequence[Node]) -> Node | None:
        """The node for the pod, of those with enough free amounts; None if it has to wait."""

    def started(self, pod: Pod, node: Node) -> None: ...

    def ended(self, pod: Pod, node: Node) -> None: ...


class StockScheduler:
    """kube-scheduler with its default plugins."""

    def __init__(self, nodes: Sequence[Node], ties: random.Random) -> None:
        self._ties = ties

    def choose(self, pod: Pod, fitting: Sequence[Node]) -> Node | None:
        scores = [self._score(pod, node) for node in fitting]
        best = max(scores)
        return self._ties.choice(
            [node for node, score in zip(fitting, scores, strict=True) if score == best]
        )

    def started(self, pod: Pod, node: Node) -> None: ...

    def ended(self, pod: Pod, node: Node) -> None: ...

    def _score(self, pod: Pod, node: Node) -> int:
        return node.stock_score(pod.request)


class NrtMatchScheduler(StockScheduler):
    """kube-scheduler with NodeResourceTopologyMatch too."""

    def __init__(self, nodes: Sequence[Node], ties: random.Random) -> None:
        super().__init__(nodes, ties)
        self._scores: dict[str, dict[Amounts, int | None]] = {node.name: {} for node in nodes}
        """By node and request, the score by zones, None for a pod that does not fit. A change of
        the node drops them."""

    def choose(self, pod: Pod, fitting: Sequence[Node]) -> Node | None:
        aligned = [node for node in fitting if self._by_zones(pod.request, node) is not None]
        return super().choose(pod, aligned) if aligned else None

    def started(self, pod: Pod, node: Node) -> None:
        self._scores[node.name].clear()

    def ended(self, pod: Pod, node: Node) -> None:
        self._scores[node.name].clear()

    def _score(self, pod: Pod, node: Node) -> int:
        return node.stock_score(pod.request) + (self._by_zones(pod.request, node) or 0)

    def _by_zones(self, request: Amounts, node: Node) -> int | None:
        scores = self._scores[node.name]
        if request not in scores:
            zoned = zoned_node(reported(node, SINGLE_NUMA_NODE), (GPU,))
            pod = _numa_request(request)
            fit = by_zones(zoned, pod)
            scores[request] = (
                None
                if isinstance(fit, Refusal)
                else zone_score(zoned, pod, Strategy.LEAST_ALLOCATED)
            )
        return scores[request]


SINGLE_NUMA_NODE: Final = "single-numa-node"
BEST_EFFORT: Final = "best-effort"


def reported(node: Node, policy: str) -> NodeTopology:
    """The agent's report of the node. `policy`: of the topology manager; with single-numa-node the
    CPU manager is static."""
    kubelet = node.kubelet
    gpus = tuple(kubelet.machine.gpus - free for free in kubelet.free_gpus)
    owned = 0
    for placement in kubelet.placements.values():
        owned |= placement.cpus
    pods = ((NAMESPACE, name) for name in kubelet.placements)
    topology = _report(kubelet.machine, policy, gpus, owned, kubelet.near)
    return msgspec.structs.replace(topology, name=node.name, fingerprint=fingerprint_of(pods))


@functools.lru_cache(maxsize=10_000)
def _report(
    machine: Machine,
    policy: str,
    gpus: tuple[int, ...],
    owned: int,
    near: tuple[NearRequests, ...] | None,
) -> NodeTopology:
    """`gpus`: those that pods hold, by NUMA node. `owned`: the CPUs of pods that own some.
    `near`: None without an agent that keeps containers near to their devices."""
    values = ReportValues(
        "",
        machine.topology,
        {},
        (),
        (Allocated(CpuSet.from_int(owned)),),
        Reserved(machine.reserved),
        NodeConfiguration(
            kubelet_policy="static" if policy == SINGLE_NUMA_NODE else "none",
            kubelet_reserved=machine.reserved,
            topology_policy=policy,
            device_locality="" if near is None else PREFER,
        ),
        plugged=tuple(
            Portion(GPU, node, machine.gpus, machine.gpus, held) for node, held in enumerate(gpus)
        ),
        fingerprint="",
        near=near or (),
    )
    return build(values).topology


def pod_object(name: str, request: Amounts, annotations: Mapping[str, str]) -> dict[str, Any]:
    """A pod without a node, as the API server stores it."""
    amounts = {"cpu": str(request.cpus), "memory": str(request.memory)}
    if request.gpus:
        amounts[GPU] = str(request.gpus)
    resources = {"requests": amounts, "limits": amounts}
    return {
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "uid": name,
            "resourceVersion": "1",
            "annotations": dict(annotations),
        },
        "spec": {"containers": [{"name": CONTAINER, "resources": resources}]},
        "status": {"phase": "Pending", "qosClass": "Guaranteed"},
    }


@functools.cache
def _numa_request(request: Amounts) -> NumaRequest:
    return numa_request_of(apiobjects.from_object(pod_object("pod", request, {})))


class TopoletScheduler:
    """kube-scheduler with Topolet's extender, whose scores outweigh those of all plugins (its
    weight in the chart is 151)."""

    def __init__(
        self, nodes: Sequence[Node], ties: random.Random, annotations: Mapping[str, str]
    ) -> None:
        """`annotations`: of the jobs."""
        self._annotations = annotations
        self._read_pod = records.pods(AgentSelector())
        self._cache = SchedulerCache(rules=allocator_rules(defaults(Rules.PROPOSAL)), agents=False)
        self._handlers = ExtenderHandlers(
            self._cache,
            GroupReservations(self._cache),
            _bind_nothing,
            PodInfoCache(defaults=lambda: self._cache.pod_defaults),
            EquivalenceCache(self._cache),
            lambda args: ExtenderPreemptionResult(args.victims),
        )
        for node in nodes:
            self._add(node)

    def choose(self, pod: Pod, fitting: Sequence[Node]) -> Node | None:
        by_name = {node.name: node for node in fitting}
        api_pod = apiobjects.from_object(self._object(pod))
        names = self._handlers.filter(ExtenderArgs(api_pod, tuple(by_name))).node_names
        if len(names) < 2:
            return by_name[names[0]] if names else None
        answer = self._handlers.prioritize(ExtenderArgs(api_pod, names))
        priority = {each.host: each.score for each in _priorities.decode(bytes(answer))}
        best = max(priority.get(name, 0) for name in names)
        equal = [by_name[name] for name in sorted(names) if priority.get(name, 0) == best]
        return max(equal, key=lambda node: node.stock_score(pod.request))

    def started(self, pod: Pod, node: Node) -> None:
        self._pod_changed(pod, node, ChangeKind.ADDED)

    def ended(self, pod: Pod, node: Node) -> None:
        self._pod_changed(pod, node, ChangeKind.DELETED)

    def _object(self, pod: Pod) -> dict[str, Any]:
        annotations = self._annotations if pod.request.gpus else {}
        return pod_object(pod.name, pod.request, annotations)

    def _add(self, node: Node) -> None:
        capacity = node.kubelet.machine.capacity
        allocatable = {
            "cpu": str(capacity.cpus),
            "memory": str(capacity.memory),
            "pods": "256",
            GPU: str(capacity.gpus),
        }
        body = {
            "metadata": {"name": node.name, "uid": node.name},
            "status": {"allocatable": allocatable},
        }
        record = records.node(json.dumps(body).encode())
        self._cache.nodes_changed([Change(ChangeKind.ADDED, ObjectKey("", node.name), record)])
        self._report(node)

    def _pod_changed(self, pod: Pod, node: Node, kind: ChangeKind) -> None:
        """A watch reports the pod, and the agent's next report."""
        body = self._object(pod)
        body["spec"]["nodeName"] = node.name
        body["status"]["phase"] = "Running"
        record = self._read_pod(json.dumps(body).encode())
        self._cache.pods_changed([Change(kind, ObjectKey(NAMESPACE, pod.name), record)])
        self._report(node)

    def _report(self, node: Node) -> None:
        change: Change[NodeTopology | Unreadable] = Change(
            ChangeKind.MODIFIED, ObjectKey("", node.name), reported(node, BEST_EFFORT)
        )
        self._cache.topologies_changed([change])


class _Priority(msgspec.Struct, frozen=True, rename="pascal"):
    """The priority of one node."""

    host: str
    score: int


_priorities: Final = msgspec.json.Decoder(list[_Priority])


def _bind_nothing(pod: PodName, node: str) -> None:
    """The simulation tells the scheduler's cache of the pod itself."""


class Arm(msgspec.Struct, frozen=True):
    """A set of rules."""

    kubelet: type[Kubelet]
    numa: NumaPolicy
    scheduler: Callable[[Sequence[Node], random.Random], Scheduler]


PREFER: Final = "prefer"
REQUIRE: Final = "require"
OURS: Final = (PREFER, REQUIRE)
ARMS: Final = {
    "stock_single_numa_node": Arm(Kubelet, NumaPolicy.SINGLE_NUMA_NODE, StockScheduler),
    "stock_best_effort": Arm(Kubelet, NumaPolicy.BEST_EFFORT, StockScheduler),
    "nrt_match_single_numa_node": Arm(Kubelet, NumaPolicy.SINGLE_NUMA_NODE, NrtMatchScheduler),
    PREFER: Arm(
        KubeletWithAgent,
        NumaPolicy.BEST_EFFORT,
        functools.partial(TopoletScheduler, annotations={}),
    ),
    REQUIRE: Arm(
        KubeletWithAgent,
        NumaPolicy.BEST_EFFORT,
        functools.partial(TopoletScheduler, annotations={DEVICE_LOCALITY: REQUIRE}),
    ),
}


class Event(enum.IntEnum):
    """What happens to a pod. Of events at one time, ends come first."""

    ENDS = 0
    ARRIVES = 1


class Simulation:
    """A cluster under one set of rules, from the first arrival to the end of the run."""

    def __init__(self, machine: Machine, arm: Arm, seed: int, warm_up: float, end: float) -> None:
        """The times are in seconds."""
        self._machine = machine
        self._numa = arm.numa
        self._nodes = [
            Node(f"node-{number:02d}", arm.kubelet(machine, arm.numa)) for number in range(NODES)
        ]
        self._scheduler = arm.scheduler(self._nodes, random.Random(seed))
        self._warm_up, self._end = warm_up, end
        self._now = 0.0
        self._events: list[tuple[float, Event, int, Pod, Node | None]] = []
        self._waiting: dict[int, Pod] = {}
        self._gpus = 0
        self._gpu_seconds = 0.0
        self._arrived = self._rejected = self._rejected_too_large = 0
        self._started = self._near = 0
        self._waits: list[float] = []
        self._arrived_largest: dict[int, float] = {}
        """The arrivals of measured jobs of LARGEST GPUs that have not started."""

    def run(self, pods: Iterable[Pod]) -> RunFigures:
        for pod in pods:
            self._push(pod.arrives, Event.ARRIVES, pod)
        while self._events and self._events[0][0] < self._end:
            at, _, _, pod, node = heapq.heappop(self._events)
            self._advance(at)
            if node is not None:
                self._leave(pod, node)
            else:
                self._arrive(pod)
        self._advance(self._end)
        unstarted = [self._end - at for at in self._arrived_largest.values()]
        waits = sorted((*self._waits, *unstarted)) or [0.0]
        whole = (self._end - self._warm_up) * NODES * self._machine.capacity.gpus
        return RunFigures(
            self._arrived,
            self._rejected,
            self._rejected_too_large,
            100 * self._gpu_seconds / whole,
            self._started,
            self._near,
            tuple(waits),
            len(unstarted),
            len(self._waiting),
        )

    @property
    def _measuring(self) -> bool:
        return self._now >= self._warm_up

    def _push(self, at: float, event: Event, pod: Pod, node: Node | None = None) -> None:
        heapq.heappush(self._events, (at, event, pod.number, pod, node))

    def _advance(self, at: float) -> None:
        self._gpu_seconds += self._gpus * max(0.0, at - max(self._now, self._warm_up))
        self._now = at

    def _arrive(self, pod: Pod) -> None:
        if self._measuring and not pod.rejections:
            self._arrived += 1
            if pod.request.gpus == LARGEST:
                self._arrived_largest[pod.number] = self._now
        # While an equal pod waits, no pod has ended since it found no node.
        hopeless = any(waiting.request is pod.request for waiting in self._waiting.values())
        if hopeless or not self._try(pod):
            self._waiting[pod.number] = pod

    def _leave(self, pod: Pod, node: Node) -> None:
        node.kubelet.end(pod.name)
        node.free += pod.request
        self._gpus -= pod.request.gpus
        self._scheduler.ended(pod, node)
        unplaceable: set[Amounts] = set()
        for waiting in tuple(self._waiting.values()):
            if waiting.request in unplaceable:
                continue
            if self._try(waiting):
                del self._waiting[waiting.number]
            else:
                unplaceable.add(waiting.request)

    def _try(self, pod: Pod) -> bool:
        """Returns whether the pod waits no longer: it started, or its kubelet rejected it."""
        fitting = [node for node in self._nodes if node.fits(pod.request)]
        node = self._scheduler.choose(pod, fitting) if fitting else None
        if node is None:
            return False
        placement = node.kubelet.admit(pod)
        if placement is None:
            self._reject(pod)
            return True
        node.free -= pod.request
        self._gpus += pod.request.gpus
        self._scheduler.started(pod, node)
        self._push(self._now + pod.lasts, Event.ENDS, pod, node)
        if self._measuring and pod.request.gpus:
            self._started += 1
            self._near += placement.near
            arrived = self._arrived_largest.pop(pod.number, None)
            if arrived is not None:
                self._waits.append(self._now - arrived)
        return True

    def _reject(self, pod: Pod) -> None:
        too_large = pod.request.gpus > self._machine.gpus
        if self._measuring:
            if too_large:
                self._rejected_too_large += 1
            else:
                self._rejected += 1
        if too_large and pod.rejections >= BACKOFF_LIMIT:
            return
        backoff = min(MAX_BACKOFF, FIRST_BACKOFF * 2**pod.rejections)
        replacement = msgspec.structs.replace(pod, rejections=pod.rejections + 1)
        self._push(self._now + backoff, Event.ARRIVES, replacement)


class RunFigures(msgspec.Struct, frozen=True):
    """The result of one seed: `arrived` pods; of the `jobs` that started, the `near` ones; the
    waits of jobs of LARGEST GPUs in seconds, sorted, with those that did not start; and the pods
    that `waited` at the end."""

    arrived: int
    rejected: int
    rejected_too_large: int
    gpus_in_use: float
    jobs: int
    near: int
    waits: tuple[float, ...]
    unstarted: int
    waited: int


FIGURES: Final = {
    "rejections": "per 1,000 pods",
    "rejections_too_large": "per 1,000 pods",
    "gpus_in_use": "percent",
    "near_percent": "percent",
    "wait_8_mean": "minutes",
    "wait_8_p99": "minutes",
    "unstarted_8_percent": "percent",
    "waiting_at_end": "pods",
}

Results = Mapping[tuple[str, int, str], Sequence[RunFigures]]
"""The seeds of each machine, load and arm."""


def figures(runs: Sequence[RunFigures]) -> dict[str, float]:
    arrived = sum(each.arrived for each in runs)
    waits = sorted(wait / 60 for each in runs for wait in each.waits)
    return {
        "rejections": 1000 * sum(each.rejected for each in runs) / arrived,
        "rejections_too_large": 1000 * sum(each.rejected_too_large for each in runs) / arrived,
        "gpus_in_use": statistics.mean(each.gpus_in_use for each in runs),
        "near_percent": 100 * sum(each.near for each in runs) / sum(each.jobs for each in runs),
        "wait_8_mean": statistics.mean(waits),
        "wait_8_p99": percentile(waits, 99),
        "unstarted_8_percent": 100 * sum(each.unstarted for each in runs) / len(waits),
        "waiting_at_end": statistics.mean(each.waited for each in runs),
    }


def measured(extent: Extent) -> Results:
    results: dict[tuple[str, int, str], list[RunFigures]] = {}
    warm_up, end = extent.warm_up * HOUR, (extent.warm_up + extent.measured) * HOUR
    for machine_name, machine in MACHINES.items():
        for load in extent.loads:
            for seed in range(extent.seeds):
                pods = arrivals(machine, load, end, seed)
                for name, arm in ARMS.items():
                    run = Simulation(machine, arm, seed, warm_up, end).run(pods)
                    results.setdefault((machine_name, load, name), []).append(run)
    return results


def rows(results: Results) -> Iterator[Row]:
    by_cell = {key: figures(runs) for key, runs in results.items()}
    for arm in OURS:
        case = "gpus_in_use_vs_best" if arm == PREFER else f"gpus_in_use_vs_best_{arm}"
        yield min(
            (
                _vs_best(case, arm, machine, load, by_cell)
                for machine, load, name in by_cell
                if name == arm
            ),
            key=lambda row: float(row["ratio"]),
        )
    for figure, unit in FIGURES.items():
        for arm in ARMS:
            of_arm = [run for (_, _, name), runs in results.items() if name == arm for run in runs]
            yield value_row(f"{figure}_{arm}", figures(of_arm)[figure], unit)
    for (machine, load, arm), cell in by_cell.items():
        for figure, unit in FIGURES.items():
            yield value_row(f"{figure}_{arm}_{machine}_{load}", cell[figure], unit)


def _vs_best(
    case: str,
    arm: str,
    machine: str,
    load: int,
    by_cell: Mapping[tuple[str, int, str], Mapping[str, float]],
) -> Row:
    in_use = {name: by_cell[machine, load, name]["gpus_in_use"] for name in ARMS}
    best = max((name for name in ARMS if name not in OURS), key=in_use.__getitem__)
    return ratio_row(case, in_use[arm], in_use[best], f"{best}, {machine}, {load} %", "percent")


def show(results: Results) -> None:
    """Prints the figures of each machine and load."""
    titles = ("rejected", "too large", "GPUs %", "near %", "wait", "p99", "unstarted %", "queue")
    print(f"{'':10}{'':28}" + "".join(f"{title:>12}" for title in titles))
    for (machine, load, arm), runs in results.items():
        cells = "".join(f"{value:12.1f}" for value in figures(runs).values())
        print(f"{machine:4}{load:3} %  {arm:28}{cells}")
    print("per 1,000 pods: rejected, too large; jobs of 8 GPUs: wait and p99 in minutes, unstarted")
    print()


def main() -> None:
    options = arguments(__doc__)
    results = measured(QUICK if options.quick else Extent())
    lines = list(rows(results))
    if options.output == "text":
        show(results)
        lines = [row for row in lines if "ratio" in row]
    report(lines, options.output)


if __name__ == "__main__":
    main()
