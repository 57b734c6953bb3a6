from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.allocate.numa.hint import MergeCause, NodeStatus, Pick, Provider, TopologyHint
from agent.allocate.numa.koordinator_merge import intersections, merge
from agent.model.cpu.policies import NumaExclusive, NumaPolicy

NODES = st.lists(st.sampled_from([0, 1, 2, 3, 5, 8, 64, 70]), min_size=1, max_size=5, unique=True)
DENSE = st.integers(1, 4).map(lambda count: list(range(count)))


def hints(nodes: list[int]) -> st.SearchStrategy[TopologyHint]:
    sets = st.sets(st.sampled_from(nodes), min_size=1)
    masks = sets.map(lambda members: sum(1 << node for node in members))
    return st.builds(
        TopologyHint,
        st.one_of(masks, masks, masks, masks, st.none(), st.just(0)),
        st.booleans(),
        st.sampled_from([0, 0, 1, 2, 3, 7]),
        st.sampled_from([False] * 5 + [True]),
    )


def rarely_preferred(nodes: list[int]) -> st.SearchStrategy[TopologyHint]:
    """Mostly combinations without preferred hints: the order of all combinations decides."""
    return hints(nodes).map(
        lambda hint: (
            TopologyHint(hint.mask, False, hint.score, hint.unsatisfied) if hint.mask else hint
        )
    )


def providers(nodes: list[int]) -> st.SearchStrategy[list[Provider]]:
    def of(hint: st.SearchStrategy[TopologyHint]) -> st.SearchStrategy[list[Provider]]:
        lists = st.lists(hint, min_size=1, max_size=9)
        hint_lists = st.one_of(lists, lists, lists, lists, lists, st.none(), st.just([]))
        named = st.dictionaries(st.sampled_from(["cpu", "memory", "gpu"]), hint_lists, max_size=2)
        return st.lists(named, max_size=3).filter(
            lambda drawn: sum(len(provider) for provider in drawn) <= 4
        )

    return st.one_of(of(hints(nodes)), of(rarely_preferred(nodes)))


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


def enumerated(
    providers: Sequence[Provider],
    nodes: Sequence[int],
    policy: NumaPolicy,
    exclusive: NumaExclusive | None,
    statuses: Mapping[int, NodeStatus],
    *,
    by_score: bool = False,
) -> Answer:
    """The answer of a merge that tries every combination, in order."""
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


POLICIES = [NumaPolicy.BEST_EFFORT, NumaPolicy.RESTRICTED, NumaPolicy.SINGLE_NUMA_NODE]


def answer(
    hints: list[Provider],
    nodes: list[int],
    policy: NumaPolicy,
    exclusive: NumaExclusive | None,
    statuses: dict[int, NodeStatus],
    *,
    by_score: bool = False,
) -> Answer:
    merged = merge(hints, nodes, policy, exclusive, statuses, by_score=by_score)
    return merged.mask, merged.preferred, merged.admit, merged.score, merged.unsatisfied


@settings(max_examples=500, deadline=None)
@given(st.data())
def test_the_merge_equals_the_cartesian_product(data: st.DataObject) -> None:
    nodes = data.draw(st.one_of(NODES, DENSE), label="nodes")
    hints = data.draw(providers(nodes), label="hints")
    policy = data.draw(st.sampled_from(POLICIES), label="policy")
    exclusive = data.draw(st.sampled_from([None, *NumaExclusive]), label="exclusive")
    statuses = {
        node: data.draw(st.sampled_from(list(NodeStatus)), label=f"status {node}") for node in nodes
    }
    by_score = data.draw(st.booleans(), label="by score")
    expected = enumerated(hints, nodes, policy, exclusive, statuses, by_score=by_score)
    assert answer(hints, nodes, policy, exclusive, statuses, by_score=by_score) == expected


def test_the_best_pair_of_numa_nodes_may_have_the_higher_mask() -> None:
    pairs = [TopologyHint(0b1001, True, 80), TopologyHint(0b0110, True, 20)]
    hints = [{"cpu": pairs, "memory": pairs}]
    nodes = range(4)
    assert merge(hints, nodes, NumaPolicy.RESTRICTED).mask == 0b0110
    assert merge(hints, nodes, NumaPolicy.RESTRICTED, by_score=True).mask == 0b1001


def test_a_rejection_for_exclusivity_has_its_cause() -> None:
    merged = merge(
        [{"cpu": [TopologyHint(1, True)]}],
        [0, 1],
        NumaPolicy.RESTRICTED,
        NumaExclusive.REQUIRED,
        {0: NodeStatus.SHARED},
    )
    assert not merged.admit
    assert merged.causes == (MergeCause.NODE_EXCLUSIVE,)


