from __future__ import annotations

from typing import Any

import pytest

from agent.allocate.numa.hint import MergeCause, Pick, TopologyHint
from agent.model.cpu.policies import NumaPolicy
from conformance.merge_hints import judge_koordinator, judge_kubelet, kubelet_merge

KOORDINATOR: dict[str, Any] = {
    "policy": "Restricted",
    "numaNodes": [0, 5],
    "status": ["idle", "shared"],
    "exclusive": "Required",
    "hints": [],
    "expect": {"panic": True},
}
KUBELET: dict[str, Any] = {
    "policy": "restricted",
    "options": ["prefer-closest-numa-nodes"],
    "numaNodes": [0, 2, 5],
    "distances": [[10, 32, 32], [32, 10, 12], [32, 12, 10]],
    "hints": [None, {"cpu": [{"mask": [0, 2], "preferred": True}]}],
    "expect": {"panic": True},
}


def test_a_panic_agrees_with_an_answer_on_ids_with_gaps() -> None:
    assert judge_kubelet(KUBELET).agrees
    verdict = judge_koordinator(KOORDINATOR)
    assert verdict.agrees
    assert verdict.actual["mask"] == [0, 5]


def test_a_huge_numa_node_id_is_refused_at_once() -> None:
    hints = [{"cpu": [{"mask": [10**9], "preferred": True}]}]
    with pytest.raises(ValueError, match="NUMA node 1000000000 is beyond"):
        judge_koordinator({**KOORDINATOR, "hints": hints})


def test_the_closest_nodes_on_numa_ids_with_gaps() -> None:
    near, far = 1 << 2 | 1 << 70, 1 << 0 | 1 << 2
    rows = {0: {0: 10, 2: 32, 70: 32}, 2: {0: 32, 2: 10, 70: 12}, 70: {0: 32, 2: 12, 70: 10}}
    hints = [{"cpu": [TopologyHint(far, True), TopologyHint(near, True)]}]
    merged = kubelet_merge(hints, [0, 2, 70], NumaPolicy.RESTRICTED, rows)
    assert (merged.mask, merged.admit) == (near, True)
    assert kubelet_merge(hints, [0, 2, 70], NumaPolicy.RESTRICTED).mask == far


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({1: {0: 20, 1: 10}}, "NUMA node 0 has no distances"),
        ({0: {0: 10}, 1: {0: 20, 1: 10}}, "NUMA node 0 has no distance to node 1"),
    ],
)
def test_a_missing_distance_is_named(rows: dict[int, dict[int, int]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kubelet_merge([{"cpu": [TopologyHint(0b11, True)]}], [0, 1], NumaPolicy.RESTRICTED, rows)


def test_conflicting_hints_are_admitted_under_best_effort_on_all_nodes() -> None:
    hints = [{"cpu": [TopologyHint(0b01, True)]}, {"memory": [TopologyHint(0b10, True)]}]
    merged = kubelet_merge(hints, [0, 1], NumaPolicy.BEST_EFFORT)
    assert (merged.mask, merged.preferred, merged.admit) == (0b11, False, True)
    assert merged.causes == (MergeCause.NOTHING_IN_COMMON,)


def test_the_hints_behind_the_mask_are_reported() -> None:
    hints = [{"cpu": [TopologyHint(0b11, False), TopologyHint(0b110, True)], "memory": []}, {}]
    merged = kubelet_merge(hints, [0, 1, 2], NumaPolicy.RESTRICTED)
    assert merged.mask == 0b11
    assert merged.picks == (Pick(0, "cpu", 0), Pick(0, "memory", None), Pick(1, None, None))
    assert merged.lacking == (Pick(0, "memory", None),)
    assert merged.causes == (MergeCause.RESOURCE_LACKING, MergeCause.HINT_NOT_PREFERRED)


def test_hints_with_unknown_nodes_are_named() -> None:
    with pytest.raises(ValueError, match="provider 0, cpu: the machine has no NUMA node 3"):
        kubelet_merge([{"cpu": [TopologyHint(0b1000, True)]}], [0, 1], NumaPolicy.RESTRICTED)


def test_a_resource_without_a_single_node_hint_is_reported() -> None:
    hints = [{"cpu": [TopologyHint(0b01, True)], "memory": [TopologyHint(0b11, True)]}]
    merged = kubelet_merge(hints, [0, 1], NumaPolicy.SINGLE_NUMA_NODE)
    assert (merged.mask, merged.admit) == (None, False)
    assert merged.causes == (MergeCause.NOT_ON_ONE_NODE,)
    assert merged.lacking == (Pick(0, "memory", None),)
    insufficient = kubelet_merge([{"cpu": []}], [0, 1], NumaPolicy.SINGLE_NUMA_NODE)
    assert insufficient.causes == (MergeCause.RESOURCE_LACKING,)
