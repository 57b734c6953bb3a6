from __future__ import annotations

from typing import Any

import pytest

from conformance.merge_hints import judge_kubelet
from tests.conformance.vectors import vectors

CASE: dict[str, Any] = {
    "policy": "restricted",
    "options": ["prefer-closest-numa-nodes"],
    "numaNodes": [0, 2, 5],
    "distances": [[10, 32, 32], [32, 10, 12], [32, 12, 10]],
    "hints": [
        None,
        {
            "cpu": [{"mask": [0, 2], "preferred": True}, {"mask": [2, 5], "preferred": True}],
            "memory": [{"mask": None, "preferred": True}],
        },
    ],
    "expect": {"admit": True, "mask": [2, 5], "preferred": True},
}


def test_agreement() -> None:
    assert judge_kubelet(CASE).agrees


def test_another_answer_is_a_disagreement() -> None:
    verdict = judge_kubelet(CASE | {"expect": CASE["expect"] | {"mask": [0, 2]}})
    assert not verdict.agrees
    assert verdict.declared is None
    assert verdict.actual == CASE["expect"]


def test_a_panic_agrees_with_an_answer_on_ids_with_gaps() -> None:
    assert judge_kubelet(CASE | {"expect": {"panic": True}}).agrees


@pytest.mark.parametrize(
    "broken",
    [
        {"policy": "loose"},
        {"options": ["max-allowable-numa-nodes"]},
        {"distances": [[10, 32, 32]]},
        {"hints": [{"cpu": [{"mask": [9], "preferred": True}]}]},
    ],
)
def test_an_invalid_case_raises(broken: dict[str, Any]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        judge_kubelet(CASE | broken)


def test_all_vectors_agree() -> None:
    cases = list(vectors("kubelet-merge-hints"))
    assert len(cases) == 3000
    assert [case for case in cases if not judge_kubelet(case).agrees] == []
