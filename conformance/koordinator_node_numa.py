"""Koordinator's plugin NodeNUMAResource on one node (koordinator-node-numa): whether a pod fits,
its CPUs and NUMA nodes, the policy that is written with them, and the node's score; and its CPU
accumulator alone (koordinator-take-cpus).

A case contains the two objects that a scheduler reads, the Node and the NodeResourceTopology.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from itertools import combinations
from typing import Any, Final

import msgspec

from agent.allocate import node_score
from agent.allocate.accumulator import CpuRequest, Taken, take
from agent.allocate.node_allocation import (
    NodeAllocation,
    PodAllocation,
    TopologyOptions,
    pod_allocation,
)
from agent.allocate.node_allocator.answer import spec_text
from agent.allocate.node_allocator.cpus import Trials
from agent.allocate.node_allocator.properties import topology_options
from agent.allocate.node_score import ScoreInput, WholeNode
from agent.allocate.policies_in_force import PROFILES, in_force
from agent.allocate.refusal import Refusal
from agent.model.cpu import layout as layouts
from agent.model.cpu.cpuset import CpuSet
from agent.model.cpu.layout import NOTHING_HELD, Layout
from agent.model.cpu.policies import (
    BindPolicy,
    ExclusivePolicy,
    Strategy,
)
from agent.model.nrt import resource_topology
from agent.model.nrt.node_annotations import (
    AMPLIFICATION_RATIO,
    CPU_MANAGER_POLICY,
    CPU_TOPOLOGY,
    POD_CPU_ALLOCS,
    RESERVATION,
    SYSTEM_QOS,
)
from agent.model.nrt.resource_topology import NodeTopology
from agent.model.pod.annotations import (
    NUMA_TOPOLOGY_SPEC,
    RESOURCE_SPEC,
    RESOURCE_STATUS,
    resource_spec,
    resource_status,
)
from agent.model.pod.qos import QoS
from agent.model.pod.resource_request import ResourceRequest, resource_request
from agent.model.quantities import milli, whole
from agent.model.settings.plugin_args import Rules, defaults
from conformance import machines
from conformance.files import CaseVerdict, Difference, Judge
from conformance.node_numa_differences import (
    DIFFERENCES,
    QUIRKS,
    KoordinatorTrials,
    Quirk,
    RecordedAllocation,
    offer_with,
)

_MAX_QUIRKS: Final = 3

_PROFILE: Final = msgspec.structs.replace(PROFILES["koordinator"], label_first=True)
"""The scheduler of the vectors: the plugin's defaults; the node's label overrides the kubelet."""

_ANNOTATIONS: Final = {
    "resourceSpec": RESOURCE_SPEC,
    "resourceStatus": RESOURCE_STATUS,
    "numaTopologySpec": NUMA_TOPOLOGY_SPEC,
}

MORE_THAN_REQUESTED: Final = Difference(
    name="more-than-requested",
    reason=(
        "a FullPCPUs request that ends inside a core gets that whole core if it takes the last "
        "whole cores of a socket: more CPUs than it requested and is charged for"
    ),
)


def judge_node(case: dict[str, Any]) -> CaseVerdict:
    """Errors agree with errors of the same kind (resolvable by evictions or not), whatever their
    text and stage. Allocations and policies are compared by value. The declared difference is the
    rule under which Topolet gives Koordinator's answer; if several rules are needed together, the
    first."""
    actual = _answer(case)
    theirs = _value(case["expect"])
    if _value(actual) == theirs:
        return CaseVerdict(True, actual)
    applying = [quirk for quirk in QUIRKS if quirk.applies(case)]
    for count in range(1, _MAX_QUIRKS + 1):
        for some in combinations(applying, count):
            if _value(_answer(case, some)) == theirs:
                return CaseVerdict(False, actual, some[0].difference.name)
    return CaseVerdict(False, actual)


def _answer(case: Mapping[str, Any], quirks: Sequence[Quirk] = ()) -> dict[str, Any]:
    """Topolet's answer under these rules of Koordinator, in the form of a case's `expect`."""
    changed = case
    for quirk in quirks:
        changed = quirk.case(changed)
    question = _question(changed)
    if not question.request.requests:
        return {"skip": True}
    node_allocation = _node_allocation(question, quirks)
    if refusal := next((quirk.refused for quirk in quirks if quirk.refused), ""):
        return {"error": "refused", "code": refusal}
    found = offer_with(_new_trials(quirks), question.options, node_allocation, question.request)
    if isinstance(found, Refusal):
        return {
            "error": "; ".join(str(each.reason) for each in found.reasons),
            "code": _code(found),
        }
    policies = in_force(question.options.policies, question.options.profile, question.request)
    assert not isinstance(policies, Refusal)
    options = question.options
    if any(quirk.unamplified for quirk in quirks):
        options = msgspec.structs.replace(options, cpu_ratio=1.0)
    state = ScoreInput(
        options, node_allocation, WholeNode(question.allocatable, question.requested)
    )
    claim = found.allocation
    if any(quirk.uncounted for quirk in quirks):
        claim = msgspec.structs.replace(claim, amounts={})
    spec = _written(case["pod"]).get(RESOURCE_SPEC, "")
    if claim.cpus and policies.bind:
        bind = policies.bind
        spec = spec_text(spec, bind.policy, forced=bind.required) or spec
    return {
        "score": node_score.score(defaults(Rules.KOORDINATOR), state, question.request, claim),
        "resourceStatus": msgspec.json.decode(claim.annotations().get(RESOURCE_STATUS, "{}")),
        "resourceSpec": msgspec.json.decode(spec or "{}"),
    }


def _node_allocation(question: _NodeCase, quirks: Sequence[Quirk]) -> NodeAllocation:
    recorded_only = any(quirk.recorded_only for quirk in quirks)
    node_allocation = (RecordedAllocation if recorded_only else NodeAllocation)(question.options)
    for claim in question.claims:
        node_allocation.add(claim)
    return node_allocation


def _new_trials(quirks: Sequence[Quirk]) -> Callable[..., Trials]:
    loose = any(quirk.recorded_only or quirk.unpaid for quirk in quirks)
    by_position = any(quirk.by_position for quirk in quirks)
    unbound = any(quirk.unbound for quirk in quirks)
    mixed = any(quirk.mixed for quirk in quirks)
    single_cpus = any(quirk.single_cpus for quirk in quirks)
    if not (loose or by_position or unbound or mixed or single_cpus):
        return Trials
    return partial(
        KoordinatorTrials,
        loose=loose,
        by_position=by_position,
        unbound=unbound,
        mixed=mixed,
        single_cpus=single_cpus,
    )


def _code(refusal: Refusal) -> str:
    return "UnschedulableAndUnresolvable" if refusal.unresolvable else "Unschedulable"


def _value(answer: Mapping[str, Any]) -> object:
    """The parts of an answer that are compared; a preferred policy is ignored if one is
    required."""
    if answer.get("skip"):
        return "skip"
    if "error" in answer:
        return answer["code"]
    status = resource_status({RESOURCE_STATUS: _text(answer.get("resourceStatus", {}))})
    spec = resource_spec({RESOURCE_SPEC: _text(answer.get("resourceSpec", {}))})
    if spec.required not in (None, BindPolicy.DEFAULT):
        spec = msgspec.structs.replace(spec, preferred=BindPolicy.DEFAULT)
    return status.cpus(), status.amounts(), spec, answer["score"]


class _NodeCase(msgspec.Struct, frozen=True):
    """A case as Topolet's values."""

    options: TopologyOptions
    claims: tuple[PodAllocation, ...]
    request: ResourceRequest
    allocatable: dict[str, int]
    """The amounts of the whole node."""
    requested: dict[str, int]
    """The requested amounts of the whole node, before CPU is amplified."""


