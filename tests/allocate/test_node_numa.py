"""Whole offers against what Koordinator's plugin answered on one node, stage by stage."""

from __future__ import annotations

import gzip
import json
import math
from collections import Counter
from typing import Any

import msgspec
import pytest

from agent.allocate import layout, precedence
from agent.allocate.ask import ask_of
from agent.allocate.claims import claim_of
from agent.allocate.ledger import Ledger
from agent.allocate.node import NodeFacts
from agent.allocate.offer import Declined
from agent.allocate.precedence import PROFILES
from agent.conformance import machines
from agent.model.annotations import NUMA_TOPOLOGY_SPEC, RESOURCE_SPEC, RESOURCE_STATUS
from agent.model.annotations import resource_status as status_of
from agent.model.cpuset import EMPTY, CpuSet
from agent.model.policies import NumaPolicy
from agent.model.qos import QoS
from agent.model.quantities import milli, whole
from tests.conftest import SHARED

VECTORS = SHARED / "vectors" / "koordinator-node-numa.jsonl.gz"
LABEL_FIRST = msgspec.structs.replace(PROFILES["koordinator"], label_first=True)
READ_BY_KOORDINATOR = ("BestEffort", "Restricted", "SingleNUMANodePodLevel")
"""Of the spellings of a topology manager policy (koordinator.md Appendix A, Q4); we read all."""


def amounts(resources: dict[str, str]) -> dict[str, int]:
    return {name: (milli if name == "cpu" else whole)(text) for name, text in resources.items()}


def annotations(pod: dict[str, Any]) -> dict[str, str]:
    keys = {
        "resourceSpec": RESOURCE_SPEC,
        "resourceStatus": RESOURCE_STATUS,
        "numaTopologySpec": NUMA_TOPOLOGY_SPEC,
    }
    return {key: json.dumps(pod[name]) for name, key in keys.items() if name in pod}


def node(case: dict[str, Any]) -> NodeFacts:
    kubelet = case.get("kubelet") or {}
    system = case.get("systemQOS") or {}
    reserved = CpuSet.parse(case.get("kubeletAllocated", ""))
    reserved |= CpuSet.parse(case.get("nodeReservedCPUs", ""))
    if system.get("cpusetExclusive", True):
        reserved |= CpuSet.parse(system.get("cpuset", ""))
    topology_policy = (case.get("topologyPolicies") or [""])[0]
    policies, faults = precedence.node_policies(
        case.get("nodeLabels", {}),
        topology_policy if topology_policy in READ_BY_KOORDINATOR else "",
        kubelet.get("options") if kubelet.get("policy") == "static" else None,
    )
    assert not faults
    cpus = machines.cpus(case["shape"], case["numbering"])
    ratio = case.get("amplification", 1.0)
    return NodeFacts(
        layout=None if case.get("noCPUTopology") else layout.of(cpus),
        zones={zone["node"]: amounts(zone["resources"]) for zone in case["zones"]},
        reserved=reserved,
        kubelet_reserved=CpuSet.parse(kubelet.get("reservedCPUs", "")),
        policies=policies,
        profile=LABEL_FIRST,
        cpu_ratio=ratio,
        cpu_milli=math.ceil(milli(case["allocatable"]["cpu"]) * ratio),
    )


Answer = tuple[CpuSet, dict[int, dict[str, int]]] | None


def ours(case: dict[str, Any]) -> Answer:
    ledger = Ledger(node(case))
    for number, pod in enumerate(case["allocated"]):
        cpu_milli = amounts(pod["requests"]).get("cpu", 0)
        ledger.record(claim_of(f"p{number}", f"ns/p{number}", annotations(pod), cpu_milli))
    pod = case["pod"]
    ask = ask_of(
        "pod",
        "ns/pod",
        QoS(pod.get("qos", "LS")),
        annotations(pod),
        amounts(pod["requests"]),
        priority=pod.get("priority"),
    )
    got = ledger.offer(ask)
    if isinstance(got, Declined):
        return None
    if len(case["zones"]) == 1 and _policy(case) is NumaPolicy.SINGLE_NUMA_NODE:
        return got.claim.cpus, {}  # Koordinator keeps no accounts there
    return got.claim.cpus, got.claim.amounts


def theirs(case: dict[str, Any]) -> Answer:
    expect = case["expect"]
    if expect.get("skip"):
        return EMPTY, {}
    if "error" in expect:
        return None
    status = status_of({RESOURCE_STATUS: json.dumps(expect.get("resourceStatus", {}))})
    return status.cpus(), status.amounts()


def difference(case: dict[str, Any]) -> str:
    """Why ours may differ, empty if it may not."""
    pod, facts = case["pod"], node(case)
    policies = facts.policies
    if pod.get("qos") == "BE" and (policies.bind_label or policies.full_pcpus_only):
        return "a BE pod owns no CPUs"
    if facts.layout is None:
        return "claims count on a node of unknown CPU topology"
    held = [annotations(each) for each in case["allocated"]]
    if any(status_of(each).cpus() and not status_of(each).amounts() for each in held):
        return "owned CPUs are gone from their NUMA node whatever was recorded"
    named = {name for zone in case["zones"] for name in zone["resources"]}
    if any(named - set(zone["resources"]) for zone in case["zones"]) or "memory" not in named:
        return "a resource that zones do not count is not theirs to give"
    return ""


def _policy(case: dict[str, Any]) -> NumaPolicy | None:
    label = case.get("nodeLabels", {}).get(precedence.NUMA_LABEL)
    kubelet = node(case).policies.numa_kubelet
    own = (case["pod"].get("numaTopologySpec") or {}).get("numaTopologyPolicy")
    return NumaPolicy(label) if label else kubelet or (NumaPolicy(own) if own else None)


@pytest.mark.skipif(not VECTORS.exists(), reason=f"{VECTORS} is not there")
def test_offers_agree_with_koordinators_plugin() -> None:
    counted: Counter[str] = Counter()
    with gzip.open(VECTORS) as file:
        for number, line in enumerate(file):
            case = json.loads(line)
            if ours(case) == theirs(case):
                counted["agree"] += 1
                continue
            reason = difference(case)
            assert reason, f"line {number}: ours {ours(case)}, theirs {theirs(case)}: {line!r}"
            counted[reason] += 1
    assert counted["agree"] > 0.97 * counted.total(), counted
