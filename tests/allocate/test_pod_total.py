from __future__ import annotations

import pytest

from agent.allocate.pod_total import InitRequests, pod_total


@pytest.mark.parametrize(
    ("containers", "init", "expected"),
    [
        ([], [], {}),
        ([{"a": 1}, {"a": 2, "b": 1}], [], {"a": 3, "b": 1}),
        ([{"a": 3}], [InitRequests({"a": 2, "b": 4})], {"a": 3, "b": 4}),
        ([{"a": 3}], [InitRequests({"a": 4}), InitRequests({"a": 5})], {"a": 5}),
        ([{"a": 3}], [InitRequests({"a": 1}, sidecar=True)], {"a": 4}),
        ([{"a": 1}], [InitRequests({"a": 2}, sidecar=True), InitRequests({"a": 4})], {"a": 6}),
        ([{"a": 1}], [InitRequests({"a": 4}), InitRequests({"a": 2}, sidecar=True)], {"a": 4}),
        ([{"a": 3}], [InitRequests({"a": 4}), InitRequests({"a": 2}, sidecar=True)], {"a": 5}),
    ],
)
def test_total(
    containers: list[dict[str, int]], init: list[InitRequests], expected: dict[str, int]
) -> None:
    assert pod_total(containers, init) == expected