def _question(case: Mapping[str, Any]) -> _NodeCase:
    """Raises ObjectError, AnnotationError and the exceptions that Judge permits."""
    ratio = case.get("amplification", 1)
    allocatable = _amounts(case["allocatable"])
    allocatable["cpu"] = math.ceil(allocatable["cpu"] * ratio)
    notes = {AMPLIFICATION_RATIO: _text({"cpu": ratio})}
    options, faults = topology_options(
        case.get("nodeLabels", {}), notes, _topology(case), allocatable["cpu"], _PROFILE
    )
    if faults:
        raise ValueError("; ".join(faults))
    claims = []
    requested: dict[str, int] = {}
    for number, pod in enumerate(case["allocated"]):
        held = _amounts(pod["requests"])
        claims.append(
            pod_allocation(f"p{number}", f"ns/p{number}", _written(pod), held.get("cpu", 0))
        )
        for name, amount in held.items():
            requested[name] = requested.get(name, 0) + amount
    pod = case["pod"]
    request = resource_request(
        "pod",
        "ns/pod",
        QoS(pod.get("qos", "LS")),
        _written(pod),
        _amounts(pod["requests"]),
        priority=pod.get("priority"),
    )
    return _NodeCase(options, tuple(claims), request, allocatable, requested)


def _topology(case: Mapping[str, Any]) -> NodeTopology:
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
    return resource_topology.decode(
        {
            "metadata": {
                "name": "node",
                "annotations": {k: _text(v) for k, v in notes.items() if v is not None},
            },
            "topologyPolicies": case.get("topologyPolicies", []),
            "zones": [_zone(each) for each in case["zones"]],
        }
    )


