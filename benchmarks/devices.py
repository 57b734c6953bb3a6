"""Choices of devices: the best set of linked GPUs, and all devices of a pod.

`best_gpu_set_N`: the best set among N GPUs by the objective `bandwidth`, for random sizes and sets
of free GPUs, each for the first time, after the tables of the matrix were built (`_setup`). There
are three matrices: PCIe only, a mesh of NVLinks, one switch for all. The base is a search of all
sets by the definition, in Python, with the same matrix and requests. `_again`: the same requests a
second time. `_besteffort`: by that objective, with the mesh; its definition has too many partitions
to search.

`allocate_N`: a pod's devices on a node of N GPUs, the mean over pods with whole cards, shares, and
cards with NICs under the same switches, as when the scheduler reserves them. The base is the code
of Koordinator's plugin DeviceShare with the same node and pods; both must allocate the same number
of devices. `_linked`: Topolet with known links. `hints_8_nodes`: the hints of a pod for all sets of
8 NUMA nodes; `hints_N_linked`: the mean over the same pods for 2 NUMA nodes and N linked GPUs.

A time is the microseconds of a single call: the median of the rounds, and the mean over requests or
pods. Both sides take turns in batches.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import msgspec
from common import Row, arguments, percentile, ratio_row, report, skipped_row, timed, value_row
from peers.go_peer import KOORDINATOR, GoPeer, run_peer

from agent.allocate.devices.allocation import Allocation, allocate, device_hints
from agent.allocate.devices.gpu_sets import BandwidthTable, BestEffortTable, GpuTable, Matrix
from agent.allocate.devices.inventory import LinkTable, NodeDevices, inventory, linked, node_devices
from agent.model.cpu.cpuset import members
from agent.model.cpu.policies import Strategy
from agent.model.devices import device_object
from agent.model.devices.device_object import (
    GPU_CORE,
    GPU_MEMORY,
    GPU_MEMORY_RATIO,
    RDMA,
    Device,
    DeviceTopology,
)
from agent.model.devices.device_request import device_request

UNIT = "us"
BASE = "Koordinator"
EXHAUSTIVE = "all sets"
ANSWER_SECONDS = 60.0
GPU_BYTES = 80 << 30
SIZES = (8, 16)
STRATEGY = Strategy.LEAST_ALLOCATED
JOINT = "scheduling.koordinator.sh/device-joint-allocate"
SAME_PCIE = '{"deviceTypes":["gpu","rdma"],"requiredScope":"SamePCIe"}'
USED = {1: 50, 2: 100, 5: 100}
"""The percent of a GPU that pods hold, by minor."""

PODS: dict[str, tuple[dict[str, int], dict[str, str]]] = {
    "one card": ({"nvidia.com/gpu": 1}, {}),
    "two cards": ({"nvidia.com/gpu": 2}, {}),
    "four cards": ({"nvidia.com/gpu": 4}, {}),
    "a share": ({"koordinator.sh/gpu": 30}, {}),
    "a share by memory": ({GPU_CORE: 20, GPU_MEMORY: GPU_BYTES // 8}, {}),
    "cards and NICs": ({"nvidia.com/gpu": 2, RDMA: 100}, {JOINT: SAME_PCIE}),
}
"""The total requests and the annotations of each pod."""

MATRICES: dict[str, Callable[[int, int], int]] = {
    "PCIe": lambda i, j: 50 if i // 2 == j // 2 else 40 if i // 4 == j // 4 else 20,
    "mesh": lambda i, j: (25, 50, 25, 0, 0, 25, 0)[(i * j + i ^ j) % 7] or 5,
    "switch": lambda i, j: 300,
}


class Extent(msgspec.Struct, frozen=True):
    """The extent of the measurement."""

    set_requests: int
    rounds: int
    calls: int
    besteffort_sizes: tuple[int, ...]
    """Sizes of sets for besteffort."""


FULL = Extent(set_requests=60, rounds=5, calls=300, besteffort_sizes=(2, 4, 8))
QUICK = Extent(set_requests=20, rounds=3, calls=50, besteffort_sizes=(2, 8))

SetRequest = tuple[int, int]
"""A mask of free GPUs, and the number of requested ones."""


def matrix(size: int, value: Callable[[int, int], int]) -> Matrix:
    return tuple(
        tuple(0 if i == j else value(min(i, j), max(i, j)) for j in range(size))
        for i in range(size)
    )


def set_requests(size: int, count: int) -> list[SetRequest]:
    """Different requests, the same in every run, without those that leave no choice."""
    rng = random.Random(size)
    found: set[SetRequest] = set()
    while len(found) < count:
        free = rng.sample(range(size), rng.randint(3, size))
        found.add((sum(1 << gpu for gpu in free), rng.randrange(2, len(free))))
    return sorted(found)


def by_definition(links: Matrix, free: int, count: int) -> int:
    """The best of all sets by `bandwidth`."""
    gpus = tuple(members(free))

    def key(chosen: tuple[int, ...]) -> tuple[int, int, int]:
        inside = [links[i][j] for i, j in combinations(chosen, 2)]
        rest = [each for each in gpus if each not in chosen]
        return min(inside), sum(inside), sum(links[i][j] for i, j in combinations(rest, 2))

    return sum(1 << gpu for gpu in max(combinations(gpus, count), key=key))


def best_sets(size: int, extent: Extent) -> Iterator[Row]:
    times = Queries()
    base: list[float] = []
    requests = set_requests(size, extent.set_requests)
    wide = [(1 << size) - 1 - (1 << gpu) for gpu in range(size)]
    others = [
        next((free, count) for free in wide if (free, count) not in requests)
        for count in range(2, size - 1)
    ]
    for value in MATRICES.values():
        links = matrix(size, value)
        table = times.query(partial(BandwidthTable, links), others, requests, extent.rounds)
        for set_request in requests:
            found: list[int] = []
            base += microseconds(lambda: found.append(by_definition(links, *set_request)))  # noqa: B023
            if found != [table.best(*set_request)]:
                raise SystemExit(f"best_gpu_set_{size}: the choice is not {found}: {set_request}")
    case = f"best_gpu_set_{size}"
    row = ratio_row(case, statistics.mean(times.first), statistics.mean(base), EXHAUSTIVE, UNIT)
    yield {**row, "p99": percentile(times.first, 99)}
    yield from times.others(case)


def besteffort(size: int, extent: Extent) -> Iterator[Row]:
    times = Queries()
    links = matrix(size, MATRICES["mesh"])
    requests = [
        (free, count) for free, count in set_requests(size, 400) if count in extent.besteffort_sizes
    ]
    every = [(free, count) for count in extent.besteffort_sizes for free in range(1 << size)]
    times.query(partial(BestEffortTable, links), every, requests, 1)
    case = f"best_gpu_set_{size}_besteffort"
    yield {
        **value_row(case, statistics.mean(times.first), UNIT),
        "p99": percentile(times.first, 99),
    }
    yield from times.others(case)


class Queries:
    """Microseconds of queries to tables: the `first` query of each request and the second
    (`again`), each the median of the rounds, and the setup of a table."""

    def __init__(self) -> None:
        self.first: list[float] = []
        self.again: list[float] = []
        self.setup: list[float] = []

    def query(
        self,
        make: Callable[[], GpuTable],
        before: Iterable[SetRequest],
        requests: list[SetRequest],
        rounds: int,
    ) -> GpuTable:
        """Every round uses a new table, which has answered the requests `before`: then it has what
        it computes for sets of one size. Returns the last."""
        first: list[list[float]] = []
        again: list[list[float]] = []
        for _ in range(rounds):
            start = time.perf_counter_ns()
            table = make()
            for free, count in before:
                table.best(free, count)
            self.setup.append((time.perf_counter_ns() - start) / 1e3)
            for samples in (first, again):
                samples.append([])
                for free, count in requests:
                    start = time.perf_counter_ns()
                    table.best(free, count)
                    samples[-1].append((time.perf_counter_ns() - start) / 1e3)
        self.first += map(statistics.median, zip(*first, strict=True))
        self.again += map(statistics.median, zip(*again, strict=True))
        return table

    def others(self, case: str) -> Iterator[Row]:
        yield value_row(f"{case}_again", statistics.mean(self.again), UNIT)
        yield value_row(f"{case}_setup", statistics.median(self.setup) / 1e3, "ms")


def microseconds(call: Callable[[], Any]) -> list[float]:
    """Microseconds of one call."""
    return [each / 1e3 for each in timed(call, 1)]


def devices(size: int) -> list[Device]:
    """Two GPUs and a NIC under each switch, two NUMA nodes."""
    gpu = {GPU_CORE: 100, GPU_MEMORY_RATIO: 100, GPU_MEMORY: GPU_BYTES}

    def topology_at(switch: int, bus: str) -> DeviceTopology:
        return DeviceTopology(0, switch * 4 // size, f"pci{switch}", bus)

    cards = [
        Device(
            "gpu",
            f"GPU-{each}",
            each,
            gpu,
            topology=topology_at(each // 2, f"0000:{each:02x}:00.0"),
        )
        for each in range(size)
    ]
    nics = [
        Device(
            "rdma",
            f"0000:4{each}:00.0",
            each,
            {RDMA: 100},
            topology=topology_at(each, f"0000:4{each}"),
        )
        for each in range(size // 2)
    ]
    return [*cards, *nics]


def allocated_resources(percent: int) -> dict[str, int]:
    return {
        GPU_CORE: percent,
        GPU_MEMORY_RATIO: percent,
        GPU_MEMORY: GPU_BYTES * percent // 100,
    }


def node(all_devices: list[Device], links: LinkTable | None = None) -> NodeDevices:
    allocated = {("gpu", minor): allocated_resources(percent) for minor, percent in USED.items()}
    return node_devices(inventory(all_devices, None, links), allocated)


def peer_request(all_devices: list[Device], name: str) -> dict[str, Any]:
    """One pod's request to the base."""
    amounts, annotations = PODS[name]
    requests = {resource: str(amount) for resource, amount in amounts.items()}
    container = {"name": "main", "resources": {"requests": requests, "limits": requests}}
    allocated = [
        {
            "gpu": [
                {
                    "minor": minor,
                    "resources": {key: str(n) for key, n in allocated_resources(percent).items()},
                }
            ]
        }
        for minor, percent in USED.items()
    ]
    return {
        "device": device_object.encode("node", all_devices),
        "allocated": allocated,
        "pod": {
            "metadata": {"name": "pod", "namespace": "default", "annotations": annotations},
            "spec": {"containers": [container]},
        },
        "strategy": STRATEGY.value,
    }


