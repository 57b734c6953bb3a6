"""Decisions about CPUs and NUMA nodes, beside the kubelet's own code on the same input.

CPUs: machines of 64, 256 and 512 CPUs, a few sizes of request, a few ways in which CPUs are taken.
`take_cpus_N` is the sum over all of them. The base is the packed algorithm of the static CPU
manager policy. Koordinator's rule has nothing beside it here: microseconds of a decision, the mean
and the slowest.

NUMA: `merge_NxR` merges the hints of R resources under the policy restricted. Each resource has all
masks of N nodes and prefers those of one node; in `apart` the last prefers those of two, so that
no choice suits all.

A time is the median of single calls, what is made once a machine (our layout, the kubelet's
topology) left out. Both sides take turns in batches, and must give the same answer.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import msgspec
from common import Row, alone, arguments, compared, report, skipped
from peers.kubelet_peer import KubeletPeer, PeerError, program

from agent.allocate import accumulator, layout
from agent.allocate.cpu_request import CpuRequest, Taken
from agent.allocate.holdings import Holdings
from agent.allocate.kubelet.options import StaticOptions
from agent.allocate.kubelet.take import take
from agent.allocate.layout import Layout
from agent.allocate.numa import kubelet_merge
from agent.allocate.numa.hint import Hint
from agent.conformance.machines import cpus
from agent.model.cpuset import CpuSet
from agent.model.policies import BindPolicy, NumaPolicy, NumaStrategy
from agent.model.topology import Cpu

SHAPES = {64: (2, 1, 16, 2), 256: (2, 4, 16, 2), 512: (2, 8, 16, 2)}
"""Sockets, NUMA nodes a socket, cores a node, threads a core; numbered `interleaved`."""

TAKEN = {"none": 0.0, "25": 0.25, "50": 0.5, "75": 0.75, "threads": None}
"""Which part of the CPUs is taken at random; None: one thread of each core."""

MERGES = {
    "2x3": (2, (1, 1, 1)),
    "4x3": (4, (1, 1, 1)),
    "8x1": (8, (1,)),
    "8x2": (8, (1, 1)),
    "8x2_apart": (8, (1, 2)),
    "8x3": (8, (1, 1, 1)),
}
"""NUMA nodes, and a resource each: how many nodes its preferred masks have. The slowest last."""

OPTIONS = StaticOptions()
BASE = "kubelet"
UNIT = "us"
ONCE_SECONDS = 1.0
"""What takes longer is not repeated."""
ANSWER_SECONDS = 120.0


class Turns(msgspec.Struct, frozen=True):
    """How much is measured. A batch has as many calls as fit its seconds, at least one."""

    rounds: int
    batch_seconds: float


FULL = Turns(rounds=7, batch_seconds=0.02)
QUICK = Turns(rounds=2, batch_seconds=0.004)


class Times(msgspec.Struct, frozen=True):
    """Microseconds of one decision; `base` None where the other side can't be asked."""

    ours: float
    base: float | None


