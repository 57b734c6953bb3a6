"""What the admission of requests records in the audit trail."""

from __future__ import annotations

import msgspec
import pytest

from agent.hooks import admission
from agent.hooks.carriers import Carried
from agent.hooks.requests import UNCHANGED, ContainerName, Update
from agent.model.settings.frontends import CREATE, UPDATE
from agent.model.verdict import Refuse, Wait
from tests.hooks.admission_harness import HOLD_SECONDS, IGNORE, AdmissionHarness, container
from tests.hooks.snapshots import EMPTY, OWNED, WITH_DEVICES

OWN = container("own", "LSE", "1")


def records(harness: AdmissionHarness) -> list[tuple[str, ...]]:
    """The records since the last call."""
    texts = [
        (each.event, each.title, each.container, each.before or "", each.after or "", each.reason)
        for each in harness.records
    ]
    harness.records.clear()
    return texts


def test_an_admitted_container_is_recorded_once(harness: AdmissionHarness) -> None:
    harness.publish(EMPTY)
    creation = harness.creation(OWN)
    assert harness.create(creation) == Wait()
    assert harness.records == []
    harness.publish(OWNED)
    harness.create(creation)
    harness.create(harness.creation(container("web", "LS", cpus="0-3")))
    assert [each.uid for each in harness.records] == ["own", "web"]
    assert records(harness) == [
        ("ContainerAdmitted", "ns/own", "main", "", "1", ""),
        ("ContainerAdmitted", "ns/web", "main", "0-3", "0,2-3", ""),
    ]


@pytest.mark.parametrize("policy", ["*=fail", IGNORE])
def test_a_container_without_a_decision_is_recorded_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    harness = AdmissionHarness(monkeypatch, policy)
    harness.publish(EMPTY)
    creation = harness.creation(OWN)
    harness.wait(HOLD_SECONDS)
    answer = harness.create(creation)
    message = harness.records[0].message
    if isinstance(answer, Refuse):
        assert message == answer.message
        assert records(harness) == [("ContainerRefused", "ns/own", "main", "", "", "")]
    else:
        assert message == "the agent has not decided about this pod"
        assert records(harness) == [("ContainerAdmitted", "ns/own", "main", "", "0-3", "timeout")]


def test_the_record_names_the_device_fields_and_no_device(harness: AdmissionHarness) -> None:
    harness.publish(WITH_DEVICES)
    harness.create(harness.creation(container("own")), Carried(environment=("GPU-other",)))
    (record,) = harness.records
    assert record.message == "also changed: environment"


@pytest.mark.parametrize(
    ("hook", "snapshot", "event"),
    [
        (CREATE, EMPTY, "ContainerAdmitted"),
        (CREATE, OWNED, "ContainerRefused"),
        (UPDATE, EMPTY, "UpdateAdmitted"),
        (UPDATE, OWNED, "UpdateRefused"),
    ],
)
def test_an_unread_request_is_recorded(
    harness: AdmissionHarness, hook: str, snapshot: object, event: str
) -> None:
    harness.publish(snapshot)  # type: ignore[arg-type]
    creation = harness.creation(container("web", "LS")) if hook == CREATE else None
    harness.admission.unhooked(hook, creation, "too_large", "it has too many bytes")
    (record,) = harness.records
    title = "ns/web" if creation else ""
    assert (record.event, record.title, record.reason) == (event, title, "too_large")
    assert record.message.startswith(f"{hook}: ")
    assert "it has too many bytes" in record.message


def test_an_update_is_recorded_with_the_pod_of_its_container(harness: AdmissionHarness) -> None:
    harness.publish(OWNED)
    assert harness.update("unknown") == UNCHANGED
    assert records(harness) == [], "nothing was changed"
    harness.created(OWN, "c-own")
    harness.records.clear()
    harness.update("c-own", "0-3")
    (record,) = harness.records
    assert (record.uid, record.message) == ("own", "container c-own")
    assert records(harness) == [("UpdateAdmitted", "ns/own", "main", "0-3", "1", "")]
    harness.admission.removed("c-own")
    update = harness.update_of("c-own", "0-3")
    harness.admission.update(update)
    named = ContainerName("ns", "web", "u", "side")
    request = msgspec.structs.replace(update.request, name=named)
    harness.admission.update(Update(request, harness.waiting()))
    assert [each.title for each in harness.records] == ["", "ns/web"]


def test_a_refused_update_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = AdmissionHarness(monkeypatch, "*=fail")
    harness.publish(OWNED)
    update = harness.update_of("unknown", "0-1")
    harness.wait(HOLD_SECONDS)
    harness.admission.update(update)
    assert records(harness) == [("UpdateRefused", "", "", "", "", "timeout")]


def test_the_number_of_remembered_containers_is_bounded(
    harness: AdmissionHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "MAX_NAMES", 2)
    harness.publish(OWNED)
    for number in range(3):
        harness.created(OWN, f"c-{number}")
    harness.records.clear()
    for number in range(3):
        harness.update(f"c-{number}", "0-3")
    assert [each.title for each in harness.records] == ["", "ns/own", "ns/own"]
