"""Two NUMA nodes of four CPUs (0-3, 4-7; siblings are adjacent) and 16 GiB by default. Scores are
LeastAllocated over CPU and memory, computed by hand."""

from __future__ import annotations

from typing import Any

import pytest

from conformance.koordinator_node_numa import judge_node
from conformance.node_numa_differences import DIFFERENCES
from tests.conformance.vectors import count_verdicts

Json = dict[str, Any]
POLICY = "node.koordinator.sh/numa-topology-policy"
SINGLE = {"nodeLabels": {POLICY: "SingleNUMANode"}}
RESTRICTED = {"nodeLabels": {POLICY: "Restricted"}}
BEST_EFFORT = {"nodeLabels": {POLICY: "BestEffort"}}
FULL_ONLY = {"nodeLabels": {"node.koordinator.sh/cpu-bind-policy": "FullPCPUsOnly"}}
MOST_ALLOCATED = {"node.koordinator.sh/numa-allocate-strategy": "MostAllocated"}
FAILS = {"stage": "Filter", "error": "Unsatisfied NUMA cpu", "code": "Unschedulable"}
UNRESOLVABLE = {"code": "UnschedulableAndUnresolvable"}
NUMA_LEVEL = {"preferredCPUExclusivePolicy": "NUMANodeLevel"}
PREFERS_FULL = {"preferredCPUBindPolicy": "FullPCPUs"}
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


@pytest.mark.parametrize(
    "case_",
    [
        pytest.param(case(lsr(2), [], placement(81, "0-1", **PREFERS_FULL)), id="anywhere"),
        pytest.param(
            case(
                lsr(2),
                [allocated_pod(4, node=1)],
                placement(62, "0-1", part(0, 2, 4), **PREFERS_FULL),
            )
            | SINGLE,
            id="the chosen NUMA node is scored",
        ),
        pytest.param(
            case(
                lsr(2),
                [allocated_pod(2, "0-1", node=0), allocated_pod(2, "4-5", node=1)],
                placement(37, "2-3", part(0, 2, 4), **PREFERS_FULL),
            )
            | SINGLE,
            id="owners of the whole machine count as CPU of one NUMA node",
        ),
        pytest.param(
            case(
                lsr(2),
                [allocated_pod(4, node=1)],
                placement(81, "0-1", part(0, 2, 4), **PREFERS_FULL),
            )
            | BEST_EFFORT,
            id="the whole node is scored, without pods that share",
        ),
        pytest.param(
            case(shared_pod(2), [], placement(81, "0-1", requiredCPUBindPolicy="FullPCPUs"))
            | FULL_ONLY,
            id="the node's bind policy",
        ),
        pytest.param(
            case(
                lsr(2),
                [allocated_pod(2, "0-1")],
                placement(68, "4-5", **PREFERS_FULL),
                amplification=2,
            ),
            id="amplified",
        ),
        pytest.param(
            case(shared_pod(9), [], placement(43)), id="shared pods are scored on the whole node"
        ),
        pytest.param(case({"requests": {}}, [], {"skip": True}), id="nothing is requested"),
        pytest.param(case(shared_pod(5), [], FAILS) | SINGLE, id="insufficient CPU"),
        pytest.param(
            case(lsr(1, resourceSpec={"requiredCPUBindPolicy": "FullPCPUs"}), [], FAILS)
            | {"expect": FAILS | UNRESOLVABLE},
            id="preemption does not help",
        ),
    ],
)
def test_agreement(case_: Json) -> None:
    verdict = judge_node(case_)
    assert verdict.agrees, verdict.actual


@pytest.mark.parametrize(
    "expect",
    [
        pytest.param(placement(80, "0-1", **PREFERS_FULL), id="score"),
        pytest.param(placement(81, "2-3", **PREFERS_FULL), id="CPUs"),
        pytest.param(placement(81, "0-1", part(0, 2), **PREFERS_FULL), id="amounts"),
        pytest.param(
            placement(81, "0-1", preferredCPUBindPolicy="SpreadByPCPUs"),
            id="bind policy",
        ),
        pytest.param(FAILS, id="error"),
    ],
)
def test_another_answer_is_a_disagreement(expect: Json) -> None:
    verdict = judge_node(case(lsr(2), [], expect))
    assert (verdict.agrees, verdict.declared) == (False, None)


def test_another_kind_of_error_is_a_disagreement() -> None:
    expect = FAILS | UNRESOLVABLE
    verdict = judge_node(case(shared_pod(5), [], expect) | SINGLE)
    assert (verdict.agrees, verdict.declared) == (False, None)


