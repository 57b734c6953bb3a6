"""Reference implementations of both merges: they try every combination, in order."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from agent.allocate.numa.hint import NodeStatus, Provider, TopologyHint
from agent.model.cpu.policies import NumaExclusive, NumaPolicy

Answer = tuple[int | None, bool, bool, int, bool]
"""Mask, preferred, admit, score, unsatisfied."""


def _lists(
    providers: Sequence[Provider], policy: NumaPolicy
) -> tuple[list[list[TopologyHint]], bool]:
    lists: list[list[TopologyHint]] = []
    insufficient = False
    for provider in providers:
        if not provider:
            lists.append([TopologyHint(None, True)])
        for hints in provider.values():
            if hints is None:
                lists.append([TopologyHint(None, True)])
            elif not hints:
                lists.append([TopologyHint(None, False, 0, True)])
                insufficient = True
            else:
                lists.append(list(hints))
    if policy is NumaPolicy.SINGLE_NUMA_NODE:
        lists = [
            [
                hint
                for hint in hints
                if hint.preferred and (hint.mask is None or hint.mask.bit_count() == 1)
            ]
            for hints in lists
        ]
    return lists, insufficient


def koordinator(
    providers: Sequence[Provider],
    nodes: Sequence[int],
    policy: NumaPolicy,
    exclusive: NumaExclusive | None,
    statuses: Mapping[int, NodeStatus],
    *,
    by_score: bool = False,
) -> Answer:
    full = sum(1 << node for node in nodes)
    lists, insufficient = _lists(providers, policy)
    best = (full, False, 0, False)
    for hints in itertools.product(*lists):
        masks = [hint.mask for hint in hints if hint.mask is not None]
        mask = full
        for hint_mask in masks:
            mask &= hint_mask
        if mask == 0:
            continue
        preferred = all(hint.preferred for hint in hints)
        preferred = preferred and all(hint_mask == masks[0] for hint_mask in masks)
        if exclusive is NumaExclusive.REQUIRED:
            statuses_of_mask = [statuses[node] for node in nodes if mask >> node & 1]
            if len(statuses_of_mask) > 1 and NodeStatus.SINGLE in statuses_of_mask:
                preferred = False
            if statuses_of_mask == [NodeStatus.SHARED]:
                preferred = False
        unsatisfied = any(hint.unsatisfied for hint in hints)
        if masks and mask.bit_count() != max(hint_mask.bit_count() for hint_mask in masks):
            unsatisfied = True
        score = sum(hint.score for hint in hints if hint.mask == mask)
        if preferred != best[1]:
            replaces = preferred
        elif by_score:
            replaces = (mask.bit_count(), -score, mask) < (best[0].bit_count(), -best[2], best[0])
        elif (mask.bit_count(), mask) < (best[0].bit_count(), best[0]):
            replaces = True
        else:
            replaces = mask.bit_count() == best[0].bit_count() and score > best[2]
        if replaces:
            best = (mask, preferred, score, unsatisfied)
    mask, preferred, score, unsatisfied = best
    if policy is NumaPolicy.BEST_EFFORT:
        return (
            (full, False, True, 0, False) if unsatisfied else (mask, preferred, True, score, False)
        )
    single = policy is NumaPolicy.SINGLE_NUMA_NODE
    if insufficient:
        return None if single else full, False, False, 0, False
    if single and mask == full:
        return None, preferred, preferred, 0, False
    return mask, preferred, preferred, score, unsatisfied
