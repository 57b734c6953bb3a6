"""The filter of a plain pod by the zones of one node, without caches.

`filter_zones` is the mean over nodes of 2 and 8 NUMA nodes, both scopes, and pods that fit, that do
not, and that have sidecars. Topolet's side begins with the pod and the NodeResourceTopology as
values. So does the base, the filter of kube-scheduler's plugin NodeResourceTopologyMatch, with its
objects in memory. Both must give the same answer. `_pod`: the same if the pod is read once for many
nodes. `_node`: the work that each change of a NodeResourceTopology causes.

A time is the median of single calls. Both sides take turns in batches.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import msgspec
from common import Row, arguments, median_ms, ratio_row, report, skipped_row, timed, value_row
from peers.go_peer import SCHEDULER_PLUGINS, GoPeer, run_peer

from agent.allocate.nrt.filter import filter as by_zones
from agent.allocate.nrt.node import ZonedNode, zoned_node
from agent.allocate.refusal import Refusal
from agent.model.nrt import resource_topology
from agent.model.nrt.resource_topology import NodeTopology
from agent.model.pod import apiobjects
from agent.model.pod.apiobjects import ApiPod
from agent.model.pod.numa_request import numa_request_of

CASE = "filter_zones"
UNIT = "ms"
BASE = "NodeResourceTopologyMatch"
ANSWER_SECONDS = 60.0

GPU = "nvidia.com/gpu"
ALLOCATABLE = {"cpu": "128", "memory": "512Gi", "pods": "250", GPU: "8"}

PODS: dict[str, tuple[list[dict[str, str]], list[dict[str, str]]]] = {
    "fits": ([{"cpu": "4", "memory": "8Gi"}], []),
    "fits a later one": ([{"cpu": "12", "memory": "8Gi", GPU: "1"}], []),
    "does not fit": ([{"cpu": "17", "memory": "8Gi"}], []),
    "several": ([{"cpu": "2", "memory": "4Gi"}, {"cpu": "1", "memory": "2Gi"}], []),
    "sidecar": ([{"cpu": "2", "memory": "4Gi", GPU: "1"}], [{"cpu": "1", "memory": "1Gi"}]),
}
"""The requests, which are also the limits, of containers and of sidecars. No container with its
sidecar is larger than a NUMA node, since the two sides differ there."""


class Extent(msgspec.Struct, frozen=True):
    """The extent of the measurement."""

    rounds: int
    calls: int


FULL = Extent(rounds=7, calls=500)
QUICK = Extent(rounds=3, calls=100)


class FilterCase(msgspec.Struct, frozen=True):
    """One pod and one node, as objects and as values."""

    base_request: dict[str, Any]
    topology: NodeTopology
    node: ZonedNode
    pod: ApiPod

    def ours(self) -> object:
        return by_zones(self.node, numa_request_of(self.pod))


def filter_cases() -> Iterator[FilterCase]:
    for count, scope, name in product((2, 8), ("container", "pod"), PODS):
        topology_body = topology_object(count, scope)
        topology = resource_topology.decode(topology_body)
        body = pod_object(*PODS[name])
        yield FilterCase(
            {
                "topology": topology_body,
                "node": {"metadata": {"name": "node"}, "status": {"allocatable": ALLOCATABLE}},
                "pod": body,
            },
            topology,
            zoned_node(topology, ALLOCATABLE),
            apiobjects.from_object(body),
        )


def topology_object(count: int, scope: str) -> dict[str, Any]:
    """The second half of the NUMA nodes has more free CPUs, and the GPUs."""
    zones = []
    for zone in range(count):
        second_half = zone >= count // 2
        left = {
            "cpu": "16" if second_half else "8",
            "memory": "60Gi",
            **({GPU: "4"} if second_half else {}),
        }
        zones.append(
            {
                "name": f"node-{zone}",
                "type": "Node",
                "costs": [
                    {"name": f"node-{other}", "value": 10 if other == zone else 20}
                    for other in range(count)
                ],
                "resources": [
                    {"name": name, "capacity": n, "allocatable": n, "available": n}
                    for name, n in left.items()
                ],
            }
        )
    return {
        "metadata": {"name": "node"},
        "topologyPolicies": [],
        "attributes": [
            {"name": "topologyManagerPolicy", "value": "single-numa-node"},
            {"name": "topologyManagerScope", "value": scope},
        ],
        "zones": zones,
    }


def pod_object(containers: list[dict[str, str]], sidecars: list[dict[str, str]]) -> dict[str, Any]:
    def container(requests: dict[str, str], name: str, **more: str) -> dict[str, Any]:
        return {"name": name, "resources": {"requests": requests, "limits": requests}, **more}

    return {
        "metadata": {"name": "pod", "namespace": "default", "uid": "pod"},
        "spec": {
            "containers": [container(each, f"main-{n}") for n, each in enumerate(containers)],
            "initContainers": [
                container(each, f"side-{n}", restartPolicy="Always")
                for n, each in enumerate(sidecars)
            ],
        },
        "status": {"qosClass": "Guaranteed"},
    }


def rows(peer: GoPeer | str, extent: Extent) -> list[Row]:
    """`peer`: the Go program, or the reason why it is missing. Ends the benchmark if it differs."""
    our_times: list[float] = []
    base_times: list[float] = []
    pod_read_times: list[float] = []
    node_times: list[float] = []
    for filter_case in filter_cases():
        found = filter_case.ours()
        reason = f"cannot align {found.kind}" if isinstance(found, Refusal) else ""
        ours: list[int] = []
        base: list[int] = []
        for _ in range(extent.rounds):
            ours += timed(filter_case.ours, extent.calls)
            if isinstance(peer, GoPeer):
                answer = peer.call(
                    filter_case.base_request, extent.calls, ANSWER_SECONDS, f"{CASE}: {BASE}"
                )
                if answer["reason"] != reason:
                    raise SystemExit(f"{CASE}: the base differs: {reason!r}, {answer['reason']!r}")
                base += answer["ns"]
        our_times.append(median_ms(ours))
        if base:
            base_times.append(median_ms(base))
        pod_read_times.append(median_ms(timed(_with_read_pod(filter_case), extent.calls)))
        node_times.append(median_ms(timed(_read_node(filter_case), extent.calls)))
    ours_ms = statistics.mean(our_times)
    if isinstance(peer, GoPeer):
        row = ratio_row(CASE, ours_ms, statistics.mean(base_times), BASE, UNIT)
    else:
        row = skipped_row(CASE, ours_ms, UNIT, peer)
    return [
        row,
        value_row(f"{CASE}_pod", statistics.mean(pod_read_times), UNIT),
        value_row(f"{CASE}_node", statistics.mean(node_times), UNIT),
    ]


def _with_read_pod(filter_case: FilterCase) -> Callable[[], object]:
    pod = numa_request_of(filter_case.pod)
    return lambda: by_zones(filter_case.node, pod)


def _read_node(filter_case: FilterCase) -> Callable[[], object]:
    return lambda: zoned_node(filter_case.topology, ALLOCATABLE)


def table(stack: ExitStack, *, quick: bool) -> list[Row]:
    """All rows. The Go program is the base if it is built or, unless `quick`, can be built."""
    peer = run_peer(stack, SCHEDULER_PLUGINS, build=not quick)
    return rows(peer, QUICK if quick else FULL)


def main() -> None:
    options = arguments(__doc__)
    with ExitStack() as stack:
        lines = table(stack, quick=options.quick)
    report(lines, options.output)


if __name__ == "__main__":
    main()
