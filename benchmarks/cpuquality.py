"""The quality of the CPUs that pods get on a node where pods come and go.

Two nodes, one with 2 NUMA nodes of 32 CPUs and one with 8 of 16; L3 caches have 8 CPUs, cores 2.
Pods of 1 to 16 exclusive CPUs arrive at random and stay for an exponentially distributed time; on
average those that have arrived request 70, 80 or 90 % of the CPUs. A pod that is refused does not
come back. All arms get the same pods:

- `koordinator`: the rules of Koordinator's scheduler with the defaults of its plugin (no NUMA
  policy, LeastAllocated); `koordinator_best_effort`: on a node with the NUMA policy BestEffort.
  These are Topolet's decisions under Koordinator's rules, which agree with the recorded answers of
  Koordinator (`topolet conformance`).
- `kubelet_full`: the kubelet's CPU manager policy static with full-pcpus-only, under the topology
  manager policy best-effort; `kubelet_distribute`: with distribute-cpus-across-numa too. They
  refuse an odd number of CPUs, so such a pod requests one more here.
- `topolet`: the defaults (BestEffort, MostAllocated). `topolet_least`, `topolet_evenly`: the other
  strategies. MostAllocated is the default.

The figures of an arm are means over its pods: `broken_cores`: the cores that a pod has beyond those
that its CPUs need; `numa_crossings`: the part of the pods on more NUMA nodes than their CPUs need;
`refused`: the part of all pods; `l3_caches`: the caches of a pod. `X_vs_koordinator` is the mean
over both nodes and all loads. Nothing is timed, and every run has the same result.
"""

from __future__ import annotations

import heapq
import random
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Protocol

sys.path.insert(0, str(Path(__file__).resolve().parent))

import msgspec
from common import Row, arguments, ratio_row, report, value_row

from agent.allocate import node_score
from agent.allocate.kubelet.static_policy import StaticOptions
from agent.allocate.node_allocation import NodeAllocation, PodAllocation, TopologyOptions
from agent.allocate.node_allocator.cpus import CpuOffer, Trials
from agent.allocate.numa.hint import ids
from agent.allocate.policies_in_force import NodePolicies
from agent.model.cpu import layout as layouts
from agent.model.cpu.layout import Layout
from agent.model.cpu.policies import NumaPolicy, Strategy
from agent.model.pod.qos import QoS
from agent.model.pod.resource_request import ResourceRequest
from agent.model.pod_request import ContainerCpu, PodCpu
from agent.model.settings.plugin_args import Rules, defaults
from conformance import machines, static_cpu_manager
from conformance.merge_hints import kubelet_merge
from conformance.node_numa_differences import KoordinatorTrials, offer_with
from conformance.static_cpu_manager import EMPTY, Exclusive

MACHINES = {"2x32": (2, 1, 16, 2), "8x16": (2, 4, 8, 2)}
"""Sockets, NUMA nodes per socket, cores per node, threads per core; siblings are adjacent."""
CACHE_CPUS = 8
LOADS = (70, 80, 90)
SIZES = range(1, 17)
FIGURES = {
    "broken_cores": "cores/pod",
    "numa_crossings": "part of pods",
    "refused": "part of pods",
    "l3_caches": "caches/pod",
}
OURS = "topolet"
BASE = "koordinator"
CONTAINER = "main"


class Arm(Protocol):
    """A node under one set of rules."""

    def place(self, uid: str, cpus: int) -> int:
        """The CPUs that a new pod gets, as a mask; 0 if it is refused."""

    def end(self, uid: str) -> None:
        """Ends a pod that was placed."""


class SchedulerArm:
    """Topolet's decisions, or those of Koordinator's rules."""

    def __init__(
        self,
        layout: Layout,
        rules: Rules,
        numa: NumaPolicy | None = None,
        strategy: Strategy | None = None,
    ) -> None:
        zones = {node.id: {"cpu": 1000 * node.cpus.bit_count()} for node in layout.nodes}
        self._options = TopologyOptions(
            layout,
            zones,
            policies=NodePolicies(numa_label=numa, strategy_label=strategy),
            profile=node_score.profile(defaults(rules)),
        )
        self._node_allocation = NodeAllocation(self._options)
        koordinator = partial(
            KoordinatorTrials,
            loose=True,
            by_position=True,
            unbound=False,
            mixed=True,
            single_cpus=True,
        )
        trials = koordinator if rules is Rules.KOORDINATOR else Trials
        self._offer = partial(offer_with, trials, self._options, self._node_allocation)
        self._allocations: dict[str, PodAllocation] = {}

    def place(self, uid: str, cpus: int) -> int:
        request = ResourceRequest(uid, uid, QoS.LSR, owner=True, requests={"cpu": 1000 * cpus})
        offer = self._offer(request)
        if not isinstance(offer, CpuOffer):
            return 0
        self._allocations[uid] = offer.allocation
        self._node_allocation.add(offer.allocation)
        return offer.allocation.cpus.mask

    def end(self, uid: str) -> None:
        self._node_allocation.remove(self._allocations.pop(uid))


