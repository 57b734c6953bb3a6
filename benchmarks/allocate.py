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
from common import Row, alone, arguments, compared, report, skipped, timed
from peers.go_peer import KUBELET, GoPeer, run_peer

from agent.allocate import accumulator, layout
from agent.allocate.accumulator import Taken
from agent.allocate.kubelet.cpu_assignment import take
from agent.allocate.kubelet.static_policy import StaticOptions
from agent.allocate.layout import CpuRefCounts, Layout
from agent.allocate.numa.hint import TopologyHint
from agent.allocate.packing import CpuRequest
from agent.conformance.machines import cpus
from agent.conformance.merge_hints import kubelet_merge
from agent.model.cpu.cpuset import CpuSet
from agent.model.cpu.policies import BindPolicy, NumaPolicy, Strategy
from agent.model.cpu.topology import Cpu

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


class Turns(msgspec.Struct, frozen=True):
    """The extent of the measurement."""

    rounds: int
    batch_seconds: float

    def fitting(self, nanoseconds: int) -> int:
        """The number of calls in a batch if one takes this long; at least one."""
        return max(1, int(self.batch_seconds * 1e9) // max(1, nanoseconds))


FULL = Turns(rounds=7, batch_seconds=0.02)
QUICK = Turns(rounds=2, batch_seconds=0.004)


class Times(msgspec.Struct, frozen=True):
    """Microseconds of one decision; `base` is None if the Go program is missing."""

    ours: float
    base: float | None


class Question(msgspec.Struct, frozen=True):
    """One decision for both sides: `ours` is Topolet's, `asked` is the request to the Go program,
    `same` compares both answers."""

    case: str
    ours: Callable[[], Any]
    asked: dict[str, Any]
    same: Callable[[Any, dict[str, Any]], bool]


class Rivals:
    """Calls both sides in turns. `peer`: the Go program, or the reason why it is missing."""

    def __init__(self, peer: GoPeer | str, turns: Turns) -> None:
        self._peer = peer
        self._turns = turns

    def times(self, question: Question) -> Times:
        """Ends the benchmark if the Go program fails or its answer differs."""
        decided = question.ours()
        mine: list[int] = []
        theirs: list[int] = []
        calls = self._turns.fitting(timed(question.ours, 1)[0])
        base_calls = 0
        if not isinstance(self._peer, str):
            answer = self._ask(question, 1)
            if not question.same(decided, answer):
                raise SystemExit(f"{question.case}: the base differs: {answer}: {question.asked}")
            took = answer["ns"][0]
            if took > ONCE_SECONDS * 1e9:
                theirs.append(took)
            else:
                base_calls = self._turns.fitting(took)
        for _ in range(self._turns.rounds):
            mine += timed(question.ours, calls)
            if base_calls:
                theirs += self._ask(question, base_calls)["ns"]
        base = statistics.median(theirs) / 1e3 if theirs else None
        return Times(statistics.median(mine) / 1e3, base)

    def row(self, case: str, times: Times) -> Row:
        if times.base is None:
            return skipped(case, times.ours, UNIT, str(self._peer))
        return compared(case, times.ours, times.base, BASE, UNIT)

    def _ask(self, question: Question, calls: int) -> dict[str, Any]:
        assert isinstance(self._peer, GoPeer)
        about = f"{question.case}: {BASE}"
        return self._peer.ask(question.asked, calls, ANSWER_SECONDS, about)


class Point(msgspec.Struct, frozen=True):
    """A request of `need` CPUs of those in `free`, a mask."""

    name: str
    need: int
    free: int


def points(machine: Layout) -> Iterator[Point]:
    """Every size and pattern with enough free CPUs, except requests for all of them, which need no
    decision. All runs have the same points."""
    everything = list(CpuSet.from_int(machine.cpus))
    sizes = (2, 8, len(everything) // 4 - 2, len(everything) // 2 - 2)
    lot = random.Random(len(everything))
    for name, part in TAKEN.items():
        if part is None:
            taken = machine.leads
        else:
            taken = CpuSet(lot.sample(everything, int(part * len(everything)))).mask
        free = machine.cpus & ~taken
        for need in sizes:
            if need < free.bit_count():
                yield Point(f"{need}_taken_{name}", need, free)


def take_cpus(rivals: Rivals, size: int) -> Iterator[Row]:
    """The sum, then a row for each point."""
    described = cpus(SHAPES[size], "interleaved")
    machine = layout.of(described)
    there = [theirs(cpu) for cpu in described]
    case = f"take_cpus_{size}"
    single: list[Row] = []
    total: list[Times] = []
    for point in points(machine):
        available = str(CpuSet.from_int(point.free))
        asked = {"take": {"cpus": there, "available": available, "need": point.need}}
        name = f"{case}_{point.name}"
        times = rivals.times(Question(name, taking(machine, point), asked, same_cpus))
        single.append(rivals.row(name, times))
        total.append(times)
    yield rivals.row(case, summed(total))
    yield from single


def taking(machine: Layout, point: Point) -> Callable[[], int]:
    return lambda: take(machine, point.free, point.need, OPTIONS)


def theirs(cpu: Cpu) -> dict[str, int]:
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


def accumulator_rows(size: int, turns: Turns) -> Iterator[Row]:
    """Every point under two bind policies and two strategies."""
    machine = layout.of(cpus(SHAPES[size], "interleaved"))
    values = []
    for point in points(machine):
        holdings = CpuRefCounts().adding(machine.cpus & ~point.free)
        for bind in (BindPolicy.FULL_PCPUS, BindPolicy.SPREAD_BY_PCPUS):
            for strategy in (Strategy.MOST_ALLOCATED, Strategy.LEAST_ALLOCATED):
                request = CpuRequest(point.need, bind, strategy=strategy)
                values.append(accumulated(machine, holdings, request, turns))
    yield alone(f"koordinator_take_cpus_{size}", statistics.mean(values), UNIT)
    yield alone(f"koordinator_take_cpus_{size}_slowest", max(values), UNIT)


def accumulated(
    machine: Layout, holdings: CpuRefCounts, request: CpuRequest, turns: Turns
) -> float:
    """Microseconds."""

    def call() -> object:
        return accumulator.take(machine, machine.cpus, holdings, request)

    if not isinstance(call(), Taken):
        raise SystemExit(f"no CPUs for {request}")
    return statistics.median(timed(call, turns.fitting(timed(call, 1)[0]))) / 1e3


def merges(rivals: Rivals) -> Iterator[Row]:
    for name, (nodes, resources) in MERGES.items():
        masks = [
            list(each)
            for count in range(1, nodes + 1)
            for each in combinations(range(nodes), count)
        ]
        providers = [
            {
                f"resource-{index}": [
                    TopologyHint(CpuSet(mask).mask, len(mask) == narrow) for mask in masks
                ]
            }
            for index, narrow in enumerate(resources)
        ]
        hints = [
            [{"mask": mask, "preferred": len(mask) == narrow} for mask in masks]
            for narrow in resources
        ]
        asked = {"merge": {"numaNodes": list(range(nodes)), "hints": hints}}
        question = Question(f"merge_{name}", merging(providers, nodes), asked, same_mask)
        yield rivals.row(question.case, rivals.times(question))


def merging(providers: list[dict[str, list[TopologyHint]]], nodes: int) -> Callable[[], Any]:
    return lambda: kubelet_merge(providers, range(nodes), NumaPolicy.RESTRICTED)


def same_mask(ours: Any, answer: dict[str, Any]) -> bool:
    mask = None if ours.mask is None else list(CpuSet.from_int(ours.mask))
    found = answer.get("mask"), answer.get("preferred", False), answer.get("admit", False)
    return (mask, ours.preferred, ours.admit) == found


def rows(peer: GoPeer | str, turns: Turns) -> list[Row]:
    rivals = Rivals(peer, turns)
    table: list[Row] = []
    for size in SHAPES:
        table += take_cpus(rivals, size)
        table += accumulator_rows(size, turns)
    table += merges(rivals)
    return table


def main() -> None:
    options = arguments(__doc__)
    turns = QUICK if options.quick else FULL
    with ExitStack() as stack:
        peer = run_peer(stack, KUBELET, build=not options.quick)
        table = rows(peer, turns)
    report(table, options.output)


if __name__ == "__main__":
    main()
