"""The merge of NUMA hints: Koordinator's, which Topolet's scheduler uses too, and the kubelet's,
which is implemented here. In the vectors, masks are lists of NUMA ids.

The kubelet's merge (pkg/kubelet/cm/topologymanager/policy.go, HintMerger) combines hints as
Koordinator's does, without scores. Of the preferred masks the narrowest wins: the one with the
fewest nodes, then (if closest nodes are preferred) the smallest distance, then the lowest number.
Without a preferred mask, the number of nodes should be B: the minimum number of nodes over the
hints of a resource, maximised over the resources. The result is the narrowest mask of B nodes; if
there is none, the narrowest of those with the most nodes below B; if there is none either, the
narrowest of those with the fewest nodes above B.

The kubelet compares candidates one by one: it never replaces a mask of B nodes, replaces a mask
with fewer only by one nearer to B, and a mask with more by any narrower one. So the result depends
only on the set of all intersections, not on their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from agent.allocate.numa.hint import (
    MergeCause,
    Merged,
    NodeStatus,
    Provider,
    TopologyHint,
    of_nodes,
)
from agent.allocate.numa.koordinator_merge import (
    Column,
    aligned,
    causes,
    columns,
    first_place,
    full_mask,
    intersections,
    lacking,
    no_combination,
    single_node_only,
)
from agent.allocate.numa.koordinator_merge import merge as koordinator_merge
from agent.model.cpu.cpuset import MAX_ID, members
from agent.model.cpu.policies import NumaExclusive, NumaPolicy
from conformance.files import CaseVerdict, Judge

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
    actual = {
        "mask": _ids(merged.mask),
        "preferred": merged.preferred,
        "unsatisfied": merged.unsatisfied,
        "score": merged.score,
        "admit": merged.admit,
    }
    expect = case["expect"]
    return CaseVerdict("panic" in expect or actual == expect, actual)


def judge_kubelet(case: dict[str, Any]) -> CaseVerdict:
    """Compares admit, mask and preferred; a panic agrees with any answer."""
    merged = kubelet_merge(
        _providers(case["hints"]), case["numaNodes"], _POLICIES[case["policy"]], _distances(case)
    )
    actual = {
        "admit": merged.admit,
        "mask": _ids(merged.mask),
        "preferred": merged.preferred,
    }
    expect = case["expect"]
    return CaseVerdict("panic" in expect or actual == expect, actual)


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
    """The providers: one object for each, or null; it maps a resource to null, [] or hints."""
    return [
        {
            resource: None if hints is None else [_hint(hint) for hint in hints]
            for resource, hints in (provider or {}).items()
        }
        for provider in written
    ]


def _ids(mask: int | None) -> list[int] | None:
    """The ids of a mask, None for no restriction."""
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


def kubelet_merge(
    providers: Sequence[Provider],
    nodes: Iterable[int],
    policy: NumaPolicy,
    distances: Distances | None = None,
) -> Merged:
    """The NUMA nodes for a pod or a container. None and BestEffort always admit, the other policies
    only a preferred combination.

    `distances`: given if the closest nodes are preferred; SingleNUMANode ignores them, because it
        chooses one node.

    Raises ValueError for hints with nodes that the machine does not have, which names provider and
    resource, and for nodes without a distance."""
    full = full_mask(nodes)
    if policy is NumaPolicy.NONE:
        return Merged(None, preferred=False, admit=True)
    table = columns(providers, full)
    single = policy is NumaPolicy.SINGLE_NUMA_NODE
    missing = lacking(table)
    if single:
        table = [single_node_only(column, full) for column in table]
        distances = None

    def narrowness(mask: int) -> tuple[int, int]:
        return (0 if distances is None else span(mask, distances), mask)

    masks = aligned(table, full)
    preferred = bool(masks)
    if preferred:
        count = min(mask.bit_count() for mask in masks)
    else:
        masks = intersections([column.masks for column in table], full)
        count = _node_count(masks, _needed(table))
    chosen = min(
        (mask for mask in masks if mask.bit_count() == count), key=narrowness, default=None
    )
    picks: tuple[int, ...] = ()
    why: tuple[MergeCause, ...] = ()
    if chosen is None:
        why = no_combination(table, single and not missing)
        missing = lacking(table)
    elif preferred:
        picks = tuple(_preferring(column, chosen) for column in table)
    else:
        picks = first_place([column.masks for column in table], chosen)
        why = causes(table, picks, excluded=False)
    mask: int | None = full if chosen is None else chosen
    return Merged(
        None if single and mask == full else mask,
        preferred=preferred,
        admit=preferred or policy is NumaPolicy.BEST_EFFORT,
        combined=chosen,
        causes=why,
        picks=tuple(column.pick(index) for column, index in zip(table, picks, strict=False)),
        lacking=missing,
    )


def _needed(table: Sequence[Column]) -> int:
    """The number B of the module's docstring. Resources without a preference count as 0."""
    return max(
        (
            min((mask.bit_count() for mask in column.named if mask is not None), default=0)
            for column in table
        ),
        default=0,
    )


def _node_count(masks: Iterable[int], needed: int) -> int:
    counts = {mask.bit_count() for mask in masks}
    if needed in counts or not counts:
        return needed
    below = [count for count in counts if count < needed]
    return max(below) if below else min(counts)


def _preferring(column: Column, mask: int) -> int:
    return next(
        index
        for index, hint in enumerate(column.hints)
        if hint.preferred and (hint.mask is None or hint.mask == mask)
    )


Distances: TypeAlias = Mapping[int, Mapping[int, int]]
"""Distances from node to node by NUMA id, as in the firmware's table (10: local)."""


def span(mask: int, distances: Distances) -> int:
    """The sum of the distances of all ordered pairs, including each node with itself. Masks with
    the same number of nodes have the same order as by the mean. Raises ValueError for a pair
    without a distance."""
    nodes = list(members(mask))
    total = 0
    for node in nodes:
        row = distances.get(node)
        if row is None:
            raise ValueError(f"NUMA node {node} has no distances")
        for other in nodes:
            distance = row.get(other)
            if distance is None:
                raise ValueError(f"NUMA node {node} has no distance to node {other}")
            total += distance
    return total
