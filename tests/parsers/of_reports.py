"""The reports of a stolen agent: its NodeResourceTopology, its Device object, and the labels and
annotations of its Node. The scheduler reads them and makes an offer to each of some pods."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from agent.allocate.node_allocator.allocator import NodeAllocator
from agent.allocate.node_allocator.properties import AllocatorRules
from agent.allocate.refusal import Refusal
from agent.model.cpu.policies import GpuObjective, Strategy
from agent.model.pod import apiobjects
from agent.model.pod_request import PodRequest, request_of
from agent.model.settings.plugin_args import ZoneScoring
from agent.scheduler.state import records
from agent.scheduler.state.node_info import NodeInfo
from agent.scheduler.state.records import PodRecord
from tests.fixtures import fleet
from tests.parsers.target import Target

Object = dict[str, Any]
Report = tuple[bytes, bytes, bytes, AllocatorRules]
"""The JSON of the Node, of its NodeResourceTopology and of its Device object, and the rules of the
scheduler, which are not hostile but may be any."""

_HINT: Final = "scheduling.koordinator.sh/device-allocate-hint"
_JOINT: Final = "scheduling.koordinator.sh/device-joint-allocate"
_SPEC: Final = "scheduling.koordinator.sh/resource-spec"
_NUMA: Final = "scheduling.koordinator.sh/numa-topology-spec"
_QOS: Final = "koordinator.sh/qosClass"
_GPU, _RDMA, _LISTED = "koordinator.sh/gpu", "koordinator.sh/rdma", "example.com/nic"
_RULES: Final = (
    AllocatorRules(),
    AllocatorRules(zones=ZoneScoring(Strategy.LEAST_NUMA_NODES)),
    AllocatorRules(gpu_objective=GpuObjective.BESTEFFORT, strategy=Strategy.MOST_ALLOCATED),
)


def _pods() -> Iterator[Object]:
    amounts = {"cpu": "4", "memory": "8Gi"}
    gpus = {**amounts, _GPU: "800"}
    best_effort = {_NUMA: '{"numaTopologyPolicy":"BestEffort"}'}
    joint = {_JOINT: '{"deviceTypes":["gpu","rdma"],"requiredScope":"%s"}'}
    together = {**gpus, _RDMA: "1"}
    yield fleet.pod("plain", amounts, limits=amounts)
    yield fleet.pod("ls", {"cpu": "6500m", "memory": "64Gi"}, annotations=best_effort)
    yield fleet.pod("lsr", {"cpu": "48", "memory": "64Gi"}, labels={_QOS: "LSR"})
    huge = {"cpu": "9", "memory": "6Gi", "hugepages-2Mi": "8Gi", "hugepages-1Gi": "3Gi"}
    exclusive = '{"preferredCPUExclusivePolicy":"NUMANodeLevel","preferredCPUBindPolicy":"%s"}'
    for policy in ("FullPCPUs", "SpreadByPCPUs"):
        notes = {**best_effort, _SPEC: exclusive % policy}
        yield fleet.pod(policy, huge, limits=huge, labels={_QOS: "LSE"}, annotations=notes)
    yield fleet.pod("gpus", gpus, limits=gpus)
    share = {**amounts, "koordinator.sh/gpu-core": "30", "koordinator.sh/gpu-memory-ratio": "30"}
    yield fleet.pod("share", share, limits=share, annotations=best_effort)
    for scope in ("SamePCIe", "SameNUMANode"):
        notes = {**best_effort, _JOINT: joint[_JOINT] % scope}
        yield fleet.pod(scope, together, limits=together, annotations=notes)
    hint = {"rdma": {"vfSelector": {}, "allocateStrategy": "RequestsAsCount"}}
    functions = {**amounts, _RDMA: "4", _LISTED: "300"}
    notes = {**best_effort, _HINT: json.dumps(hint)}
    yield fleet.pod("functions", functions, limits=functions, annotations=notes)


def _requests() -> tuple[PodRequest, ...]:
    return tuple(request_of(apiobjects.from_object(each), {_LISTED}) for each in _pods())


REQUESTS: Final = _requests()
"""Of pods that a report may make an offer to."""
_PODS: Final = 3
"""The number of offers for each report: more reports find more than more offers."""


def _amount(rng: random.Random) -> str:
    return rng.choice(("0", "1", "2", "8", "100", "1Gi", "64Gi", "9223372036854775807", "1e18"))


def _triple(rng: random.Random, name: str, amount: str) -> Object:
    free = amount if rng.random() < 0.7 else _amount(rng)
    return {"name": name, "capacity": amount, "allocatable": amount, "available": free}


def _zones(rng: random.Random, count: int) -> list[Object]:
    numbers = rng.sample(range(1024), count) if rng.random() < 0.2 else range(count)
    cpu, memory = rng.choice(("1", "2", "4", "16", "500m")), rng.choice(("1Gi", "2Gi", "16Gi"))
    alike = rng.random() < 0.6
    most_cpus, with_costs = rng.choice((count, 32, 33, 0)), rng.random() < 0.2
    zones = []
    for place, number in enumerate(numbers):
        held = [_triple(rng, "memory", memory if alike else _amount(rng))]
        if place < most_cpus:
            held.append(_triple(rng, "cpu", cpu if alike else _amount(rng)))
        for name in ("hugepages-2Mi", "hugepages-1Gi", _GPU, _LISTED):
            if rng.random() < 0.4:
                held.append(_triple(rng, name, "1Gi" if alike else _amount(rng)))
        costs = [
            {"name": f"node-{other}", "value": rng.choice((10, 11, 12, 21, 255))}
            for other in (numbers if with_costs else ())
        ]
        zones.append({"name": f"node-{number}", "type": "Node", "resources": held, "costs": costs})
    return zones


def _detail(rng: random.Random, nodes: int) -> list[Object]:
    count = rng.choice((0, 8, 8, 64, 64, 64, 256, 256, 256, 1024, 4096))
    sockets, threads = rng.choice((1, 2, 8, 64)), rng.choice((1, 2, 2, 8, 16, 17))
    ids = rng.sample(range(8192), count) if rng.random() < 0.2 else range(count)
    chaos = rng.random() < 0.2
    return [
        {
            "id": number,
            "core": rng.randrange(count) if chaos else place // threads,
            "socket": rng.randrange(sockets) if chaos else place * sockets // count,
            "node": rng.randrange(nodes) if chaos else place * nodes // count,
        }
        for place, number in enumerate(ids)
    ]


def _topology(rng: random.Random, count: int) -> Object:
    nodes = max(1, min(count, rng.choice((1, 2, 8, 32, 33))))
    notes = {"node.koordinator.sh/cpu-topology": json.dumps({"detail": _detail(rng, nodes)})}
    if rng.random() < 0.3:
        policy = {"policy": "static", "options": {"full-pcpus-only": rng.choice(("true", "x"))}}
        notes["kubelet.koordinator.sh/cpu-manager-policy"] = json.dumps(policy)
    if rng.random() < 0.3:
        settings = {"bindMemory": True, "memoryManagerPolicy": "Static"}
        notes["topolet.io/agent-settings"] = json.dumps(settings)
    zones = _zones(rng, count)
    if zones and rng.random() < 0.3:
        caches = ";".join(map(str, range(rng.choice((4, 64, 1024, 2000)))))
        zones[0]["attributes"] = [{"name": "l3_cpus", "value": caches}]
    policies = ("none", "best-effort", "restricted", "single-numa-node")
    return {
        "metadata": {"name": "n", "annotations": notes},
        "topologyPolicies": [rng.choice(policies)],
        "attributes": [
            {"name": "topologyManagerScope", "value": rng.choice(("pod", "container"))},
            {"name": "topologyManagerMaxNUMANodes", "value": rng.choice(("8", "64", "999999999"))},
        ],
        "zones": zones,
    }


def device(rng: random.Random, kind: str, minor: int, sites: int) -> Object:
    whole = {f"koordinator.sh/{name}": "100" for name in ("gpu-core", "gpu-memory-ratio", kind)}
    if kind == "gpu":
        whole["koordinator.sh/gpu-memory"] = _amount(rng)
    if kind not in ("gpu", "rdma"):
        whole = {_LISTED: rng.choice(("100", "1")), **({"example.com/b": "1"} if minor % 2 else {})}
    body: Object = {"type": kind, "id": f"{kind}-{minor}", "minor": minor, "resources": whole}
    body["health"] = rng.random() < 0.95
    site = minor % sites
    if rng.random() < 0.98:
        body["topology"] = {"socketID": 0, "nodeID": site, "pcieID": str(site), "busID": "00:1"}
    if kind == "rdma" and rng.random() < 0.5:
        buses = [f"0000:{minor:02x}:00.{each}" for each in range(rng.choice((1, 8, 64)))]
        body["vfGroups"] = [{"vfs": [{"minor": -1, "busID": each} for each in buses]}]
    return body


def _devices(rng: random.Random) -> Object:
    listed: list[Object] = []
    most = rng.choice((4, 16, 16, 16, 64, 64, 64, 300, 1100))
    for kind in ("gpu", "rdma", "nic"):
        count, sites = rng.randrange(most), rng.choice((1, 2, 8, 16, 32, 64, 1000))
        listed += [device(rng, kind, minor, sites) for minor in range(count)]
    notes = {}
    if rng.random() < 0.5:
        cards = rng.choice((4, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 12, 16, 17))
        links = [
            {"pairs": [[one, two]], "mbPerSecond": rng.choice((100, 100, 200, 7))}
            for one in range(cards)
            for two in range(one)
        ]
        notes["topolet.io/gpu-links"] = json.dumps(links)
    if rng.random() < 0.1:
        sets = [
            {"minors": rng.sample(range(16), 8), "allocationScore": rng.choice((1, 1, 2))}
            for _ in range(rng.choice((2, 2, 100, 100, 100, 3000)))
        ]
        notes["scheduling.koordinator.sh/gpu-partitions"] = json.dumps({"8": sets})
    return {"metadata": {"name": "n", "annotations": notes}, "spec": {"devices": listed}}


def _node(rng: random.Random) -> Object:
    labels, notes = {}, {}
    for key, values in (
        ("numa-topology-policy", ("None", "BestEffort", "Restricted", "SingleNUMANode")),
        ("cpu-bind-policy", ("FullPCPUsOnly", "SpreadByPCPUs", "None")),
        ("numa-allocate-strategy", ("MostAllocated", "LeastAllocated", "DistributeEvenly")),
        ("numa-memory-policy", ("x",)),
    ):
        if rng.random() < 0.4:
            labels[f"node.koordinator.sh/{key}"] = rng.choice(values)
    if rng.random() < 0.2:
        ratios = rng.choice(({"cpu": 1.5}, {"cpu": 1e300}, {"cpu": 1000.0, "memory": 3.0}))
        notes["node.koordinator.sh/resource-amplification-ratio"] = json.dumps(ratios)
    amounts = {"cpu": "512", "memory": "4096Gi", "pods": "256", _GPU: "9000", _LISTED: "9000"}
    return {
        "metadata": {"name": "n", "labels": labels, "annotations": notes},
        "status": {"allocatable": amounts},
    }


def report(rng: random.Random) -> Report:
    """A random report, most of them readable."""
    count = rng.choice((1, 2, 4, 8, 16, 31, 32, 32, 33, 48, 64, 64, 65))
    bodies = _node(rng), _topology(rng, count), _devices(rng)
    node, topology, devices = map(msgspec.json.encode, bodies)
    return node, topology, devices, rng.choice(_RULES)


def read(reported: Report) -> NodeAllocator:
    """The node as the scheduler keeps it."""
    node, topology, devices, rules = reported
    pods: dict[str, PodRecord] = {}
    found = NodeInfo("n", pods, rules)
    found.update_node(records.node(node))
    found.update_topology(records.topology(topology))
    found.update_devices(records.devices(devices))
    return found.allocator


def offers(allocator: NodeAllocator, requests: Iterable[PodRequest]) -> list[str]:
    """What each pod gets: "" for an offer, the reason of a refusal."""
    made = (allocator.offer(each) for each in requests)
    return [each.text if isinstance(each, Refusal) else "" for each in made]


def targets() -> Iterator[Target]:
    yield Target(
        "reports of a stolen agent",
        lambda given: offers(read(given[0]), given[1]),
        lambda rng, _: (report(rng), rng.sample(REQUESTS, _PODS)),
        (),
        weight=100,
    )
