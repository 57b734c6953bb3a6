"""Decisions about CPUs and NUMA nodes; the base is the kubelet's code with the same input.

CPUs: machines of 64, 256 and 512 CPUs, several sizes of request and patterns of taken CPUs.
`take_cpus_N` is the sum over all of them. The base is the packed algorithm of the static CPU
manager policy. Koordinator's rule has no base: its rows are the microseconds of a decision, the
mean and the slowest.

NUMA: `merge_NxR` merges the hints of R resources under the policy restricted. Each resource has all
masks of N nodes and prefers those of one node; in `apart` the last one prefers those of two nodes,
so that no mask is preferred by all.

A time is the median of single calls, without work that is done once for each machine (the layout,
the kubelet's topology). Both sides take turns in batches, and must give the same answer.
"""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import combinations
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import msgspec
from common import Row, arguments, ratio_row, report, skipped_row, timed, value_row
from peers.go_peer import KUBELET, GoPeer, run_peer

from agent.allocate import accumulator
from agent.allocate.accumulator import CpuRequest, Taken
from agent.allocate.kubelet.cpu_assignment import take
from agent.allocate.kubelet.static_policy import StaticOptions
from agent.allocate.numa.hint import TopologyHint
from agent.model.cpu import layout
from agent.model.cpu.cpuset import CpuSet
from agent.model.cpu.layout import CpuRefCounts, Layout
from agent.model.cpu.policies import BindPolicy, NumaPolicy, Strategy
from agent.model.cpu.topology import Cpu
from conformance.machines import cpus
from conformance.merge_hints import kubelet_merge

SHAPES = {64: (2, 1, 16, 2), 256: (2, 4, 16, 2), 512: (2, 8, 16, 2)}
"""Sockets, NUMA nodes per socket, cores per node, threads per core; numbered `interleaved`."""

TAKEN = {"none": 0.0, "25": 0.25, "50": 0.5, "75": 0.75, "threads": None}
"""The part of the CPUs that is taken at random; None: one thread of each core."""

MERGES = {
    "2x3": (2, (1, 1, 1)),
    "4x3": (4, (1, 1, 1)),
    "8x1": (8, (1,)),
    "8x2": (8, (1, 1)),
    "8x2_apart": (8, (1, 2)),
    "8x3": (8, (1, 1, 1)),
}
"""The number of NUMA nodes, and for each resource the number of nodes in its preferred masks. The
slowest case is last."""

OPTIONS = StaticOptions()
BASE = "kubelet"
UNIT = "us"
ONCE_SECONDS = 1.0
"""Calls that take longer are not repeated."""
ANSWER_SECONDS = 120.0


