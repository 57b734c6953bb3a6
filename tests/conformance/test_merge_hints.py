from __future__ import annotations

from typing import Any

from agent.allocate.numa.hint import MergeCause, TopologyHint
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


def test_the_closest_nodes_on_numa_ids_with_gaps() -> None:
    near, far = 1 << 2 | 1 << 70, 1 << 0 | 1 << 2
    rows = {0: {0: 10, 2: 32, 70: 32}, 2: {0: 32, 2: 10, 70: 12}, 70: {0: 32, 2: 12, 70: 10}}
    hints = [{"cpu": [TopologyHint(far, True), TopologyHint(near, True)]}]
    merged = kubelet_merge(hints, [0, 2, 70], NumaPolicy.RESTRICTED, rows)
    assert (merged.mask, merged.admit) == (near, True)
    assert kubelet_merge(hints, [0, 2, 70], NumaPolicy.RESTRICTED).mask == far


def test_conflicting_hints_are_admitted_under_best_effort_on_all_nodes() -> None:
    hints = [{"cpu": [TopologyHint(0b01, True)]}, {"memory": [TopologyHint(0b10, True)]}]
    merged = kubelet_merge(hints, [0, 1], NumaPolicy.BEST_EFFORT)
    assert (merged.mask, merged.preferred, merged.admit) == (0b11, False, True)
    assert merged.causes == (MergeCause.NOTHING_IN_COMMON,)
