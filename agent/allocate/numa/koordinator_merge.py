"""Koordinator's merge of NUMA hints.

One hint of each resource makes a combination; its mask is the intersection. Preferred is a
combination of preferred hints that all name the same mask (no preference goes with any). Preferred
ones first, then fewer nodes; among those the order of the hints matters, see `scan`. If there is a
preferred combination, only hints of preferred masks of the fewest nodes can be part of the winner;
otherwise, only combinations whose intersection is smallest: nothing else is looked at.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence

from agent.allocate.numa import scan
from agent.allocate.numa.columns import (
    Column,
    aligned,
    causes,
    columns,
    full_mask,
    lacking,
    no_combination,
    single_node_only,
)
from agent.allocate.numa.combinations import Place, first_place
from agent.allocate.numa.hint import Cause, Merged, Provider
from agent.allocate.numa.intersections import intersections
from agent.allocate.numa.masks import of_nodes
from agent.model.policies import NumaExclusive, NumaPolicy


class NodeStatus(enum.StrEnum):
    """Who has CPUs of a NUMA node: nobody, pods that lie inside it, a pod that lies on others
    too."""

    IDLE = "idle"
    SINGLE = "single"
    SHARED = "shared"


def merge(
    providers: Sequence[Provider],
    nodes: Iterable[int],
    policy: NumaPolicy,
    exclusive: NumaExclusive | None = None,
    statuses: Mapping[int, NodeStatus] | None = None,
) -> Merged:
    """The NUMA nodes for a pod. `nodes`: ids of the machine's NUMA nodes; `statuses`: by id, those
    not named are idle, looked at only where `exclusive` is REQUIRED.

    BestEffort always admits; Restricted and SingleNUMANode admit a preferred combination. Where
    nothing limits the pod the mask of SingleNUMANode is None. Raises ValueError for hints with
    nodes that the machine lacks or with negative scores, naming provider and resource."""
    full = full_mask(nodes)
    if policy is NumaPolicy.NONE:
        return Merged(None, preferred=False, admit=True)
    table = columns(providers, full)
    missing = lacking(table)
    single = policy is NumaPolicy.SINGLE_NUMA_NODE
    if missing and policy is not NumaPolicy.BEST_EFFORT:
        return Merged(
            None if single else full,
            preferred=False,
            admit=False,
            causes=(Cause.RESOURCE_LACKING,),
            lacking=missing,
        )
    if single:
        table = [single_node_only(column, full) for column in table]
        missing = lacking(table)
    apart = _Exclusivity(statuses or {}) if exclusive is NumaExclusive.REQUIRED else None
    table, best, place, preferred = _combine(table, full, apart)
    why: tuple[Cause, ...] = ()
    if place is None:
        why = no_combination(table, single)
    elif not preferred:
        why = causes(table, place, apart is not None and apart.keeps_out(best.mask))
    mask: int | None = best.mask
    score = best.score
    unsatisfied = best.place is not None and _unsatisfied(table, best.place, best.mask)
    if (policy is NumaPolicy.BEST_EFFORT and unsatisfied) or (single and mask == full):
        mask = None if single else full
        preferred = preferred and single
        score = 0
        unsatisfied = False
    return Merged(
        mask,
        preferred=preferred,
        admit=preferred or policy is NumaPolicy.BEST_EFFORT,
        score=score,
        unsatisfied=unsatisfied,
        combined=None if place is None else best.mask,
        causes=why,
        picks=()
        if place is None
        else tuple(column.pick(index) for column, index in zip(table, place, strict=True)),
        lacking=missing,
    )


class _Exclusivity:
    """Pods of one NUMA node and pods of several are kept apart."""

    def __init__(self, statuses: Mapping[int, NodeStatus]) -> None:
        self._single = _mask(statuses, NodeStatus.SINGLE)
        self._shared = _mask(statuses, NodeStatus.SHARED)

    def keeps_out(self, mask: int) -> bool:
        several = mask & (mask - 1)
        return bool(mask & (self._single if several else self._shared))


def _mask(statuses: Mapping[int, NodeStatus], wanted: NodeStatus) -> int:
    return of_nodes(node for node, status in statuses.items() if status is wanted)


def _combine(
    table: list[Column], full: int, apart: _Exclusivity | None
) -> tuple[list[Column], scan.Best, Place | None, bool]:
    """The hints that were looked at, what the scan ends with, a combination of that mask if there
    is one, and whether it is preferred. The full mask, not preferred and without a score, is what
    stands before the scan."""
    before = scan.Best(full, 0, None)
    masks = aligned(table, full)
    if apart is not None:
        masks = {mask for mask in masks if not apart.keeps_out(mask)}
    preferred = bool(masks)
    if not preferred:
        masks = intersections([column.masks for column in table], full)
        if not masks:
            return table, before, None, False
    fewest = min(mask.bit_count() for mask in masks)
    masks = {mask for mask in masks if mask.bit_count() == fewest}
    if preferred:
        table = [_of_masks(column, masks, full) for column in table]
    lists = [column.masks for column in table]
    scores = [[0 if hint.mask is None else hint.score for hint in column.hints] for column in table]
    stands = before if masks == {full} and not preferred else None
    best = scan.outcome(lists, scores, masks, stands)
    place = first_place(lists, full) if best.place is None else best.place
    return table, best, place, preferred


def _of_masks(column: Column, masks: set[int], full: int) -> Column:
    """The preferred hints of these masks or of no preference."""
    kept = [
        index
        for index, hint in enumerate(column.hints)
        if hint.preferred and (hint.mask is None or hint.mask in masks)
    ]
    return column.keep(kept, full)


def _unsatisfied(table: Sequence[Column], place: Place, mask: int) -> bool:
    """A resource can't be satisfied, or one names more nodes than the mask has."""
    hints = [column.hints[index] for column, index in zip(table, place, strict=True)]
    return any(hint.unsatisfied or (hint.mask is not None and hint.mask != mask) for hint in hints)
