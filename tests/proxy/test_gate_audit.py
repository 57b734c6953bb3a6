"""What the admission of requests records in the audit trail."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.hooks import admission
from agent.model.verdict import Refuse, Wait
from agent.relay.gate import FORWARD
from tests.proxy.harness import EMPTY, OWNED, WITH_DEVICES, GateHarness


def records(harness: GateHarness) -> list[tuple[str, ...]]:
    return [
        (each.event, each.title, each.container, each.before or "", each.after or "", each.reason)
        for each in harness.records
    ]


def test_an_admitted_container_is_recorded_once(harness: GateHarness) -> None:
    harness.publish(OWNED)
    harness.create("web", "LS", cpuset_="0-3")
    ((event, title, container, before, after, reason),) = records(harness)
    assert (event, title, container, before, reason) == (
        "ContainerAdmitted", "ns/web", "main", "0-3", ""
    )  # fmt: skip
    assert after not in ("", "0-3")
    assert harness.records[0].uid == "web"


def test_a_container_that_waits_is_recorded_when_it_is_admitted(harness: GateHarness) -> None:
    harness.publish(EMPTY)
    call, verdict = harness.create("own", "LSE", "1")
    assert isinstance(verdict, Wait)
    assert harness.records == []
    harness.publish(OWNED)
    assert not isinstance(harness.retry(call), Wait)
    assert records(harness) == [("ContainerAdmitted", "ns/own", "main", "", "1", "")]


def test_a_refused_container_is_recorded(no_hold: GateHarness) -> None:
    no_hold.publish(EMPTY)
    _, verdict = no_hold.create("own", "LSE", "1")
    assert isinstance(verdict, Refuse)
    assert records(no_hold) == [("ContainerRefused", "ns/own", "main", "", "", "")]
    assert no_hold.records[0].message == verdict.message


def test_a_container_that_is_created_without_a_decision(tmp_path: Path) -> None:
    harness = GateHarness(tmp_path, hold_seconds=0, policy="*=ignore")
    harness.publish(EMPTY)
    harness.create("own", "LSE", "1")
    (record,) = harness.records
    assert (record.event, record.reason) == ("ContainerAdmitted", "timeout")
    assert "the agent has not decided about this pod" in record.message
    harness.close()


def test_an_update_without_changes_is_not_recorded(harness: GateHarness) -> None:
    harness.publish(OWNED)
    _, verdict = harness.update("unknown")
    assert verdict == FORWARD
    assert harness.records == []


def test_the_record_names_the_device_fields_and_no_device(harness: GateHarness) -> None:
    harness.publish(WITH_DEVICES)
    harness.create("own", "LS")
    (record,) = harness.records
    assert "environment" in record.message or "annotations" in record.message
    assert "GPU-own" not in record.message


def test_an_unread_request_is_recorded(harness: GateHarness) -> None:
    harness.publish(EMPTY)
    call, _ = harness.create("web", "LS")
    harness.records.clear()
    harness.gate.unhooked(call, "too_large", "it has too many bytes")
    (record,) = harness.records
    assert (record.event, record.title, record.reason) == (
        "ContainerAdmitted", "ns/web", "too_large"
    )  # fmt: skip
    assert record.message.endswith("it has too many bytes")


def test_an_update_is_recorded_with_the_pod_of_its_container(harness: GateHarness) -> None:
    harness.publish(OWNED)
    call, _ = harness.create("own", "LSE", "1")
    harness.created(call, "c-own")
    harness.records.clear()
    harness.update("c-own", "0-3")
    assert records(harness) == [("UpdateAdmitted", "ns/own", "main", "0-3", "1", "")]
    assert harness.records[0].uid == "own"
    assert harness.records[0].message.startswith("container c-own")


def test_a_removed_container_is_forgotten(harness: GateHarness) -> None:
    harness.publish(OWNED)
    call, _ = harness.create("own", "LSE", "1")
    harness.created(call, "c-own")
    harness.admission.removed("c-own")
    harness.records.clear()
    harness.update("c-own", "0-3")
    assert [each.title for each in harness.records] in ([], [""])


def test_the_number_of_remembered_containers_is_bounded(
    harness: GateHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "MAX_NAMES", 2)
    harness.publish(OWNED)
    for number in range(3):
        call, _ = harness.create("own", "LSE", "1")
        harness.created(call, f"c-{number}")
    harness.records.clear()
    for number in range(3):
        harness.update(f"c-{number}", "0-3")
    assert [each.title for each in harness.records] == ["", "ns/own", "ns/own"]
