"""What the admission of requests records in the audit trail."""

from __future__ import annotations

from pathlib import Path

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
