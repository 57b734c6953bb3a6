"""Vectors of Koordinator's merge of NUMA hints."""

from __future__ import annotations

from typing import Any, Final

from agent.allocate.numa.hint import NodeStatus
from agent.allocate.numa.koordinator_merge import merge
from agent.conformance.files import CaseVerdict, Difference
from agent.conformance.numa_hints import ids, providers
from agent.model.policies import NumaExclusive, NumaPolicy

DIFFERENCES: Final[tuple[Difference, ...]] = ()


def judge(case: dict[str, Any]) -> CaseVerdict:
    """Compares mask, preferred, unsatisfied, score and admit; a panic agrees with any answer."""
    nodes = case["numaNodes"]
    exclusive = case["exclusive"]
    merged = merge(
        providers(case["hints"]),
        nodes,
        NumaPolicy(case["policy"]),
        NumaExclusive(exclusive) if exclusive else None,
        {node: NodeStatus(status) for node, status in zip(nodes, case["status"], strict=True)},
    )
    ours = {
        "mask": ids(merged.mask),
        "preferred": merged.preferred,
        "unsatisfied": merged.unsatisfied,
        "score": merged.score,
        "admit": merged.admit,
    }
    expect = case["expect"]
    return CaseVerdict("panic" in expect or ours == expect, ours)
