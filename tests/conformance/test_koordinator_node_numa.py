"""Two NUMA nodes of four CPUs (0-3, 4-7; siblings are adjacent) and 16 GiB by default. Scores are
LeastAllocated over CPU and memory, computed by hand."""

from __future__ import annotations

from typing import Any

import pytest

from agent.conformance.koordinator_node_numa import judge_node
from agent.conformance.node_numa_differences import DIFFERENCES
from tests.conformance.vectors import outcomes

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


def case(pod: Json, held: list[Json], expect: Json, **more: Any) -> Json:
    nodes = more.pop("nodes", 2)
    zones = [{"node": each, "resources": {"cpu": "4", "memory": "16Gi"}} for each in range(nodes)]
    return {
        "shape": [nodes, 1, 2, 2],
        "numbering": "adjacent",
        "allocatable": {"cpu": str(4 * nodes), "memory": f"{16 * nodes}Gi"},
        "zones": zones,
        "allocated": held,
        "pod": {"priority": 9500, **pod},
        "expect": expect,
        **more,
    }


def lsr(cpu: int, memory_gib: int = 4, **more: Any) -> Json:
    return {"qos": "LSR", **sharer(cpu, memory_gib), **more}


def sharer(cpu: int, memory_gib: int = 4) -> Json:
    requested = {"cpu": str(cpu), "memory": f"{memory_gib}Gi"}
    return {"requests": {name: text for name, text in requested.items() if text[0] != "0"}}


def held(cpu: int, cpuset: str = "", node: int | None = None) -> Json:
    """A pod without memory that has these CPUs, or CPU of this NUMA node, or both."""
    status: Json = {"cpuset": cpuset} if cpuset else {}
    if node is not None:
        status["numaNodeResources"] = part(node, cpu)
    return {"requests": {"cpu": str(cpu)}, "resourceStatus": status}


def part(node: int, cpu: int, memory_gib: int = 0) -> list[Json]:
    resources = sharer(cpu, memory_gib)["requests"]
    return [{"node": node, "resources": resources}]


def placed(score: int, cpuset: str = "", parts: list[Json] | None = None, **spec: str) -> Json:
    status: Json = {"cpuset": cpuset} if cpuset else {}
    if parts:
        status["numaNodeResources"] = parts
    return {"score": score, "resourceStatus": status, "resourceSpec": spec}


@pytest.mark.parametrize(
    "case_",
    [
        pytest.param(case(lsr(2), [], placed(81, "0-1", **PREFERS_FULL)), id="anywhere"),
        pytest.param(
            case(lsr(2), [held(4, node=1)], placed(62, "0-1", part(0, 2, 4), **PREFERS_FULL))
            | SINGLE,
            id="on one NUMA node, and that is scored",
        ),
        pytest.param(
            case(
                lsr(2),
                [held(2, "0-1", node=0), held(2, "4-5", node=1)],
                placed(37, "2-3", part(0, 2, 4), **PREFERS_FULL),
            )
            | SINGLE,
            id="owners of the whole machine count as CPU of one NUMA node",
        ),
        pytest.param(
            case(lsr(2), [held(4, node=1)], placed(81, "0-1", part(0, 2, 4), **PREFERS_FULL))
            | BEST_EFFORT,
            id="the whole node is scored, without pods that share",
        ),
        pytest.param(
            case(sharer(2), [], placed(81, "0-1", requiredCPUBindPolicy="FullPCPUs")) | FULL_ONLY,
            id="the node binds",
        ),
        pytest.param(
            case(
                lsr(2),
                [held(2, "0-1")],
                placed(68, "4-5", **PREFERS_FULL),
                amplification=2,
            ),
            id="amplified",
        ),
        pytest.param(case(sharer(9), [], placed(43)), id="others judge_node the whole node"),
        pytest.param(case({"requests": {}}, [], {"skip": True}), id="nothing is requested"),
        pytest.param(case(sharer(5), [], FAILS) | SINGLE, id="fails"),
        pytest.param(
            case(lsr(1, resourceSpec={"requiredCPUBindPolicy": "FullPCPUs"}), [], FAILS)
            | {"expect": FAILS | UNRESOLVABLE},
            id="no eviction helps",
        ),
    ],
)
def test_agreement(case_: Json) -> None:
    verdict = judge_node(case_)
    assert verdict.agrees, verdict.actual


