from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.allocate.numa.hint import MergeCause, NodeStatus, Pick, Provider, TopologyHint
from agent.allocate.numa.koordinator_merge import merge
from agent.model.cpu.policies import NumaExclusive, NumaPolicy
from tests.allocate.numa import plain
from tests.allocate.numa.strategies import DENSE, NODES, providers

POLICIES = [NumaPolicy.BEST_EFFORT, NumaPolicy.RESTRICTED, NumaPolicy.SINGLE_NUMA_NODE]


def answer(
    hints: list[Provider],
    nodes: list[int],
    policy: NumaPolicy,
    exclusive: NumaExclusive | None,
    statuses: dict[int, NodeStatus],
    *,
    by_score: bool = False,
) -> plain.Answer:
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
    expected = plain.koordinator(hints, nodes, policy, exclusive, statuses, by_score=by_score)
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
