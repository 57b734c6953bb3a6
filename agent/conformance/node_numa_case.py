"""A case of Koordinator's NodeNUMAResource as our values: a node, its pods, and what a pod asks.

The node comes as the two objects that a scheduler reads, the Node and the NodeResourceTopology.
"""

import math
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from agent.allocate.node_allocation import PodAllocation, TopologyOptions, pod_allocation
from agent.allocate.node_allocator.properties import topology_options
from agent.allocate.policies_in_force import PROFILES
from agent.allocate.resource_request import ResourceRequest, resource_request
from agent.conformance import machines
from agent.model import nodetopology
from agent.model.annotations import NUMA_TOPOLOGY_SPEC, RESOURCE_SPEC, RESOURCE_STATUS
from agent.model.node_annotations import (
    AMPLIFICATION_RATIO,
    CPU_MANAGER_POLICY,
    CPU_TOPOLOGY,
    POD_CPU_ALLOCS,
    RESERVATION,
    SYSTEM_QOS,
)
from agent.model.nodetopology import NodeTopology
from agent.model.qos import QoS
from agent.model.quantities import milli, whole

PROFILE: Final = msgspec.structs.replace(PROFILES["koordinator"], label_first=True)
"""The vectors' scheduler: the plugin's defaults; the node's label overrides the kubelet."""


class NodeCase(msgspec.Struct, frozen=True):
    """`allocatable` and `requested` of the whole node, the latter before CPU is amplified."""

    facts: TopologyOptions
    claims: tuple[PodAllocation, ...]
    ask: ResourceRequest
    allocatable: dict[str, int]
    requested: dict[str, int]


def question(case: Mapping[str, Any]) -> NodeCase:
    """Raises ObjectError, AnnotationError and what reading a case may raise."""
    ratio = case.get("amplification", 1)
    allocatable = amounts(case["allocatable"])
    allocatable["cpu"] = math.ceil(allocatable["cpu"] * ratio)
    notes = {AMPLIFICATION_RATIO: text({"cpu": ratio})}
    facts, faults = topology_options(
        case.get("nodeLabels", {}), notes, topology(case), allocatable["cpu"], PROFILE
    )
    if faults:
        raise ValueError("; ".join(faults))
    claims = []
    requested: dict[str, int] = {}
    for number, pod in enumerate(case["allocated"]):
        held = amounts(pod["requests"])
        claims.append(
            pod_allocation(f"p{number}", f"ns/p{number}", written(pod), held.get("cpu", 0))
        )
        for name, amount in held.items():
            requested[name] = requested.get(name, 0) + amount
    pod = case["pod"]
    ask = resource_request(
        "pod",
        "ns/pod",
        QoS(pod.get("qos", "LS")),
        written(pod),
        amounts(pod["requests"]),
        priority=pod.get("priority"),
    )
    return NodeCase(facts, tuple(claims), ask, allocatable, requested)


def topology(case: Mapping[str, Any]) -> NodeTopology:
    """The node's NodeResourceTopology, as koordlet writes it."""
    notes = {
        CPU_MANAGER_POLICY: case.get("kubelet"),
        SYSTEM_QOS: case.get("systemQOS"),
        RESERVATION: _if(case.get("nodeReservedCPUs"), "reservedCPUs"),
        POD_CPU_ALLOCS: [
            {
                "namespace": "",
                "name": "",
                "uid": "kubelets",
                "cpuset": case.get("kubeletAllocated", ""),
                "managedByKubelet": True,
            }
        ],
        CPU_TOPOLOGY: None if case.get("noCPUTopology") else {"detail": _detail(case)},
    }
    return nodetopology.decode(
        {
            "metadata": {
                "name": "node",
                "annotations": {k: text(v) for k, v in notes.items() if v is not None},
            },
            "topologyPolicies": case.get("topologyPolicies", []),
            "zones": [_zone(each) for each in case["zones"]],
        }
    )


def written(pod: Mapping[str, Any]) -> dict[str, str]:
    """Those of a pod that a case has."""
    return {key: text(pod[name]) for name, key in _ANNOTATIONS.items() if name in pod}


def amounts(resources: Mapping[str, Any]) -> dict[str, int]:
    """CPU in milli-CPU, the rest in units."""
    return {name: (milli if name == "cpu" else whole)(each) for name, each in resources.items()}


def text(value: object) -> str:
    """JSON."""
    return msgspec.json.encode(value).decode()


_ANNOTATIONS: Final = {
    "resourceSpec": RESOURCE_SPEC,
    "resourceStatus": RESOURCE_STATUS,
    "numaTopologySpec": NUMA_TOPOLOGY_SPEC,
}


def _if(value: str | None, key: str) -> dict[str, str] | None:
    return None if value is None else {key: value}


def _detail(case: Mapping[str, Any]) -> list[dict[str, int]]:
    return [
        {"id": cpu.id, "core": cpu.core, "socket": cpu.socket, "node": cpu.node}
        for cpu in machines.cpus(case["shape"], case["numbering"])
    ]


def _zone(zone: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": nodetopology.zone_name(zone["node"]),
        "type": "Node",
        "resources": [
            {"name": name, "capacity": each, "allocatable": each, "available": each}
            for name, each in zone["resources"].items()
        ],
    }
