"""Two NUMA nodes of four CPUs (0-3, 4-7; siblings are adjacent) and 16 GiB by default. Scores are
LeastAllocated over CPU and memory, computed by hand."""

from __future__ import annotations

from typing import Any

import pytest

from conformance.koordinator_node_numa import judge_node

Json = dict[str, Any]
POLICY = "node.koordinator.sh/numa-topology-policy"
SINGLE = {"nodeLabels": {POLICY: "SingleNUMANode"}}
RESTRICTED = {"nodeLabels": {POLICY: "Restricted"}}
FULL_ONLY = {"nodeLabels": {"node.koordinator.sh/cpu-bind-policy": "FullPCPUsOnly"}}
FAILS = {"stage": "Filter", "error": "Unsatisfied NUMA cpu", "code": "Unschedulable"}
NUMA_LEVEL = {"preferredCPUExclusivePolicy": "NUMANodeLevel"}
PREFERS_SPREAD = {"preferredCPUBindPolicy": "SpreadByPCPUs"}


def case(pod: Json, allocated: list[Json], expect: Json, **more: Any) -> Json:
    nodes = more.pop("nodes", 2)
    zones = [{"node": each, "resources": {"cpu": "4", "memory": "16Gi"}} for each in range(nodes)]
    return {
        "shape": [nodes, 1, 2, 2],
        "numbering": "adjacent",
        "allocatable": {"cpu": str(4 * nodes), "memory": f"{16 * nodes}Gi"},
        "zones": zones,
        "allocated": allocated,
        "pod": {"priority": 9500, **pod},
        "expect": expect,
        **more,
    }


def lsr(cpu: int, memory_gib: int = 4, **more: Any) -> Json:
    return {"qos": "LSR", **shared_pod(cpu, memory_gib), **more}


def shared_pod(cpu: int, memory_gib: int = 4) -> Json:
    requested = {"cpu": str(cpu), "memory": f"{memory_gib}Gi"}
    return {"requests": {name: text for name, text in requested.items() if text[0] != "0"}}


def allocated_pod(cpu: int, cpuset: str = "", node: int | None = None) -> Json:
    """A pod without memory that has these CPUs, or CPU of this NUMA node, or both."""
    status: Json = {"cpuset": cpuset} if cpuset else {}
    if node is not None:
        status["numaNodeResources"] = part(node, cpu)
    return {"requests": {"cpu": str(cpu)}, "resourceStatus": status}


def part(node: int, cpu: int, memory_gib: int = 0) -> list[Json]:
    resources = shared_pod(cpu, memory_gib)["requests"]
    return [{"node": node, "resources": resources}]


def placement(score: int, cpuset: str = "", parts: list[Json] | None = None, **spec: str) -> Json:
    status: Json = {"cpuset": cpuset} if cpuset else {}
    if parts:
        status["numaNodeResources"] = parts
    return {"score": score, "resourceStatus": status, "resourceSpec": spec}


DECLARED = [
    pytest.param(
        case(
            lsr(2, 20, resourceSpec=PREFERS_SPREAD),
            [allocated_pod(7, node=0)],
            placement(56, "0,4", part(0, 1, 10) + part(1, 1, 10), **PREFERS_SPREAD),
            amplification=2,
        )
        | RESTRICTED,
        "amplified-cpu-unpaid",
        id="more CPUs than are accounted",
    ),
    pytest.param(
        case(
            lsr(9, resourceSpec={"requiredCPUBindPolicy": "SpreadByPCPUs"}),
            [],
            FAILS,
            amplification=2,
        )
        | FULL_ONLY,
        "amplified-before-conflict",
        id="insufficient amplified CPU is reported before a policy conflict",
    ),
    pytest.param(
        case(
            {**shared_pod(2), "resourceSpec": NUMA_LEVEL},
            [{**allocated_pod(2, "0-1"), "resourceSpec": NUMA_LEVEL}, allocated_pod(2, "4-5")],
            placement(56, "2-3", requiredCPUBindPolicy="FullPCPUs", **NUMA_LEVEL),
        )
        | FULL_ONLY,
        "exclusive-unheard",
        id="a pod with the bind policy of the node is not exclusive",
    ),
    pytest.param(
        case(
            shared_pod(0),
            [allocated_pod(2, "0,2", node=0), allocated_pod(3, node=1)],
            placement(50, parts=part(1, 0, 4)),
            nodeLabels=SINGLE["nodeLabels"] | FULL_ONLY["nodeLabels"],
        ),
        "fitting-without-cpu",
        id="NUMA nodes are compared by whole cores for a pod without CPU",
    ),
    pytest.param(
        case(
            shared_pod(7, 21),
            [
                allocated_pod(4, node=0),
                {**allocated_pod(1), "resourceStatus": {"numaNodeResources": part(1, 1, 6)}},
            ],
            FAILS,
            nodes=3,
        )
        | RESTRICTED,
        "split-by-position",
        id="memory is split by the amounts of NUMA nodes 0 and 1",
    ),
]


@pytest.mark.parametrize(("case_", "name"), DECLARED)
def test_declared_differences(case_: Json, name: str) -> None:
    verdict = judge_node(case_)
    assert (verdict.agrees, verdict.declared) == (False, name), verdict.actual