def test_the_result_has_causes_and_picks() -> None:
    merged = merge(
        [{"cpu": [TopologyHint(0b01, True)], "memory": []}, {}], [0, 1], NumaPolicy.BEST_EFFORT
    )
    assert merged.mask == 0b11
    assert merged.combined == 0b01
    assert merged.causes == (MergeCause.RESOURCE_LACKING,)
    assert merged.lacking == (Pick(0, "memory", None),)
    assert merged.picks == (Pick(0, "cpu", 0), Pick(0, "memory", None), Pick(1, None, None))


def test_picks_are_indices_into_the_providers_list() -> None:
    hints = [
        TopologyHint(0b11, False),
        TopologyHint(0b10, False),
        TopologyHint(0b10, True, 4),
        TopologyHint(0b10, True, 9),
    ]
    merged = merge([{"cpu": hints}], [0, 1], NumaPolicy.SINGLE_NUMA_NODE)
    assert (merged.mask, merged.score) == (0b10, 9)
    assert merged.picks == (Pick(0, "cpu", 3),)


def test_no_common_numa_node() -> None:
    merged = merge(
        [{"cpu": [TopologyHint(0b01, True)], "memory": [TopologyHint(0b10, True)]}],
        [0, 1],
        NumaPolicy.RESTRICTED,
    )
    assert (merged.mask, merged.admit, merged.combined) == (0b11, False, None)
    assert merged.causes == (MergeCause.NOTHING_IN_COMMON,)


def test_hints_that_differ_and_are_not_preferred() -> None:
    merged = merge(
        [{"cpu": [TopologyHint(0b01, True)], "memory": [TopologyHint(0b11, False)]}],
        [0, 1],
        NumaPolicy.RESTRICTED,
    )
    assert merged.unsatisfied
    assert merged.causes == (MergeCause.HINT_NOT_PREFERRED, MergeCause.MASKS_DIFFER)


def test_no_policy_restricts_nothing() -> None:
    merged = merge([{"cpu": []}], [0, 1], NumaPolicy.NONE)
    assert (merged.mask, merged.admit) == (None, True)


@pytest.mark.parametrize(
    ("hint", "message"),
    [
        (TopologyHint(1 << 9, True), "hints of provider 1, cpu: the machine has no NUMA node 9"),
        (TopologyHint(1, True, -1), "hints of provider 1, cpu: a score is negative"),
    ],
)
def test_bad_hints_are_named(hint: TopologyHint, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        merge([{}, {"cpu": [hint]}], [0, 1], NumaPolicy.RESTRICTED)


def test_a_machine_without_numa_nodes_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one NUMA node"):
        merge([], [], NumaPolicy.RESTRICTED)


def test_a_resource_without_a_single_node_hint_is_reported() -> None:
    hints = [{"cpu": [TopologyHint(0b01, True)], "memory": [TopologyHint(0b11, True)]}]
    merged = merge(hints, [0, 1], NumaPolicy.SINGLE_NUMA_NODE)
    assert (merged.mask, merged.admit) == (None, False)
    assert merged.causes == (MergeCause.NOT_ON_ONE_NODE,)
    assert merged.lacking == (Pick(0, "memory", None),)


def test_a_resource_without_hints_has_no_picked_hint() -> None:
    merged = merge(
        [{"cpu": [TopologyHint(1, True)], "gpu": None}, {}], [0, 1], NumaPolicy.RESTRICTED
    )
    assert merged.picks == (Pick(0, "cpu", 0), Pick(0, "gpu", None), Pick(1, None, None))


def product(families: list[list[int]], full: int) -> set[int]:
    found = set()
    for masks in itertools.product(*families):
        common = full
        for mask in masks:
            common &= mask
        found.add(common)
    return found - {0}


@settings(max_examples=300, deadline=None)
@given(st.lists(st.lists(st.integers(0, 63), min_size=30, max_size=60), max_size=3))
def test_long_lists_are_counted(families: list[list[int]]) -> None:
    families_ = [[_spread(mask) for mask in family] for family in families]
    assert intersections(families_, _spread(63)) == product(families_, _spread(63))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.lists(st.integers(0, 1023), max_size=8), max_size=4))
def test_short_lists_are_intersected_one_by_one(families: list[list[int]]) -> None:
    assert intersections(families, 1023) == product(families, 1023)


def test_more_combinations_than_a_lane_counts() -> None:
    families = [list(range(1, 256)) for _ in range(20)]
    assert intersections(families, 255) == set(range(1, 256))


def _spread(mask: int) -> int:
    """Maps a mask of six nodes to ids with gaps."""
    ids = (0, 2, 3, 9, 64, 65)
    return sum(1 << node for index, node in enumerate(ids) if mask >> index & 1)
