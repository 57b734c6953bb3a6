"""What the admission of requests records in the audit trail."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.hooks import admission
from agent.model.verdict import Refuse, Wait
from agent.relay.gate import FORWARD
from tests.proxy.exchanges import EMPTY, OWNED, SHOWN, Exchange


def lines(exchange: Exchange) -> list[tuple[str, ...]]:
    return [
        (each.event, each.title, each.container, each.before or "", each.after or "", each.reason)
        for each in exchange.records
    ]


def test_an_admitted_container_is_recorded_once(exchange: Exchange) -> None:
    exchange.publish(OWNED)
    exchange.create("web", "LS", cpuset_="0-3")
    ((event, title, container, before, after, reason),) = lines(exchange)
    assert (event, title, container, before, reason) == (
        "ContainerAdmitted", "ns/web", "main", "0-3", ""
    )  # fmt: skip
    assert after not in ("", "0-3")
    assert exchange.records[0].uid == "web"


def test_a_container_that_waits_is_recorded_when_it_is_admitted(exchange: Exchange) -> None:
    exchange.publish(EMPTY)
    call, verdict = exchange.create("own", "LSE", "1")
    assert isinstance(verdict, Wait)
    assert exchange.records == []
    exchange.publish(OWNED)
    assert not isinstance(exchange.again(call), Wait)
    assert lines(exchange) == [("ContainerAdmitted", "ns/own", "main", "", "1", "")]


def test_a_refused_container(hasty: Exchange) -> None:
    hasty.publish(EMPTY)
    _, verdict = hasty.create("own", "LSE", "1")
    assert isinstance(verdict, Refuse)
    assert lines(hasty) == [("ContainerRefused", "ns/own", "main", "", "", "")]
    assert hasty.records[0].message == verdict.message


def test_a_container_that_goes_on_without_the_agent(tmp_path: Path) -> None:
    exchange = Exchange(tmp_path, hold_seconds=0, policy="*=ignore")
    exchange.publish(EMPTY)
    exchange.create("own", "LSE", "1")
    (record,) = exchange.records
    assert (record.event, record.reason) == ("ContainerAdmitted", "timeout")
    assert "the agent has not decided about this pod" in record.message
    exchange.close()


def test_an_update_without_changes_is_not_recorded(exchange: Exchange) -> None:
    exchange.publish(OWNED)
    _, verdict = exchange.update("unknown")
    assert verdict == FORWARD
    assert exchange.records == []


def test_devices_are_named_by_field_alone(exchange: Exchange) -> None:
    exchange.publish(SHOWN)
    exchange.create("own", "LS")
    (record,) = exchange.records
    assert "environment" in record.message or "annotations" in record.message
    assert "GPU-own" not in record.message


def test_an_unread_request(exchange: Exchange) -> None:
    exchange.publish(EMPTY)
    call, _ = exchange.create("web", "LS")
    exchange.records.clear()
    exchange.gate.unhooked(call, "too_large", "it has too many bytes")
    (record,) = exchange.records
    assert (record.event, record.title, record.reason) == (
        "ContainerAdmitted", "ns/web", "too_large"
    )  # fmt: skip
    assert record.message.endswith("it has too many bytes")


def test_an_update_is_recorded_with_the_pod_of_its_container(exchange: Exchange) -> None:
    exchange.publish(OWNED)
    call, _ = exchange.create("own", "LSE", "1")
    exchange.created(call, "c-own")
    exchange.records.clear()
    exchange.update("c-own", "0-3")
    assert lines(exchange) == [("UpdateAdmitted", "ns/own", "main", "0-3", "1", "")]
    assert exchange.records[0].uid == "own"
    assert exchange.records[0].message.startswith("container c-own")


def test_a_removed_container_is_forgotten(exchange: Exchange) -> None:
    exchange.publish(OWNED)
    call, _ = exchange.create("own", "LSE", "1")
    exchange.created(call, "c-own")
    exchange.admission.removed("c-own")
    exchange.records.clear()
    exchange.update("c-own", "0-3")
    assert [each.title for each in exchange.records] in ([], [""])


def test_names_of_containers_are_bounded(
    exchange: Exchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "MAX_NAMES", 2)
    exchange.publish(OWNED)
    for number in range(3):
        call, _ = exchange.create("own", "LSE", "1")
        exchange.created(call, f"c-{number}")
    exchange.records.clear()
    for number in range(3):
        exchange.update(f"c-{number}", "0-3")
    assert [each.title for each in exchange.records] == ["", "ns/own", "ns/own"]