def allocations(size: int, peer: GoPeer | str, extent: Extent) -> Iterator[Row]:
    all_devices = devices(size)
    free = node(all_devices)
    our_means: list[float] = []
    base_means: list[float] = []
    for name in PODS:
        call = allocating(free, name)
        chosen = call()
        ours: list[int] = []
        base: list[int] = []
        for _ in range(extent.rounds):
            ours += timed(call, extent.calls)
            if isinstance(peer, GoPeer):
                answer = peer.call(
                    peer_request(all_devices, name), extent.calls, ANSWER_SECONDS, f"{name}: {BASE}"
                )
                if {kind: len(each) for kind, each in answer["allocation"].items()} != chosen:
                    raise SystemExit(f"allocate_{size}: {name}: the base differs: {answer}")
                base += answer["ns"]
        our_means.append(statistics.median(ours) / 1e3)
        if base:
            base_means.append(statistics.median(base) / 1e3)
    case = f"allocate_{size}"
    if base_means:
        yield ratio_row(case, statistics.mean(our_means), statistics.mean(base_means), BASE, UNIT)
    else:
        yield skipped_row(case, statistics.mean(our_means), UNIT, str(peer))
    known = node(all_devices, linked(range(size), matrix(size, MATRICES["PCIe"])))
    times = [statistics.median(timed(allocating(known, name), extent.calls)) / 1e3 for name in PODS]
    yield value_row(f"{case}_linked", statistics.mean(times), UNIT)


