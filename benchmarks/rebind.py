"""Plans that move bound pods of one node to better CPUs (RebindResource).

Nodes of 256 CPUs in eight NUMA nodes with 250 pods at random places, a part of which share CPUs.
`plan_N` is the milliseconds of CPU time of a plan, N the number of pods that own CPUs; it has no
base. The other rows compare a measure after the plan (ours) with a lower bound of it for any
placement (base); the bounds of several measures may not be reachable together. `moves_N`: the
number of pods that the plan moves; the base is the number of badly placed pods.

`local_*_N` compare the node-local policy `dynamic`, with one move in each decision until it makes
no further move (ours), with a plan (base), on nodes of 64 CPUs in four NUMA nodes with 16
containers and N free CPUs: moves, measures afterwards, and milliseconds of CPU time of the longest
computation at once."""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parent))

from common import Row, arguments, percentile, ratio_row, report, value_row

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from agent.allocate.node_local.claim import LocalPolicy, LocalRequest, LocalRules, Sharing
from agent.allocate.node_local.policy import decide
from agent.allocate.rebind.arrangement import Arrangement, Measures, PlacedNode, lower_bound
from agent.allocate.rebind.planner import RebindPlan, plan
from agent.model.cpu import layout
from agent.model.cpu.cpuset import CpuSet
from conformance.machines import cpus
from tests.allocate.rebind.nodes import fragmented

SHAPE = (2, 4, 16, 2)
"""Sockets, NUMA nodes per socket, cores per node, threads per core."""
CASES = {200: 16, 100: 64, 60: 32, 30: 100}
"""Free CPUs by the number of pods that own CPUs."""
PODS = 250
LOCAL_SHAPE, LOCAL_PODS, LOCAL_FREE = (4, 1, 8, 2), 16, (8, 3)
MEASURES = ("numa_crossings", "broken_cores", "used_cores", "used_numa_nodes")


def rows(owners: int, free: int, seeds: int, calls: int) -> list[Row]:
    machine = layout.of(cpus(SHAPE, "interleaved"))
    nodes = [fragmented(machine, owners, free, seed, PODS - owners) for seed in range(seeds)]
    took = [cpu_ms(node) for node in nodes for _ in range(calls)]
    found = [
        {**value_row(f"plan_{owners}", statistics.median(took), "ms"), "p99": percentile(took, 99)}
    ]
    plans = [(node, plan(node)) for node in nodes]
    improved = [(node, each) for node, each in plans if isinstance(each, RebindPlan)]
    if len(improved) < len(plans):
        raise SystemExit(f"no plan for {len(plans) - len(improved)} fragmented nodes")
    for name in MEASURES:
        ours = sum(getattr(each.after, name) for _, each in improved)
        bound = sum(getattr(lower_bound(Arrangement(node)), name) for node, _ in improved)
        before = sum(getattr(each.before, name) for _, each in improved)
        # A bound of 0 has no ratio: one more on both sides.
        row = ratio_row(f"{name}_{owners}", ours + 1, bound + 1, "bound + 1", "count + 1")
        found.append({**row, "before": before + 1})
    moved = sum(len(each.uids) for _, each in improved)
    misplaced_pods = sum(map(misplaced, nodes))
    found.append(ratio_row(f"moves_{owners}", moved, misplaced_pods, "badly placed pods", "pods"))
    return found


def local_rows(free: int, seeds: int) -> list[Row]:
    machine = layout.of(cpus(LOCAL_SHAPE, "adjacent"))
    totals = {name: [0.0, 0.0] for name in ("moves", "numa_crossings", "broken_cores", "ms")}
    before = dict.fromkeys(("numa_crossings", "broken_cores"), 0.0)
    for seed in range(seeds):
        node = fragmented(machine, LOCAL_PODS, free, seed)
        start = time.process_time_ns()
        planned = plan(node)
        if not isinstance(planned, RebindPlan):
            raise SystemExit("no plan for a fragmented node")
        plan_ms = (time.process_time_ns() - start) / 1e6
        moves, ends, local_ms = moved_locally(node)
        pairs = {"moves": (moves, len(planned.moves)), "ms": (local_ms, plan_ms)}
        for name, sum_before in before.items():
            pairs[name] = getattr(ends, name), getattr(planned.after, name)
            before[name] = sum_before + getattr(planned.before, name)
        for name, pair in pairs.items():
            totals[name] = [one + other for one, other in zip(totals[name], pair, strict=True)]
    return [
        ratio_row(f"local_{name}_{free}", ours + 1, base + 1, "plan + 1", "sum + 1")
        | ({"before": before[name]} if name in before else {})
        for name, (ours, base) in totals.items()
    ]


def moved_locally(node: PlacedNode) -> tuple[int, Measures, float]:
    """The moves, the measures at the end, and the longest decision in milliseconds."""
    rules = LocalRules(LocalPolicy.DYNAMIC, node.layout)
    owned = {pod.uid: CpuSet.from_int(pod.place) for pod in node.pods}
    moves, longest = 0, 0.0
    while True:
        claims = [
            LocalRequest(uid, "c", number, len(owned_cpus), held=owned_cpus, owned=owned_cpus)
            for number, (uid, owned_cpus) in enumerate(owned.items())
        ]
        start = time.process_time_ns()
        decision = decide(rules, claims, Sharing())
        longest = max(longest, (time.process_time_ns() - start) / 1e6)
        owned = {each.uid: decision.answers[each.key].cpus for each in claims}
        moves += len(decision.moves)
        if not decision.again:
            break
    pods = (msgspec.structs.replace(pod, place=owned[pod.uid].mask) for pod in node.pods)
    return moves, Arrangement(msgspec.structs.replace(node, pods=tuple(pods))).before, longest


def cpu_ms(node: PlacedNode) -> float:
    start = time.process_time_ns()
    plan(node)
    return (time.process_time_ns() - start) / 1e6


def misplaced(node: PlacedNode) -> int:
    """The pods with more NUMA nodes or cores than they need."""
    arrangement = Arrangement(node)
    return sum(any(arrangement.misfit(i, pod.place)) for i, pod in enumerate(node.pods))


def main() -> None:
    options = arguments(__doc__)
    seeds, calls = (2, 3) if options.quick else (8, 8)
    found = [row for owners, free in CASES.items() for row in rows(owners, free, seeds, calls)]
    found += [row for free in LOCAL_FREE for row in local_rows(free, 5 * seeds)]
    report(found, options.output)


if __name__ == "__main__":
    main()
