"""Plans that move bound pods of one node to better CPUs (RebindResource).

Nodes of 256 CPUs in eight NUMA nodes with 250 pods at random places, a part of which share CPUs.
`plan_N` is the milliseconds of CPU time of a plan, N the number of pods that own CPUs; it has no
base.
The other rows compare a measure after the plan (ours) with the bound that no places can be below
(base); the bounds of the measures need not be possible together. `moves_N`: pods that own other
CPUs after the plan than before, of the pods that were badly placed (base).
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from common import Row, alone, arguments, compared, percentile, report

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from agent.allocate import layout
from agent.allocate.rebind.arrangement import Arrangement
from agent.allocate.rebind.exhaustive_search import lower_bound
from agent.allocate.rebind.placed_pods import PlacedNode
from agent.allocate.rebind.planner import RebindPlan, plan
from agent.conformance.machines import cpus
from tests.allocate.rebind.nodes import fragmented

SHAPE = (2, 4, 16, 2)
"""Sockets, NUMA nodes per socket, cores per node, threads per core."""
CASES = {200: 16, 100: 64, 60: 32, 30: 100}
"""Free CPUs by the number of pods that own CPUs."""
PODS = 250
MEASURES = ("numa_crossings", "broken_cores", "used_cores", "used_numa_nodes")


def rows(owners: int, free: int, seeds: int, calls: int) -> list[Row]:
    machine = layout.of(cpus(SHAPE, "interleaved"))
    nodes = [fragmented(machine, owners, free, seed, PODS - owners) for seed in range(seeds)]
    took = [cpu_ms(node) for node in nodes for _ in range(calls)]
    found = [
        {**alone(f"plan_{owners}", statistics.median(took), "ms"), "p99": percentile(took, 99)}
    ]
    plans = [(node, plan(node)) for node in nodes]
    gained = [(node, each) for node, each in plans if isinstance(each, RebindPlan)]
    if len(gained) < len(plans):
        raise SystemExit(f"no plan for {len(plans) - len(gained)} fragmented nodes")
    for name in MEASURES:
        ours = sum(getattr(each.after, name) for _, each in gained)
        bound = sum(getattr(lower_bound(Arrangement(node)), name) for node, _ in gained)
        before = sum(getattr(each.before, name) for _, each in gained)
        # A bound of 0 has no ratio: one more on both sides.
        row = compared(f"{name}_{owners}", ours + 1, bound + 1, "bound + 1", "count + 1")
        found.append({**row, "before": before + 1})
    moved = sum(len(each.uids) for _, each in gained)
    bad = sum(map(misplaced, nodes))
    found.append(compared(f"moves_{owners}", moved, bad, "badly placed pods", "pods"))
    return found


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
    report(found, options.output)


if __name__ == "__main__":
    main()
