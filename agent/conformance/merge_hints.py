"""The merge of NUMA hints, Koordinator's and the kubelet's. Masks are lists of NUMA ids in both."""

from __future__ import annotations

from typing import Any, Final

from agent.allocate.numa.hint import NodeStatus, Provider, TopologyHint, of_nodes
from agent.allocate.numa.koordinator_merge import merge as koordinator_merge
from agent.allocate.numa.kubelet_merge import Distances
from agent.allocate.numa.kubelet_merge import merge as kubelet_merge
from agent.conformance.files import CaseVerdict, Judge
from agent.model.cpuset import MAX_ID, members
from agent.model.policies import NumaExclusive, NumaPolicy

_CLOSEST: Final = "prefer-closest-numa-nodes"

_POLICIES: Final = {
    "none": NumaPolicy.NONE,
    "best-effort": NumaPolicy.BEST_EFFORT,
    "restricted": NumaPolicy.RESTRICTED,
    "single-numa-node": NumaPolicy.SINGLE_NUMA_NODE,
}


def judge_koordinator(case: dict[str, Any]) -> CaseVerdict:
    """Compares mask, preferred, unsatisfied, score and admit; a panic agrees with any answer."""
    nodes = case["numaNodes"]
    exclusive = case["exclusive"]
    merged = koordinator_merge(
        _providers(case["hints"]),
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


def judge_kubelet(case: dict[str, Any]) -> CaseVerdict:
    """Compares admit, mask and preferred; a panic agrees with any answer."""
    merged = kubelet_merge(
        _providers(case["hints"]), case["numaNodes"], _POLICIES[case["policy"]], _distances(case)
    )
    ours = {
        "admit": merged.admit,
        "mask": ids(merged.mask),
        "preferred": merged.preferred,
    }
    expect = case["expect"]
    return CaseVerdict("panic" in expect or ours == expect, ours)


def _distances(case: dict[str, Any]) -> Distances | None:
    options = set(case["options"])
    if not options <= {_CLOSEST}:
        raise ValueError(f"options {sorted(options - {_CLOSEST})} are not known")
    if _CLOSEST not in options:
        return None
    nodes = case["numaNodes"]
    return {
        node: dict(zip(nodes, row, strict=True))
        for node, row in zip(nodes, case["distances"], strict=True)
    }


def _providers(written: list[Any]) -> list[Provider]:
    """An object a provider, null for none; resource -> null, [] or hints."""
    return [
        {
            resource: None if hints is None else [_hint(hint) for hint in hints]
            for resource, hints in (provider or {}).items()
        }
        for provider in written
    ]


def ids(mask: int | None) -> list[int] | None:
    """A mask as its ids, null for no restriction."""
    return None if mask is None else list(members(mask))


def _hint(hint: dict[str, Any]) -> TopologyHint:
    mask = hint["mask"]
    if mask and max(mask) > MAX_ID:
        raise ValueError(f"mask: NUMA node {max(mask)} is beyond {MAX_ID}")
    return TopologyHint(
        None if mask is None else of_nodes(mask),
        preferred=hint["preferred"],
        score=hint.get("score", 0),
        unsatisfied=hint.get("unsatisfied", False),
    )


JUDGES: Final = {
    "koordinator-merge-hints": Judge(judge_koordinator),
    "kubelet-merge-hints": Judge(judge_kubelet),
}