class KubeletArm:
    """The kubelet's CPU manager under its topology manager, without reserved CPUs."""

    def __init__(self, layout: Layout, *, distribute: bool) -> None:
        options = StaticOptions(full_pcpus_only=True, distribute_cpus_across_numa=distribute)
        numa = NumaPolicy.BEST_EFFORT
        self._policy = static_cpu_manager.make(layout, options, numa, 0)
        self._state = static_cpu_manager.start(self._policy, EMPTY)
        self._nodes = [node.id for node in layout.nodes]
        self._threads = layout.threads

    def place(self, uid: str, cpus: int) -> int:
        requested = -(-cpus // self._threads) * self._threads
        pod = PodCpu(uid, "guaranteed", (ContainerCpu(CONTAINER, 1000 * requested),))
        hints = static_cpu_manager.container_hints(self._policy, self._state, pod, CONTAINER)
        merged = kubelet_merge([{"cpu": hints}], self._nodes, NumaPolicy.BEST_EFFORT)
        nodes = None if merged.mask is None else ids(merged.mask)
        self._state, placed = static_cpu_manager.allocate(
            self._policy, self._state, pod, CONTAINER, nodes
        )
        return placed.cpus if isinstance(placed, Exclusive) else 0

    def end(self, uid: str) -> None:
        self._state = static_cpu_manager.remove(self._state, uid, CONTAINER)


ARMS: Mapping[str, Callable[[Layout], Arm]] = {
    OURS: partial(SchedulerArm, rules=Rules.PROPOSAL),
    "topolet_least": partial(SchedulerArm, rules=Rules.PROPOSAL, strategy=Strategy.LEAST_ALLOCATED),
    "topolet_evenly": partial(
        SchedulerArm, rules=Rules.PROPOSAL, strategy=Strategy.DISTRIBUTE_EVENLY
    ),
    BASE: partial(SchedulerArm, rules=Rules.KOORDINATOR),
    "koordinator_best_effort": partial(
        SchedulerArm, rules=Rules.KOORDINATOR, numa=NumaPolicy.BEST_EFFORT
    ),
    "kubelet_full": partial(KubeletArm, distribute=False),
    "kubelet_distribute": partial(KubeletArm, distribute=True),
}


class Pod(msgspec.Struct, frozen=True):
    """The times are in mean lifetimes."""

    uid: str
    cpus: int
    arrives: float
    leaves: float


def arrivals(cpus: int, load_percent: int, count: int, seed: int) -> Iterator[Pod]:
    """Pods that on average request this part of `cpus`."""
    rng = random.Random(f"{cpus} {load_percent} {seed}")
    rate = cpus * load_percent / 100 / statistics.mean(SIZES)
    now = 0.0
    for number in range(count):
        now += rng.expovariate(rate)
        yield Pod(f"pod-{number}", rng.choice(SIZES), now, now + rng.expovariate(1))


def figures(layout: Layout, arm: Arm, pods: Iterator[Pod], settled: float) -> dict[str, float]:
    """The figures of an arm over the pods that arrive after `settled` mean lifetimes."""
    ends: list[tuple[float, str]] = []
    sums = dict.fromkeys(FIGURES, 0)
    placed = total = 0
    for pod in pods:
        while ends and ends[0][0] <= pod.arrives:
            arm.end(heapq.heappop(ends)[1])
        cpus = arm.place(pod.uid, pod.cpus)
        if cpus:
            heapq.heappush(ends, (pod.leaves, pod.uid))
        if pod.arrives < settled:
            continue
        total += 1
        if not cpus:
            sums["refused"] += 1
            continue
        placed += 1
        of_node = max(node.cpus.bit_count() for node in layout.nodes)
        sums["broken_cores"] += layout.touched(cpus).bit_count() - -(-pod.cpus // layout.threads)
        sums["numa_crossings"] += len(layout.node_ids(cpus)) > -(-pod.cpus // of_node)
        sums["l3_caches"] += sum(1 for cache in layout.caches if cache.cpus & cpus)
    return {
        name: value / max(1, total if name == "refused" else placed) for name, value in sums.items()
    }


def measured(pods: int, seeds: int) -> dict[tuple[str, int, str], dict[str, float]]:
    """The figures by machine, load and arm."""
    results = {}
    for machine, shape in MACHINES.items():
        cpus = machines.cpus(shape, "adjacent")
        caches = len(cpus) // CACHE_CPUS
        layout = layouts.of(machines.cpus(shape, "adjacent", caches))
        settled = 3.0
        for load in LOADS:
            for name, new_arm in ARMS.items():
                runs = [
                    figures(layout, new_arm(layout), arrivals(len(cpus), load, pods, seed), settled)
                    for seed in range(seeds)
                ]
                results[machine, load, name] = mean_figures(runs)
    return results


def mean_figures(runs: list[dict[str, float]]) -> dict[str, float]:
    return {figure: statistics.mean(run[figure] for run in runs) for figure in FIGURES}


def rows(results: Mapping[tuple[str, int, str], dict[str, float]]) -> Iterator[Row]:
    overall = {
        arm: mean_figures([each for (_, _, name), each in results.items() if name == arm])
        for arm in ARMS
    }
    for figure, unit in FIGURES.items():
        ours, base = overall[OURS][figure], overall[BASE][figure]
        yield ratio_row(f"{figure}_vs_koordinator", ours, base, BASE, unit)
    for figure, unit in FIGURES.items():
        for arm in ARMS:
            yield value_row(f"{figure}_{arm}", overall[arm][figure], unit)
    for (machine, load, arm), each in results.items():
        for figure, unit in FIGURES.items():
            yield value_row(f"{figure}_{arm}_{machine}_{load}", each[figure], unit)


def main() -> None:
    options = arguments(__doc__)
    pods, seeds = (400, 1) if options.quick else (2000, 3)
    report(list(rows(measured(pods, seeds))), options.output)


if __name__ == "__main__":
    main()
