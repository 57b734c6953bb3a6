from __future__ import annotations

from typing import Any

import pytest

from conformance.files import CaseVerdict
from conformance.kubelet import judge_take_cpus

CASE: dict[str, Any] = {
    "shape": [2, 1, 4, 2],
    "numbering": "interleaved",
    "l3": 2,
    "available": "1-15",
    "need": 4,
    "options": ["full-pcpus-only"],
    "expect": {"cpuset": "1-2,9-10"},
}
OVERWRITTEN: dict[str, Any] = {
    "shape": [2, 4, 4, 2],
    "numbering": "interleaved",
    "l3": 8,
    "available": "0-63",
    "need": 32,
    "options": ["distribute-cpus-across-numa"],
    "quirk": "shared-slice",
    "expect": {"cpuset": "0-11,28-31,32-43,60-63"},
}


def judge_case(case: dict[str, Any], **other: Any) -> CaseVerdict:
    return judge_take_cpus({**case, **other})


@pytest.mark.parametrize("need", [4, 16])
@pytest.mark.parametrize("outcome", ["hang", "panic"])
def test_any_answer_agrees_with_a_panic_or_timeout(need: int, outcome: str) -> None:
    assert judge_case(CASE, need=need, expect={outcome: True}).agrees


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"quirk": None}, id="nothing was overwritten"),
        pytest.param({"expect": {"cpuset": "0-14,32-47"}}, id="fewer CPUs"),
        pytest.param({"expect": {"error": "none"}}, id="an error"),
        pytest.param({"available": "0-15,32-63", "need": 31}, id="CPUs that are not free"),
        pytest.param({"need": 16, "expect": {"cpuset": "16-31"}}, id="two nodes"),
        pytest.param(
            {"available": "0-59", "expect": {"cpuset": "0-27,32,36,40,44"}}, id="more even"
        ),
    ],
)
def test_undeclared_differences(other: dict[str, Any]) -> None:
    verdict = judge_case(OVERWRITTEN, **other)
    assert not verdict.agrees
    assert verdict.declared is None
