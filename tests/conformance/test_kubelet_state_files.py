from __future__ import annotations

from typing import Any

import pytest

from conformance.kubelet import judge_state_file

CONTENT = '{"policyName":"none","defaultCpuSet":"","checksum":1353318690}'
CASE: dict[str, Any] = {"file": "cpu_manager_state", "content": CONTENT}
EMPTY: dict[str, Any] = {"file": "memory_manager_state", "policy": "None", "checksum": 4236770233}


@pytest.mark.parametrize(
    ("case", "actual"),
    [
        (EMPTY | {"checksum": 1}, {"checksum": "mismatch", "problems": []}),
        (EMPTY | {"checksum": 0}, {"checksum": "unknown", "problems": []}),
        (
            CASE | {"content": CONTENT.replace(',"checksum', ',"later":1,"checksum')},
            {"checksum": "unknown", "problems": ["later: unknown field"]},
        ),
    ],
)
def test_an_unverified_file_disagrees(case: dict[str, Any], actual: dict[str, Any]) -> None:
    verdict = judge_state_file(case)
    assert (verdict.agrees, verdict.actual, verdict.declared) == (False, actual, None)


@pytest.mark.parametrize(
    "broken",
    [{"file": "cpu_manager_state"}, CASE | {"content": CONTENT[:9]}, CASE | {"file": "x"}],
)
def test_an_invalid_case_raises(broken: dict[str, Any]) -> None:
    with pytest.raises((KeyError, ValueError)):
        judge_state_file(broken)