def allocating(free: NodeDevices, name: str) -> Callable[[], dict[str, int]]:
    """Returns the number of devices of each type."""
    request = device_request(*PODS[name])
    assert request is not None

    def call() -> dict[str, int]:
        found = allocate(free, request, strategy=STRATEGY)
        if not isinstance(found, Allocation):
            raise SystemExit(f"{name}: {found}")
        return {kind: len(each) for kind, each in found.devices.items()}

    return call


def hints(extent: Extent) -> Row:
    request = device_request(*PODS["cards and NICs"])
    assert request is not None
    spread = [
        msgspec.structs.replace(
            each,
            topology=DeviceTopology(0, each.minor if each.type == "rdma" else each.minor // 2, ""),
        )
        for each in devices(16)
    ]
    free = node(spread)
    call = timed(lambda: device_hints(free, request, range(8), STRATEGY), extent.rounds)
    return value_row("hints_8_nodes", statistics.median(call) / 1e3, UNIT)


def linked_hints(size: int, extent: Extent) -> Row:
    free = node(devices(size), linked(range(size), matrix(size, MATRICES["mesh"])))
    times = []
    for name in PODS:
        request = device_request(*PODS[name])
        assert request is not None
        call = partial(device_hints, free, request, range(2), STRATEGY)
        times.append(statistics.median(timed(call, extent.calls)) / 1e3)
    return value_row(f"hints_{size}_linked", statistics.mean(times), UNIT)


def rows(peer: GoPeer | str, extent: Extent) -> list[Row]:
    table: list[Row] = []
    for size in reversed(SIZES):
        table += best_sets(size, extent)
        table += besteffort(size, extent)
    for size in SIZES:
        table += allocations(size, peer, extent)
    return [*table, hints(extent), *(linked_hints(size, extent) for size in SIZES)]


def main() -> None:
    options = arguments(__doc__)
    with ExitStack() as stack:
        peer = run_peer(stack, KOORDINATOR, build=not options.quick)
        table = rows(peer, QUICK if options.quick else FULL)
    report(table, options.output)


if __name__ == "__main__":
    main()
