from __future__ import annotations

import pytest

from agent.model.pod.resource_request import InitRequests, pod_total


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


def test_pod_level_requests_override_those_of_containers() -> None:
    containers = [{"cpu": 1000, "memory": 5, "x": 1}, {"cpu": 500}]
    whole = {"cpu": 700, "hugepages-2Mi": 4, "x": 9}
    assert pod_total(containers, [InitRequests({"cpu": 900})], whole) == {
        "cpu": 700,
        "memory": 5,
        "hugepages-2Mi": 4,
        "x": 1,
    }


def test_overhead_is_added_to_containers_and_pod_level_requests() -> None:
    init = [InitRequests({"cpu": 900})]
    assert pod_total([{"cpu": 100}], init, overhead={"cpu": 50, "memory": 7}) == {
        "cpu": 950,
        "memory": 7,
    }
    assert pod_total([{"cpu": 100}], init, {"cpu": 10}, {"cpu": 50}) == {"cpu": 60}