class Extent(msgspec.Struct, frozen=True):
    """The extent of the measurement."""

    rounds: int
    batch_seconds: float

    def fitting(self, nanoseconds: int) -> int:
        """The number of calls in a batch if one takes this long; at least one."""
        return max(1, int(self.batch_seconds * 1e9) // max(1, nanoseconds))


FULL = Extent(rounds=7, batch_seconds=0.02)
QUICK = Extent(rounds=2, batch_seconds=0.004)


class Times(msgspec.Struct, frozen=True):
    """Microseconds of one decision; `base` is None if the Go program is missing."""

    ours: float
    base: float | None


class Decision(msgspec.Struct, frozen=True):
    """One decision of both sides. `ours`: calls Topolet. `base_request`: the request to the Go
    program. `same`: compares both answers."""

    case: str
    ours: Callable[[], Any]
    base_request: dict[str, Any]
    same: Callable[[Any, dict[str, Any]], bool]


class PairedTimer:
    """Times both sides in turns. `peer`: the Go program, or the reason why it is missing."""

    def __init__(self, peer: GoPeer | str, extent: Extent) -> None:
        self._peer = peer
        self._extent = extent

    def times(self, decision: Decision) -> Times:
        """Ends the benchmark if the Go program fails or its answer differs."""
        ours = decision.ours()
        our_times: list[int] = []
        base_times: list[int] = []
        calls = self._extent.fitting(timed(decision.ours, 1)[0])
        base_calls = 0
        if not isinstance(self._peer, str):
            answer = self._call_base(decision, 1)
            if not decision.same(ours, answer):
                raise SystemExit(
                    f"{decision.case}: the base differs: {answer}: {decision.base_request}"
                )
            took = answer["ns"][0]
            if took > ONCE_SECONDS * 1e9:
                base_times.append(took)
            else:
                base_calls = self._extent.fitting(took)
        for _ in range(self._extent.rounds):
            our_times += timed(decision.ours, calls)
            if base_calls:
                base_times += self._call_base(decision, base_calls)["ns"]
        base = statistics.median(base_times) / 1e3 if base_times else None
        return Times(statistics.median(our_times) / 1e3, base)

    def row(self, case: str, times: Times) -> Row:
        if times.base is None:
            return skipped_row(case, times.ours, UNIT, str(self._peer))
        return ratio_row(case, times.ours, times.base, BASE, UNIT)

    def _call_base(self, decision: Decision, calls: int) -> dict[str, Any]:
        assert isinstance(self._peer, GoPeer)
        context = f"{decision.case}: {BASE}"
        return self._peer.call(decision.base_request, calls, ANSWER_SECONDS, context)


class TakeCase(msgspec.Struct, frozen=True):
    """A request of `need` CPUs of those in `free`, a mask."""

    name: str
    need: int
    free: int


def take_cases(machine: Layout) -> Iterator[TakeCase]:
    """Every size and pattern with enough free CPUs, except requests for all of them, which need no
    decision. All runs have the same cases."""
    everything = list(CpuSet.from_int(machine.cpus))
    sizes = (2, 8, len(everything) // 4 - 2, len(everything) // 2 - 2)
    rng = random.Random(len(everything))
    for name, part in TAKEN.items():
        if part is None:
            taken = machine.leads
        else:
            taken = CpuSet(rng.sample(everything, int(part * len(everything)))).mask
        free = machine.cpus & ~taken
        for need in sizes:
            if need < free.bit_count():
                yield TakeCase(f"{need}_taken_{name}", need, free)


def take_cpus(timer: PairedTimer, size: int) -> Iterator[Row]:
    """A row with the sum, then a row for each case."""
    machine_cpus = cpus(SHAPES[size], "interleaved")
    machine = layout.of(machine_cpus)
    kubelet_cpus = [kubelet_cpu(cpu) for cpu in machine_cpus]
    case = f"take_cpus_{size}"
    single: list[Row] = []
    total: list[Times] = []
    for take_case in take_cases(machine):
        available = str(CpuSet.from_int(take_case.free))
        base_request = {
            "take": {"cpus": kubelet_cpus, "available": available, "need": take_case.need}
        }
        name = f"{case}_{take_case.name}"
        times = timer.times(Decision(name, taking(machine, take_case), base_request, same_cpus))
        single.append(timer.row(name, times))
        total.append(times)
    yield timer.row(case, summed(total))
    yield from single


def taking(machine: Layout, take_case: TakeCase) -> Callable[[], int]:
    return lambda: take(machine, take_case.free, take_case.need, OPTIONS)


def kubelet_cpu(cpu: Cpu) -> dict[str, int]:
    """A kubelet without cache information uses the socket as the L3 cache."""
    return {
        "id": cpu.id,
        "core": cpu.core,
        "l3": cpu.socket,
        "socket": cpu.socket,
        "node": cpu.node,
    }


def same_cpus(ours: int, answer: dict[str, Any]) -> bool:
    return str(CpuSet.from_int(ours)) == str(answer["cpuset"])


def summed(times: list[Times]) -> Times:
    base = [each.base for each in times if each.base is not None]
    return Times(sum(each.ours for each in times), sum(base) if base else None)


def accumulator_rows(size: int, extent: Extent) -> Iterator[Row]:
    """Each case under two bind policies and two strategies."""
    machine = layout.of(cpus(SHAPES[size], "interleaved"))
    values = []
    for take_case in take_cases(machine):
        cpu_counts = CpuRefCounts().adding(machine.cpus & ~take_case.free)
        for bind in (BindPolicy.FULL_PCPUS, BindPolicy.SPREAD_BY_PCPUS):
            for strategy in (Strategy.MOST_ALLOCATED, Strategy.LEAST_ALLOCATED):
                request = CpuRequest(take_case.need, bind, strategy=strategy)
                values.append(accumulated(machine, cpu_counts, request, extent))
    yield value_row(f"koordinator_take_cpus_{size}", statistics.mean(values), UNIT)
    yield value_row(f"koordinator_take_cpus_{size}_slowest", max(values), UNIT)


def accumulated(
    machine: Layout, cpu_counts: CpuRefCounts, request: CpuRequest, extent: Extent
) -> float:
    """Microseconds."""

    def call() -> object:
        return accumulator.take(machine, machine.cpus, cpu_counts, request)

    if not isinstance(call(), Taken):
        raise SystemExit(f"no CPUs for {request}")
    return statistics.median(timed(call, extent.fitting(timed(call, 1)[0]))) / 1e3


def merges(timer: PairedTimer) -> Iterator[Row]:
    for name, (nodes, resources) in MERGES.items():
        masks = [
            list(each)
            for count in range(1, nodes + 1)
            for each in combinations(range(nodes), count)
        ]
        providers = [
            {
                f"resource-{index}": [
                    TopologyHint(CpuSet(mask).mask, len(mask) == preferred_nodes) for mask in masks
                ]
            }
            for index, preferred_nodes in enumerate(resources)
        ]
        hints = [
            [{"mask": mask, "preferred": len(mask) == preferred_nodes} for mask in masks]
            for preferred_nodes in resources
        ]
        base_request = {"merge": {"numaNodes": list(range(nodes)), "hints": hints}}
        decision = Decision(f"merge_{name}", merging(providers, nodes), base_request, same_mask)
        yield timer.row(decision.case, timer.times(decision))


def merging(providers: list[dict[str, list[TopologyHint]]], nodes: int) -> Callable[[], Any]:
    return lambda: kubelet_merge(providers, range(nodes), NumaPolicy.RESTRICTED)


def same_mask(ours: Any, answer: dict[str, Any]) -> bool:
    mask = None if ours.mask is None else list(CpuSet.from_int(ours.mask))
    found = answer.get("mask"), answer.get("preferred", False), answer.get("admit", False)
    return (mask, ours.preferred, ours.admit) == found


def rows(peer: GoPeer | str, extent: Extent) -> list[Row]:
    timer = PairedTimer(peer, extent)
    table: list[Row] = []
    for size in SHAPES:
        table += take_cpus(timer, size)
        table += accumulator_rows(size, extent)
    table += merges(timer)
    return table


def main() -> None:
    options = arguments(__doc__)
    extent = QUICK if options.quick else FULL
    with ExitStack() as stack:
        peer = run_peer(stack, KUBELET, build=not options.quick)
        table = rows(peer, extent)
    report(table, options.output)


if __name__ == "__main__":
    main()
