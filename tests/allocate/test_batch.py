import json

import pytest

from agent.allocate.batch import (
    EXTENDED_RESOURCE_SPEC,
    BatchResources,
    batch_excess,
    batch_resources,
    cpu_request_milli,
)
from agent.model.pod.annotations import AnnotationError

CPU, MEMORY = "kubernetes.io/batch-cpu", "kubernetes.io/batch-memory"


def of(**containers: object) -> dict[str, str]:
    return {EXTENDED_RESOURCE_SPEC: json.dumps({"containers": containers})}


def test_a_pod_as_the_webhook_writes_it() -> None:
    annotations = of(
        main={
            "limits": {CPU: "1000", MEMORY: "1Gi"},
            "requests": {CPU: "500", MEMORY: "512Mi"},
        },
        side={"requests": {CPU: "1k"}},
    )
    result = batch_resources(annotations)
    assert result == {
        "main": BatchResources(500, 1000, 512 << 20, 1 << 30),
        "side": BatchResources(1000, None, 0, None),
    }
    assert cpu_request_milli(result) == 1500


@pytest.mark.parametrize(
    ("amounts", "result"),
    [
        ({}, BatchResources()),
        (None, BatchResources()),
        ({"limits": None, "requests": {}}, BatchResources()),
        ({"limits": {CPU: 2000, MEMORY: 1048576}}, BatchResources(0, 2000, 0, 1048576)),
        ({"limits": {CPU: "0", MEMORY: "0"}}, BatchResources()),
        ({"limits": {CPU: "1.5"}}, BatchResources(cpu_limit_milli=2)),
        ({"limits": {"cpu": "1", "memory": "1"}}, BatchResources()),
        ({"limits": {"koordinator.sh/batch-cpu": "7"}}, BatchResources(cpu_limit_milli=7)),
        (
            {"limits": {"koordinator.sh/batch-cpu": "7", CPU: "8"}},
            BatchResources(cpu_limit_milli=8),
        ),
    ],
)
def test_amounts(amounts: object, result: BatchResources) -> None:
    assert batch_resources(of(c=amounts)) == {"c": result}


@pytest.mark.parametrize("text", [None, "", "null", "{}", '{"containers":null}'])
def test_a_pod_without_batch_resources(text: str | None) -> None:
    annotations = {} if text is None else {EXTENDED_RESOURCE_SPEC: text}
    assert batch_resources(annotations) == {}
    assert cpu_request_milli({}) == 0


@pytest.mark.parametrize(
    ("amounts", "reason"),
    [
        ({"limits": {CPU: "-1"}}, rf"containers\.c\.limits\.{CPU}: '-1' is below zero"),
        ({"requests": {CPU: "many"}}, rf"containers\.c\.requests\.{CPU}: 'many' is not a quantity"),
        ({"requests": {CPU: "100000001"}}, rf"{CPU}: '100000001' is more than 100000000"),
        ({"limits": {MEMORY: "9e99"}}, rf"containers\.c\.limits\.{MEMORY}: '9e99' is more than"),
        ({"limits": {MEMORY: "-1Gi"}}, "below zero"),
        ({"limits": {CPU: True}}, r"containers"),
        ({"limits": [CPU]}, "object"),
        ("all", "object"),
    ],
)
def test_bad_amounts_are_named(amounts: object, reason: str) -> None:
    with pytest.raises(AnnotationError, match=reason) as error:
        batch_resources(of(c=amounts))
    assert error.value.key == EXTENDED_RESOURCE_SPEC
    assert str(error.value).startswith(f"annotation {EXTENDED_RESOURCE_SPEC}: ")


SPEC = {"main": ({CPU: 500, "koordinator.sh/batch-memory": 10}, {CPU: 1000}), "empty": ({}, {})}


@pytest.mark.parametrize(
    ("name", "amounts", "excess"),
    [
        ("main", BatchResources(500, 1000, 10, 20), ""),
        ("main", BatchResources(0, 1, 0, None), ""),
        ("main", BatchResources(501, 1000), f"requests.{CPU}: 501 is more than 500"),
        ("main", BatchResources(500, 1001), f"limits.{CPU}: 1001 is more than 1000"),
        ("main", BatchResources(500, None), f"limits.{CPU}: no limit is more than 1000"),
        ("main", BatchResources(0, 1000, 11), f"requests.{MEMORY}: 11 is more than 10"),
        ("empty", BatchResources(0, 1, 0, 1), ""),
        ("empty", BatchResources(1), f"requests.{CPU}: 1 is more than 0"),
        ("other", BatchResources(9, 9, 9, 9), ""),
    ],
)
def test_the_annotation_names_no_more_than_the_spec(
    name: str, amounts: BatchResources, excess: str
) -> None:
    found = batch_excess({name: amounts}, SPEC)
    assert found == (f"containers.{name}.{excess}, which the container has" if excess else "")
