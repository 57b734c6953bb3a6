from __future__ import annotations

from typing import Any

import pytest

from conformance.merge_hints import judge_koordinator, judge_kubelet

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