DECLARED = [
    pytest.param(
        case(lsr(2), [], placement(81, "0-1", **PREFERS_FULL))
        | {"topologyPolicies": ["SingleNUMANodeContainerLevel"]},
        "policy-spellings",
        id="a policy name that is not recognized",
    ),
    pytest.param(
        case(lsr(2), [], placement(62, "0-1", **PREFERS_FULL), nodes=1) | SINGLE,
        "one-numa-node",
        id="nothing is accounted on one NUMA node",
    ),
    pytest.param(
        case(
            lsr(2),
            [allocated_pod(2, "0-1", node=0)],
            placement(37, "4-5", part(1, 2, 4), **PREFERS_FULL),
            nodeLabels=RESTRICTED["nodeLabels"] | MOST_ALLOCATED,
        ),
        "strategy-unheard",
        id="the emptier NUMA node in spite of the node's label",
    ),
    pytest.param(
        case(
            {"qos": "BE", **shared_pod(2)},
            [],
            placement(81, "0-1", requiredCPUBindPolicy="FullPCPUs"),
        )
        | FULL_ONLY,
        "be-owns-cpus",
        id="a BE pod owns CPUs",
    ),
    pytest.param(
        case(shared_pod(4, 0), [allocated_pod(2, node=0)], placement(50, parts=part(0, 4)), nodes=1)
        | BEST_EFFORT
        | {"noCPUTopology": True},
        "claims-without-topology",
        id="amounts are not counted without a topology",
    ),
    pytest.param(
        case(
            shared_pod(4, 0),
            [allocated_pod(4, "0-3"), allocated_pod(4, "4-7", node=1)],
            placement(50, parts=part(0, 4)),
        )
        | RESTRICTED,
        "owned-without-amounts",
        id="owned CPUs are offered again",
    ),
    pytest.param(
        case(shared_pod(2), [], FAILS)
        | RESTRICTED
        | {
            "allocated": [
                {
                    "requests": {"memory": "1Gi"},
                    "resourceStatus": {"numaNodeResources": part(each, 0, 1)},
                }
                for each in (0, 1)
            ],
            "zones": [{"node": each, "resources": {"cpu": "4"}} for each in (0, 1)],
        },
        "resource-not-in-zone",
        id="insufficient memory that zones do not count",
    ),
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
            {"qos": "LSR", "requests": {"memory": "16Gi"}},
            [allocated_pod(4, "0-3", node=0)],
            placement(62),
            amplification=2,
        ),
        "amplified-without-cpu",
        id="owners are not amplified for a pod without CPU",
    ),
    pytest.param(
        case(shared_pod(2), [], FAILS | UNRESOLVABLE, amplification=2, noCPUTopology=True),
        "amplified-without-topology",
        id="amplified CPU is not counted without a topology",
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
            lsr(2, resourceSpec={"preferredCPUBindPolicy": "SpreadByPCPUs", **NUMA_LEVEL}),
            [
                {**allocated_pod(1, "0", node=0), "resourceSpec": NUMA_LEVEL},
                allocated_pod(2, "4-5", node=1),
            ],
            placement(
                37, "1-2", part(0, 2, 4), preferredCPUBindPolicy="SpreadByPCPUs", **NUMA_LEVEL
            ),
        )
        | RESTRICTED,
        "exclusive-ignored",
        id="the emptier NUMA node, although it has an exclusive pod",
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
            lsr(2),
            [allocated_pod(2, "0,2", node=0), allocated_pod(2, node=1)],
            placement(37, "1,3", part(0, 2, 4), **PREFERS_FULL),
        )
        | RESTRICTED,
        "halved-cores",
        id="the NUMA node with the lower id, which has only halves of cores",
    ),
    pytest.param(
        case(
            lsr(6),
            [],
            placement(56, "0-2,4-6", part(0, 3, 2) + part(1, 3, 2), **PREFERS_FULL),
        )
        | RESTRICTED,
        "halved-cores",
        id="equal parts of two NUMA nodes, each with half a core",
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


@pytest.mark.parametrize(("case_", "name"), DECLARED)
def test_an_answer_that_differs_from_the_rule_is_not_declared(case_: Json, name: str) -> None:
    expect = case_["expect"]
    other = FAILS if "score" in expect else placement(1, "0-1")
    for wrong in (other, {**expect, "score": 99, "code": "other"}):
        verdict = judge_node({**case_, "expect": wrong})
        assert verdict.declared != name


def test_koordinators_vectors() -> None:
    counted = count_verdicts("koordinator-node-numa", judge_node)
    listed = {each.name for each in DIFFERENCES if each.listed}
    unlisted = sum(count for name, count in counted.items() if name and name not in listed)
    assert unlisted <= 0.02 * counted.total()
    assert counted[None] > 0.8 * counted.total()
