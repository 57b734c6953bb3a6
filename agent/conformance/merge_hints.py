"""Vectors of the merge of NUMA hints: Koordinator's, which the scheduler uses, and the kubelet's,
which is here. Masks are lists of NUMA ids in both.

In the kubelet's merge, combinations and preferred ones are as in Koordinator's, without scores.
Among preferred ones the narrowest mask wins: fewest nodes, then (where closest nodes are requested)
smallest distance, then the lowest number. Otherwise the mask should have as many nodes as the
neediest resource needs at least: B, the largest over the resources of the fewest nodes that one of
its hints names. The kubelet's comparison, candidate by candidate, ends with the narrowest mask of B
nodes if there is one, else of the most nodes below B, else of the fewest above: a mask of B nodes
is never left, one below B is left only for one nearer to B, and one above B for any narrower one.
So only the set of all intersections is needed, in no order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from agent.allocate.numa.combinations import first_place, intersections
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
    full_mask,
    lacking,
    no_combination,
    single_node_only,
)
from agent.allocate.numa.koordinator_merge import merge as koordinator_merge
from agent.conformance.files import CaseVerdict, Judge
from agent.model.cpu.cpuset import MAX_ID, members
from agent.model.cpu.policies import NumaExclusive, NumaPolicy

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


def kubelet_merge(
    providers: Sequence[Provider],
    nodes: Iterable[int],
    policy: NumaPolicy,
    distances: Distances | None = None,
) -> Merged:
    """The NUMA nodes for a pod or a container. `distances`: given where the closest nodes are
    preferred; without meaning for one node, so SingleNUMANode ignores it.

    None and BestEffort always admit, the others a preferred combination. Raises ValueError for
    hints with nodes that the machine lacks, naming provider and resource, and for nodes without a
    distance."""
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
        why = causes(table, picks, kept_out=False)
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
    """B; resources without a preference need nothing."""
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
"""From node to node, by NUMA id, as in the firmware's table (10: local)."""


def span(mask: int, distances: Distances) -> int:
    """The sum over all ordered pairs, a node with itself included: among masks of equally many
    nodes it orders as the mean does. Raises ValueError for a pair without a distance."""
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