class Rivals:
    """Asks both sides in turns. `peer`: the other side, or why there is none."""

    def __init__(self, peer: KubeletPeer | str, turns: Turns) -> None:
        self.peer = peer
        self._turns = turns

    def times(
        self,
        case: str,
        ours: Callable[[], Any],
        question: dict[str, Any],
        same: Callable[[Any, dict[str, Any]], bool],
    ) -> Times:
        """Of one question to both. Ends the program where the other side fails or differs."""
        try:
            return self._times(case, ours, question, same)
        except PeerError as error:
            raise SystemExit(f"{case}: {BASE}: {error}") from None

    def _times(
        self,
        case: str,
        ours: Callable[[], Any],
        question: dict[str, Any],
        same: Callable[[Any, dict[str, Any]], bool],
    ) -> Times:
        decided = ours()
        mine: list[int] = []
        theirs: list[int] = []
        calls = self._fitting(timed(ours, 1)[0])
        base_calls = self._ask_first(case, question, lambda answer: same(decided, answer), theirs)
        for _ in range(self._turns.rounds):
            mine += timed(ours, calls)
            if base_calls and isinstance(self.peer, KubeletPeer):
                theirs += self.peer.ask(question, base_calls, ANSWER_SECONDS)["ns"]
        base = statistics.median(theirs) / 1e3 if theirs else None
        return Times(statistics.median(mine) / 1e3, base)

    def _ask_first(
        self,
        case: str,
        question: dict[str, Any],
        same: Callable[[dict[str, Any]], bool],
        kept: list[int],
    ) -> int:
        """How many calls a batch of the other side has, 0: none more than the one in `kept`."""
        if isinstance(self.peer, str):
            return 0
        answer = self.peer.ask(question, 1, ANSWER_SECONDS)
        if not same(answer):
            raise SystemExit(f"{case}: ours differs from {answer} on {question}")
        if answer["ns"][0] > ONCE_SECONDS * 1e9:
            kept += answer["ns"]
            return 0
        return self._fitting(answer["ns"][0])

    def _fitting(self, nanoseconds: int) -> int:
        return max(1, int(self._turns.batch_seconds * 1e9) // max(1, nanoseconds))

    def row(self, case: str, times: Times) -> Row:
        if times.base is None:
            reason = self.peer if isinstance(self.peer, str) else "not asked"
            return skipped(case, times.ours, UNIT, reason)
        return compared(case, times.ours, times.base, BASE, UNIT)


def timed(call: Callable[[], Any], calls: int) -> list[int]:
    """Nanoseconds of each call."""
    took = []
    for _ in range(calls):
        start = time.perf_counter_ns()
        call()
        took.append(time.perf_counter_ns() - start)
    return took


class Point(msgspec.Struct, frozen=True):
    """A request of `need` CPUs where only those in `free` (a mask) may be taken."""

    name: str
    need: int
    free: int


def points(machine: Layout) -> Iterator[Point]:
    """Every size and way of being taken where there is room, and never all that is free: that is no
    decision. The same points every time."""
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
        question = {
            "take": {
                "cpus": there,
                "available": str(CpuSet.from_int(point.free)),
                "need": point.need,
            }
        }
        name = f"{case}_{point.name}"
        times = rivals.times(name, taking(machine, point), question, same_cpus)
        single.append(rivals.row(name, times))
        total.append(times)
    yield rivals.row(case, summed(total))
    yield from single


def taking(machine: Layout, point: Point) -> Callable[[], int]:
    return lambda: take(machine, point.free, point.need, OPTIONS)


def theirs(cpu: Cpu) -> dict[str, int]:
    """Without cache information a kubelet takes the socket for an L3 cache."""
    return {
        "id": cpu.id,
        "core": cpu.core,
        "l3": cpu.socket,
        "socket": cpu.socket,
        "node": cpu.node,
    }


def same_cpus(ours: int, answer: dict[str, Any]) -> bool:
    return str(CpuSet.from_int(ours)) == answer["cpuset"]


def summed(times: list[Times]) -> Times:
    base = [each.base for each in times if each.base is not None]
    return Times(sum(each.ours for each in times), sum(base) if base else None)


def accumulator_rows(size: int, turns: Turns) -> Iterator[Row]:
    """Every point under two bind policies and two strategies."""
    machine = layout.of(cpus(SHAPES[size], "interleaved"))
    values = []
    for point in points(machine):
        holdings = Holdings().adding(machine.cpus & ~point.free)
        for bind in (BindPolicy.FULL_PCPUS, BindPolicy.SPREAD_BY_PCPUS):
            for strategy in (NumaStrategy.MOST_ALLOCATED, NumaStrategy.LEAST_ALLOCATED):
                request = CpuRequest(point.need, bind, strategy=strategy)
                values.append(accumulated(machine, holdings, request, turns))
    yield alone(f"koordinator_take_cpus_{size}", statistics.mean(values), UNIT)
    yield alone(f"koordinator_take_cpus_{size}_slowest", max(values), UNIT)


def accumulated(machine: Layout, holdings: Holdings, request: CpuRequest, turns: Turns) -> float:
    """Microseconds."""

    def call() -> object:
        return accumulator.take(machine, machine.cpus, holdings, request)

    if not isinstance(call(), Taken):
        raise SystemExit(f"no CPUs for {request}")
    calls = max(1, int(turns.batch_seconds * 1e9) // max(1, timed(call, 1)[0]))
    return statistics.median(timed(call, calls)) / 1e3


def merges(rivals: Rivals) -> Iterator[Row]:
    for name, (nodes, resources) in MERGES.items():
        masks = [
            list(each)
            for count in range(1, nodes + 1)
            for each in combinations(range(nodes), count)
        ]
        providers = [
            {f"resource-{index}": [Hint(CpuSet(mask).mask, len(mask) == narrow) for mask in masks]}
            for index, narrow in enumerate(resources)
        ]
        asked = [
            [{"mask": mask, "preferred": len(mask) == narrow} for mask in masks]
            for narrow in resources
        ]
        question = {"merge": {"numaNodes": list(range(nodes)), "hints": asked}}
        case = f"merge_{name}"
        yield rivals.row(case, rivals.times(case, merging(providers, nodes), question, same_mask))


def merging(providers: list[dict[str, list[Hint]]], nodes: int) -> Callable[[], Any]:
    return lambda: kubelet_merge.merge(providers, range(nodes), NumaPolicy.RESTRICTED)


def same_mask(ours: Any, answer: dict[str, Any]) -> bool:
    mask = None if ours.mask is None else list(CpuSet.from_int(ours.mask))
    found = answer.get("mask"), answer.get("preferred", False), answer.get("admit", False)
    return (mask, ours.preferred, ours.admit) == found


def rows(peer: KubeletPeer | str, turns: Turns) -> list[Row]:
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
    try:
        built = program(build=not options.quick)
    except PeerError as error:
        table = rows(str(error), turns)
    else:
        with KubeletPeer(built) as peer:
            table = rows(peer, turns)
    report(table, options.output)


if __name__ == "__main__":
    main()