@pytest.mark.parametrize(
    "expect",
    [
        pytest.param(placed(80, "0-1", **PREFERS_FULL), id="score"),
        pytest.param(placed(81, "2-3", **PREFERS_FULL), id="CPUs"),
        pytest.param(placed(81, "0-1", part(0, 2), **PREFERS_FULL), id="amounts"),
        pytest.param(
            placed(81, "0-1", preferredCPUBindPolicy="SpreadByPCPUs"),
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
    verdict = judge_node(case(sharer(5), [], expect) | SINGLE)
    assert (verdict.agrees, verdict.declared) == (False, None)


PATHS = [
    pytest.param(
        case(lsr(2), [], placed(81, "0-1", **PREFERS_FULL))
        | {"topologyPolicies": ["SingleNUMANodeContainerLevel"]},
        "policy-spellings",
        id="a spelling that is not read",
    ),
    pytest.param(
        case(lsr(2), [], placed(62, "0-1", **PREFERS_FULL), nodes=1) | SINGLE,
        "one-numa-node",
        id="nothing is accounted on one NUMA node",
    ),
    pytest.param(
        case(
            lsr(2),
            [held(2, "0-1", node=0)],
            placed(37, "4-5", part(1, 2, 4), **PREFERS_FULL),
            nodeLabels=RESTRICTED["nodeLabels"] | MOST_ALLOCATED,
        ),
        "strategy-unheard",
        id="the emptier NUMA node in spite of the node's label",
    ),
    pytest.param(
        case(
            {"qos": "BE", **sharer(2)},
            [],
            placed(81, "0-1", requiredCPUBindPolicy="FullPCPUs"),
        )
        | FULL_ONLY,
        "be-owns-cpus",
        id="a BE pod owns CPUs",
    ),
    pytest.param(
        case(sharer(4, 0), [held(2, node=0)], placed(50, parts=part(0, 4)), nodes=1)
        | BEST_EFFORT
        | {"noCPUTopology": True},
        "claims-without-topology",
        id="amounts are forgotten with the topology",
    ),
    pytest.param(
        case(sharer(4, 0), [held(4, "0-3"), held(4, "4-7", node=1)], placed(50, parts=part(0, 4)))
        | RESTRICTED,
        "owned-without-amounts",
        id="owned CPUs are offered",
    ),
    pytest.param(
        case(sharer(2), [], FAILS)
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
        id="memory that zones do not count is lacking",
    ),
    pytest.param(
        case(
            lsr(2, 20),
            [held(7, node=0)],
            placed(56, "0,4", part(0, 1, 10) + part(1, 1, 10), **PREFERS_FULL),
            amplification=2,
        )
        | RESTRICTED,
        "amplified-cpu-unpaid",
        id="more CPUs than are paid for",
    ),
    pytest.param(
        case(
            {"qos": "LSR", "requests": {"memory": "16Gi"}},
            [held(4, "0-3", node=0)],
            placed(62),
            amplification=2,
        ),
        "amplified-without-cpu",
        id="owners are not amplified for a pod without CPU",
    ),
    pytest.param(
        case(sharer(2), [], FAILS | UNRESOLVABLE, amplification=2, noCPUTopology=True),
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
        id="amplified CPU is lacking before policies conflict",
    ),
    pytest.param(
        case(
            lsr(2, resourceSpec={"preferredCPUBindPolicy": "SpreadByPCPUs", **NUMA_LEVEL}),
            [{**held(1, "0", node=0), "resourceSpec": NUMA_LEVEL}, held(2, "4-5", node=1)],
            placed(37, "1-2", part(0, 2, 4), preferredCPUBindPolicy="SpreadByPCPUs", **NUMA_LEVEL),
        )
        | RESTRICTED,
        "exclusive-ignored",
        id="the emptier NUMA node, although an exclusive pod is there",
    ),
    pytest.param(
        case(
            {**sharer(2), "resourceSpec": NUMA_LEVEL},
            [{**held(2, "0-1"), "resourceSpec": NUMA_LEVEL}, held(2, "4-5")],
            placed(56, "2-3", requiredCPUBindPolicy="FullPCPUs", **NUMA_LEVEL),
        )
        | FULL_ONLY,
        "exclusive-unheard",
        id="a pod with the bind policy of the node is not exclusive",
    ),
    pytest.param(
        case(
            sharer(0),
            [held(2, "0,2", node=0), held(3, node=1)],
            placed(50, parts=part(1, 0, 4)),
            nodeLabels=SINGLE["nodeLabels"] | FULL_ONLY["nodeLabels"],
        ),
        "fitting-without-cpu",
        id="NUMA nodes are compared by whole cores for a pod without CPU",
    ),
    pytest.param(
        case(
            sharer(7, 21),
            [held(4, node=0), {**held(1), "resourceStatus": {"numaNodeResources": part(1, 1, 6)}}],
            FAILS,
            nodes=3,
        )
        | RESTRICTED,
        "split-by-position",
        id="memory is split by what NUMA nodes 0 and 1 have",
    ),
]


@pytest.mark.parametrize(("case_", "name"), PATHS)
def test_declared(case_: Json, name: str) -> None:
    verdict = judge_node(case_)
    assert (verdict.agrees, verdict.declared) == (False, name), verdict.actual


@pytest.mark.parametrize(("case_", "name"), PATHS)
def test_an_answer_that_differs_from_the_rule_is_not_declared(case_: Json, name: str) -> None:
    expect = case_["expect"]
    other = FAILS if "score" in expect else placed(1, "0-1")
    for wrong in (other, {**expect, "score": 99, "code": "other"}):
        verdict = judge_node({**case_, "expect": wrong})
        assert verdict.declared != name


def test_koordinators_vectors() -> None:
    counted = outcomes("koordinator-node-numa", judge_node)
    listed = {each.name for each in DIFFERENCES if each.listed}
    unlisted = sum(count for name, count in counted.items() if name and name not in listed)
    assert unlisted <= 0.02 * counted.total()
    assert counted[None] > 0.8 * counted.total()
