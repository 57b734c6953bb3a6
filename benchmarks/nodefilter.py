"""The filter of a pod that needs CPUs of certain NUMA nodes, on one node, without caches.

`filter_bind_single`: a pod with 8 exclusive CPUs, under SingleNUMANode on 2 NUMA nodes of 64 CPUs.
`filter_share_restricted_8`: a pod that shares CPUs, under Restricted on 8 NUMA nodes of 32 CPUs;
`_wide`: one that needs five of them. Each node already has pods of both kinds. Topolet's side is
the offer of a node allocator; the base is the filter of Koordinator's plugin NodeNUMAResource, with
its objects in memory. Neither time includes the work that is done once for each pod; `_pod` is that
of Topolet. Both must choose the same NUMA nodes. Go took 2.2 ms and, for the second case, 43 ms.

A time is the median of single calls. Both sides take turns in batches.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import msgspec
from common import Row, arguments, median_ms, ratio_row, report, skipped_row, timed, value_row
from peers.go_peer import KOORDINATOR, GoPeer, run_peer

from agent.allocate.node_allocator.allocator import NodeAllocator
from agent.allocate.node_allocator.answer import NodeOffer
from agent.allocate.node_allocator.properties import node_properties, topology_options
from agent.allocate.policies_in_force import NUMA_LABEL
from agent.model.cpu.cpuset import EMPTY
from agent.model.cpu.policies import NumaPolicy
from agent.model.cpu.topology import Topology
from agent.model.nrt import resource_topology
from agent.model.nrt.node_annotations import NodeConfiguration, koordinator_annotations
from agent.model.nrt.resource_topology import Amounts, NodeTopology, Version, Zone
from agent.model.pod import apiobjects
from agent.model.pod.annotations import RESOURCE_STATUS
from agent.model.pod.apiobjects import ApiPod
from agent.model.pod.qos import QOS_LABEL, QoS
from agent.model.pod_request import PodRequest, request_of
from conformance import machines

UNIT = "ms"
BASE = "NodeNUMAResource"
ANSWER_SECONDS = 120.0
ZONE_BYTES = 128 << 30


class Case(msgspec.Struct, frozen=True):
    """A machine's shape (see `conformance.machines`), the node's policy, the pod's class, CPU and
    memory, and the number of pods of each class that were allocated before."""

    name: str
    shape: tuple[int, int, int, int]
    policy: NumaPolicy
    qos: QoS
    cpu: int
    memory_gib: int
    before: int


TWO = (2, 1, 32, 2)
EIGHT = (2, 4, 16, 2)
CASES = (
    Case("filter_bind_single", TWO, NumaPolicy.SINGLE_NUMA_NODE, QoS.LSR, 8, 16, 8),
    Case("filter_share_restricted_8", EIGHT, NumaPolicy.RESTRICTED, QoS.LS, 4, 16, 10),
    Case("filter_share_restricted_8_wide", EIGHT, NumaPolicy.RESTRICTED, QoS.LS, 90, 64, 10),
)


class Extent(msgspec.Struct, frozen=True):
    """The extent of the measurement; the base has `base_calls` in each round."""

    rounds: int
    calls: int
    base_calls: int


FULL = Extent(rounds=7, calls=500, base_calls=20)
QUICK = Extent(rounds=3, calls=100, base_calls=5)


class FilterCase(msgspec.Struct, frozen=True):
    """One pod and one node, as objects and as values."""

    base_request: dict[str, Any]
    allocator: NodeAllocator
    pod: ApiPod
    pod_request: PodRequest

    def ours(self) -> object:
        return self.allocator.offer(self.pod_request)

    def numa_nodes(self) -> list[int]:
        offer = self.allocator.offer(self.pod_request)
        return (
            sorted(offer.assigned_pod().allocation.amounts) if isinstance(offer, NodeOffer) else []
        )


def build_case(case: Case) -> FilterCase:
    cpus = machines.cpus(case.shape, "interleaved")
    topology = NodeTopology(
        "node",
        tuple(_zone(node, sum(cpu.node == node for cpu in cpus)) for node in _nodes(case)),
        annotations=koordinator_annotations(
            Topology(cpus, (), EMPTY, EMPTY, smt=True), {}, (), NodeConfiguration()
        ),
    )
    labels = {NUMA_LABEL: case.policy.value}
    allocatable = {"cpu": str(len(cpus)), "memory": str(ZONE_BYTES * len(_nodes(case)))}
    facts, faults = topology_options(labels, {}, topology, 1000 * len(cpus))
    if faults:
        raise SystemExit(f"{case.name}: {faults}")
    allocator = NodeAllocator(node_properties("node", labels, facts))
    allocated = [_allocate_pod(case, allocator, number) for number in range(2 * case.before)]
    body = pod("pod", case.qos, case.cpu, case.memory_gib)
    base_request = {
        "node": {
            "metadata": {"name": "node", "labels": labels},
            "status": {"allocatable": allocatable},
        },
        "topology": resource_topology.encode(topology, Version.V1ALPHA1),
        "held": allocated,
        "pod": body,
    }
    read = apiobjects.from_object(body)
    return FilterCase(base_request, allocator, read, request_of(read))


def pod(name: str, qos: QoS, cpu: int, memory_gib: int) -> dict[str, Any]:
    amounts = {"cpu": str(cpu), "memory": f"{memory_gib}Gi"}
    resources = {"requests": amounts, "limits": amounts}
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": name,
            "labels": {QOS_LABEL: qos.value},
        },
        "spec": {"priority": 9500, "containers": [{"name": "main", "resources": resources}]},
    }


def _allocate_pod(case: Case, allocator: NodeAllocator, number: int) -> Any:
    """The resource-status of a pod of 4 CPUs, after its allocation."""
    qos = QoS.LSR if number % 2 else QoS.LS
    pod_request = request_of(apiobjects.from_object(pod(f"pod-{number}", qos, 4, 8)))
    offer = allocator.offer(pod_request)
    if not isinstance(offer, NodeOffer):
        raise SystemExit(f"{case.name}: no offer for pod {number}")
    allocator.commit(offer)
    return msgspec.json.decode(offer.annotations()[RESOURCE_STATUS])


def _nodes(case: Case) -> range:
    sockets, nodes, _, _ = case.shape
    return range(sockets * nodes)


def _zone(node: int, cpus: int) -> Zone:
    amounts = {"cpu": 1000 * cpus, "memory": ZONE_BYTES}
    return Zone(node, {name: Amounts(each, each, each) for name, each in amounts.items()})


def rows(peer: GoPeer | str, extent: Extent) -> Iterator[Row]:
    """`peer`: the Go program, or the reason why it is missing. Ends the benchmark if it differs."""
    for case in CASES:
        filter_case = build_case(case)
        chosen = filter_case.numa_nodes()
        ours: list[int] = []
        base: list[int] = []
        for _ in range(extent.rounds):
            ours += timed(filter_case.ours, extent.calls)
            if isinstance(peer, GoPeer):
                answer = peer.call(
                    filter_case.base_request,
                    extent.base_calls,
                    ANSWER_SECONDS,
                    f"{case.name}: {BASE}",
                )
                if answer["numaNodes"] != chosen:
                    reason = f"the base differs: {chosen}, {answer['numaNodes']}"
                    raise SystemExit(f"{case.name}: {reason}")
                base += answer["ns"]
        if base:
            yield ratio_row(case.name, median_ms(ours), median_ms(base), BASE, UNIT)
        else:
            yield skipped_row(case.name, median_ms(ours), UNIT, str(peer))
        read = timed(lambda: request_of(filter_case.pod), extent.calls)  # noqa: B023
        yield value_row(f"{case.name}_pod", median_ms(read), UNIT)


def table(stack: ExitStack, *, quick: bool) -> list[Row]:
    """All rows. The Go program is the base if it is built or, unless `quick`, can be built."""
    peer = run_peer(stack, KOORDINATOR, build=not quick)
    return list(rows(peer, QUICK if quick else FULL))


def main() -> None:
    options = arguments(__doc__)
    with ExitStack() as stack:
        lines = table(stack, quick=options.quick)
    report(lines, options.output)


if __name__ == "__main__":
    main()
