"""Koordinator's plugin NodeNUMAResource on one node: whether a pod fits, its CPUs and NUMA nodes,
the policy that is written beside them, and the node's score."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import combinations
from typing import Any, Final

import msgspec

from agent.allocate import node_score, offering
from agent.allocate.node_allocation import NodeAllocation, TopologyOptions
from agent.allocate.node_allocator.answer import spec_text
from agent.allocate.node_score import ScoreInput, WholeNode
from agent.allocate.offering import Declined
from agent.allocate.policies_in_force import InForce, in_force
from agent.allocate.reasons import UNRESOLVABLE, Rejection
from agent.allocate.resource_request import ResourceRequest
from agent.allocate.trials import Trials
from agent.conformance.files import CaseVerdict
from agent.conformance.node_numa_account import RecordedAccount, TheirTrials
from agent.conformance.node_numa_case import NodeCase, question, text, written
from agent.conformance.node_numa_differences import DIFFERENCES, QUIRKS, Quirk
from agent.model.annotations import RESOURCE_SPEC, RESOURCE_STATUS, resource_status
from agent.model.policies import BindPolicy, resource_spec
from agent.model.schedulerargs import Rules, defaults

__all__ = ["DIFFERENCES", "judge"]

_MOST_QUIRKS: Final = 3


def judge(case: dict[str, Any]) -> CaseVerdict:
    """Errors agree with errors of the same kind (resolvable by evictions or not), of any text and
    stage; allocations and policies agree by value. The declared difference is the rule that turns
    ours into Koordinator's answer; of several rules that are needed together, the first."""
    ours = _answer(case)
    theirs = _value(case["expect"])
    if _value(ours) == theirs:
        return CaseVerdict(True, ours)
    applying = [quirk for quirk in QUIRKS if quirk.applies(case)]
    for count in range(1, _MOST_QUIRKS + 1):
        for some in combinations(applying, count):
            if _value(_answer(case, some)) == theirs:
                return CaseVerdict(False, ours, some[0].difference.name)
    return CaseVerdict(False, ours)


def _answer(case: Mapping[str, Any], quirks: Sequence[Quirk] = ()) -> dict[str, Any]:
    """Ours in the form of a case's `expect`, under rules of theirs."""
    seen = case
    for quirk in quirks:
        seen = quirk.case(seen)
    asked = question(seen)
    if not asked.ask.requests:
        return {"skip": True}
    account = _account(asked, quirks)
    if refusal := next((quirk.refused for quirk in quirks if quirk.refused), ""):
        return {"error": "refused", "code": refusal}
    found = offering.offer(asked.facts, account, asked.ask, trying=_trying(quirks))
    if isinstance(found, Declined):
        return {
            "error": "; ".join(str(each.reason) for each in found.rejections),
            "code": _code(found.rejections),
        }
    policies = in_force(asked.facts.policies, asked.facts.profile, asked.ask)
    assert not isinstance(policies, Rejection)
    facts = asked.facts
    if any(quirk.unamplified for quirk in quirks):
        facts = msgspec.structs.replace(facts, cpu_ratio=1.0)
    state = ScoreInput(facts, account, WholeNode(asked.allocatable, asked.requested))
    claim = found.claim
    if any(quirk.unaccounted for quirk in quirks):
        claim = msgspec.structs.replace(claim, amounts={})
    spec = written(case["pod"]).get(RESOURCE_SPEC, "")
    if claim.cpus and policies.bind:
        bind = policies.bind
        spec = spec_text(spec, bind.policy, forced=bind.required) or spec
    return {
        "score": node_score.score(defaults(Rules.KOORDINATOR), state, asked.ask, claim),
        "resourceStatus": msgspec.json.decode(claim.annotations().get(RESOURCE_STATUS, "{}")),
        "resourceSpec": msgspec.json.decode(spec or "{}"),
    }


def _account(asked: NodeCase, quirks: Sequence[Quirk]) -> NodeAllocation:
    recorded_only = any(quirk.recorded_only for quirk in quirks)
    account = (RecordedAccount if recorded_only else NodeAllocation)(asked.facts)
    for claim in asked.claims:
        account.add(claim)
    return account


def _trying(
    quirks: Sequence[Quirk],
) -> Callable[[TopologyOptions, NodeAllocation, ResourceRequest, InForce], Trials]:
    loose = any(quirk.recorded_only or quirk.unpaid for quirk in quirks)
    by_position = any(quirk.by_position for quirk in quirks)
    unbound = any(quirk.unbound for quirk in quirks)
    if not (loose or by_position or unbound):
        return Trials
    return partial(TheirTrials, loose=loose, by_position=by_position, unbound=unbound)


def _code(rejections: Sequence[Rejection]) -> str:
    fixed = any(each.reason in UNRESOLVABLE for each in rejections)
    return "UnschedulableAndUnresolvable" if fixed else "Unschedulable"


def _value(answer: Mapping[str, Any]) -> object:
    """The parts of an answer; a preferred policy is ignored where one is required."""
    if answer.get("skip"):
        return "skip"
    if "error" in answer:
        return answer["code"]
    status = resource_status({RESOURCE_STATUS: text(answer.get("resourceStatus", {}))})
    spec = resource_spec({RESOURCE_SPEC: text(answer.get("resourceSpec", {}))})
    if spec.required not in (None, BindPolicy.DEFAULT):
        spec = msgspec.structs.replace(spec, preferred=BindPolicy.DEFAULT)
    return status.cpus(), status.amounts(), spec, answer["score"]