def _written(pod: Mapping[str, Any]) -> dict[str, str]:
    return {key: _text(pod[name]) for name, key in _ANNOTATIONS.items() if name in pod}


def _amounts(resources: Mapping[str, Any]) -> dict[str, int]:
    """CPU in milli-CPU, the rest in units."""
    return {
        name: (milli if name == "cpu" else whole)(quantity) for name, quantity in resources.items()
    }


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _if(value: str | None, key: str) -> dict[str, str] | None:
    return None if value is None else {key: value}


def _detail(case: Mapping[str, Any]) -> list[dict[str, int]]:
    return [
        {"id": cpu.id, "core": cpu.core, "socket": cpu.socket, "node": cpu.node}
        for cpu in machines.cpus(case["shape"], case["numbering"])
    ]


def _zone(zone: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": resource_topology.zone_name(zone["node"]),
        "type": "Node",
        "resources": [
            {"name": name, "capacity": each, "allocatable": each, "available": each}
            for name, each in zone["resources"].items()
        ],
    }


def judge_take_cpus(case: dict[str, Any]) -> CaseVerdict:
    """Any error agrees with any error."""
    request = CpuRequest(
        count=case["need"],
        bind=BindPolicy(case["bind"]),
        exclusive=_exclusive(case["exclusive"]),
        strategy=Strategy(case["strategy"]),
    )
    cpu_counts = NOTHING_HELD
    for each in case["allocated"]:
        cpus = CpuSet.parse(each["cpus"]).mask
        times = min(each["ref"], case["maxRef"])  # larger numbers have the same effect
        cpu_counts = cpu_counts.adding(cpus, _exclusive(each["exclusive"]), times)
    answer = take(
        _layout(tuple(case["shape"]), case["numbering"]),
        CpuSet.parse(case["available"]).mask,
        cpu_counts,
        request,
        case["maxRef"],
        CpuSet.parse(case.get("preferred", "")).mask,
    )
    expected = case["expect"]
    if not isinstance(answer, Taken):
        return CaseVerdict("error" in expected, {"error": answer.reason.value})
    actual = CpuSet.from_int(answer.cpus)
    if actual == CpuSet.parse(expected.get("cpuset", "")):
        return CaseVerdict("cpuset" in expected, {"cpuset": str(actual)})
    declared = MORE_THAN_REQUESTED.name if _more_than_requested(case) else None
    return CaseVerdict(False, {"cpuset": str(actual)}, declared)


def _more_than_requested(case: dict[str, Any]) -> bool:
    """Whether the answer exceeds the request by less than a core, and the request ends inside a
    core: by its number, or by the part that the preferred CPUs leave of it."""
    threads: int = case["shape"][3]
    need: int = case["need"]
    surplus = len(CpuSet.parse(case["expect"].get("cpuset", ""))) - need
    inside = need % threads > 0 or "preferred" in case
    return case["bind"] == BindPolicy.FULL_PCPUS.value and inside and 0 < surplus < threads


def _exclusive(text: str) -> ExclusivePolicy:
    return ExclusivePolicy(text) if text else ExclusivePolicy.NONE


@lru_cache(maxsize=256)
def _layout(shape: tuple[float, ...], numbering: str) -> Layout:
    return layouts.of(machines.cpus(shape, numbering))


JUDGES: Final = {
    "koordinator-node-numa": Judge(judge_node, DIFFERENCES),
    "koordinator-take-cpus": Judge(judge_take_cpus, (MORE_THAN_REQUESTED,)),
}
