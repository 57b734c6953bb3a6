"""RebindResource objects of the API server."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent.model.objects import ObjectError
from agent.model.rebind_resource import (
    RebindHours,
    RebindPhase,
    RebindStatus,
    StatusMeasures,
    StatusMove,
    StatusPlan,
    decode,
    status_body,
    time_text,
    unix_seconds,
)


def body(**more: Any) -> bytes:
    return json.dumps(
        {
            "metadata": {"name": "r", "uid": "u", "resourceVersion": "7"},
            "spec": {"nodeName": "n", "rebindAction": "RebindCPU"},
            **more,
        }
    ).encode()


def test_the_deadline_of_the_proposal_and_no_limit() -> None:
    read = decode(body())
    assert (read.node, read.deadline_seconds, read.dry_run, read.max_pods) == (
        "n",
        600,
        False,
        None,
    )
    assert not read.status.taken


def test_fields_beyond_the_proposal() -> None:
    spec = {
        "nodeName": "n",
        "deadlineInSeconds": 5,
        "dryRun": True,
        "maxPods": 3,
        "excludedNamespaces": ["db"],
        "hours": "01:00-02:30",
    }
    read = decode(body(spec=spec))
    assert (read.deadline_seconds, read.dry_run, read.max_pods) == (5, True, 3)
    assert (read.excluded_namespaces, read.hours) == ({"db"}, RebindHours(60, 150))


@pytest.mark.parametrize(
    ("text", "hour", "within"),
    [
        ("", 12, True),
        ("22:00-06:00", 23, True),
        ("22:00-06:00", 6, False),
        ("08:30-17:00", 8, False),
    ],
)
def test_hours_contain_a_time(text: str, hour: int, within: bool) -> None:
    assert RebindHours.parsed(text).contain(hour * 3600.0) is within


def test_a_deadline_beyond_a_day_counts_as_a_day() -> None:
    spec = {"nodeName": "n", "deadlineInSeconds": 2**63 - 1}
    assert decode(body(spec=spec)).deadline_seconds == 86_400


def test_an_encoded_status_is_decoded_to_the_same_status() -> None:
    plan = StatusPlan(
        "2026-01-01T00:00:00Z",
        True,
        StatusMeasures(1, 2, 3, 4),
        StatusMeasures(0, 1, 2, 3),
        (StatusMove("u", "ns/p", "{}", '{"cpuset":"1"}'),),
    )
    status = RebindStatus(RebindPhase.PENDING, "pods to move: 1", "2026-01-01T00:00:01Z", plan)
    patch = status_body(decode(body()), status)
    assert patch["metadata"] == {"uid": "u", "resourceVersion": "7"}
    assert patch["status"]["plan"]["before"]["usedNUMANodes"] == 4
    assert decode(body(status=patch["status"])).status == status
    assert status.in_progress


def test_a_patch_without_a_plan_removes_it() -> None:
    patch = status_body(decode(body()), RebindStatus(RebindPhase.FAILED, "why", "now"))
    assert patch["status"]["plan"] is None


def test_the_default_status_of_the_definition_has_not_ended() -> None:
    default = {"phase": "Unknown", "reason": "no controller has taken it"}
    assert not decode(body(status=default)).status.ended


@pytest.mark.parametrize(
    "invalid",
    [
        {"spec": {}},
        {"spec": {"nodeName": 1}},
        {"spec": {"nodeName": "n", "hours": "22-6"}},
        {"metadata": {}},
    ],
)
def test_an_invalid_object_is_an_error(invalid: dict[str, Any]) -> None:
    with pytest.raises(ObjectError):
        decode(body(**invalid))


def test_times() -> None:
    assert time_text(0) == "1970-01-01T00:00:00Z"
    assert unix_seconds(time_text(1_767_268_800)) == 1_767_268_800
    assert unix_seconds("yesterday") is None
