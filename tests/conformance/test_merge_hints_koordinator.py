from __future__ import annotations

from typing import Any

import pytest

from conformance.merge_hints import judge_koordinator
from tests.conformance.vectors import vectors

CASE: dict[str, Any] = {
    "policy": "Restricted",
    "numaNodes": [0, 1],
    "status": ["idle", "shared"],
    "exclusive": "Required",
    "hints": [
        {
            "cpu": [
                {"mask": [0], "preferred": True, "score": 7},
                {"mask": [1], "preferred": True, "score": 9},
            ],
            "memory": None,
        },
        {},
    ],
    "expect": {
        "mask": [0],
        "preferred": True,
        "unsatisfied": False,
        "score": 7,
        "admit": True,
    },
}


def test_agreement() -> None:
    assert judge_koordinator(CASE).agrees


def test_another_answer_is_a_disagreement() -> None:
    verdict = judge_koordinator(CASE | {"expect": CASE["expect"] | {"score": 9}})
    assert not verdict.agrees
    assert verdict.declared is None
    assert verdict.actual == CASE["expect"]


def test_a_panic_agrees_with_an_answer_on_ids_with_gaps() -> None:
    verdict = judge_koordinator(
        CASE | {"numaNodes": [0, 5], "hints": [], "expect": {"panic": True}}
    )
    assert verdict.agrees
    assert verdict.actual["mask"] == [0, 5]


@pytest.mark.parametrize(
    "broken",
    [{"policy": "Loose"}, {"status": ["idle"]}, {"hints": [{"cpu": [{"mask": [0]}]}]}],
)
def test_an_invalid_case_raises(broken: dict[str, Any]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        judge_koordinator(CASE | broken)


def test_all_vectors_agree() -> None:
    cases = list(vectors("koordinator-merge-hints"))
    assert len(cases) == 3963
    assert [case for case in cases if not judge_koordinator(case).agrees] == []


def test_a_huge_numa_node_id_is_refused_at_once() -> None:
    hints = [{"cpu": [{"mask": [10**9], "preferred": True}]}]
    with pytest.raises(ValueError, match="NUMA node 1000000000 is beyond"):
        judge_koordinator({**CASE, "hints": hints})
