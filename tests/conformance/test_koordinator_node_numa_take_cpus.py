from __future__ import annotations

from typing import Any

import pytest

from conformance.files import CaseVerdict
from conformance.koordinator_node_numa import MORE_THAN_REQUESTED, judge_take_cpus

CASE = {
    "shape": [1, 1, 4, 2],
    "numbering": "adjacent",
    "maxRef": 1,
    "available": "1-7",
    "need": 3,
    "bind": "FullPCPUs",
    "exclusive": "",
    "strategy": "MostAllocated",
    "allocated": [{"cpus": "0", "ref": 1, "exclusive": "None"}],
    "expect": {"cpuset": "2-4"},
}


def judge_case(**other: Any) -> CaseVerdict:
    return judge_take_cpus({**CASE, **other})


@pytest.mark.parametrize(
    ("other", "declared"),
    [
        pytest.param({"expect": {"cpuset": "2-5"}}, MORE_THAN_REQUESTED.name, id="a whole core"),
        pytest.param({"expect": {"cpuset": "1-5"}}, None, id="more than a core"),
        pytest.param({"expect": {"cpuset": "4-6"}}, None, id="other CPUs"),
        pytest.param({"need": 2, "expect": {"cpuset": "2-4"}}, None, id="whole cores requested"),
        pytest.param({"bind": "Default", "expect": {"cpuset": "2-5"}}, None, id="another policy"),
        pytest.param(
            {"need": 2, "preferred": "1", "expect": {"cpuset": "1-3"}},
            MORE_THAN_REQUESTED.name,
            id="the rest after the preferred CPUs ends inside a core",
        ),
    ],
)
def test_declared_differences(other: dict[str, Any], declared: str | None) -> None:
    verdict = judge_case(**other)
    assert not verdict.agrees
    assert verdict.declared == declared


@pytest.mark.parametrize("key", [*CASE])
def test_a_case_without_a_key_is_an_error(key: str) -> None:
    with pytest.raises(KeyError, match=key):
        judge_take_cpus({name: value for name, value in CASE.items() if name != key})


def test_a_cpu_with_a_huge_ref_count_is_not_available() -> None:
    allocated = [{"cpus": "0", "ref": 10**20, "exclusive": "None"}]
    assert judge_case(allocated=allocated).agrees
