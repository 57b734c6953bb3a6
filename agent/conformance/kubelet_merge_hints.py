"""Vectors of the kubelet's merge of NUMA hints."""

from __future__ import annotations

from typing import Any, Final

from agent.allocate.numa.kubelet_merge import Distances, merge
from agent.conformance.files import CaseVerdict, Difference
from agent.conformance.numa_hints import ids, providers
from agent.model.policies import NumaPolicy

DIFFERENCES: Final[tuple[Difference, ...]] = ()

CLOSEST: Final = "prefer-closest-numa-nodes"
POLICIES: Final = {
    "none": NumaPolicy.NONE,
    "best-effort": NumaPolicy.BEST_EFFORT,
    "restricted": NumaPolicy.RESTRICTED,
    "single-numa-node": NumaPolicy.SINGLE_NUMA_NODE,
}


def judge(case: dict[str, Any]) -> CaseVerdict:
    """Compares admit, mask and preferred; a panic agrees with any answer."""
    merged = merge(
        providers(case["hints"]), case["numaNodes"], POLICIES[case["policy"]], _distances(case)
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
    if not options <= {CLOSEST}:
        raise ValueError(f"options {sorted(options - {CLOSEST})} are not known")
    if CLOSEST not in options:
        return None
    nodes = case["numaNodes"]
    return {
        node: dict(zip(nodes, row, strict=True))
        for node, row in zip(nodes, case["distances"], strict=True)
    }
