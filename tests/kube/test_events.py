"""Events about pods, on real sockets."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from agent.kube import events
from agent.kube.auth import FileAccess
from agent.kube.events import Recorder, Regarding
from agent.kube.schedule import Backoff
from agent.kube.transport import Transport
from tests.kube.fake_api_server import Request, Server, reply, status
from tests.waiting import eventually

POD = Regarding("ns", "p", "uid-p")
NODE = Regarding("", "n", "uid-n", "Node")
EVENTS = "/apis/events.k8s.io/v1/namespaces/{}/events"
BASE = EVENTS.format("ns")


class Api:
    """Events by name. `refusals`: status codes of the next answers. `broken`: notes that are always
    answered with 500."""

    def __init__(self, server: Server) -> None:
        self.events: dict[str, dict[str, Any]] = {}
        self.refusals: list[int] = []
        self.details: dict[str, Any] = {}
        self.broken: set[str] = set()
        self.lock = threading.Lock()
        server.answer = self._answer

    def _answer(self, server: Server, connection: socket.socket, request: Request) -> bool:
        with self.lock:
            if self.refusals:
                code = self.refusals.pop(0)
                return reply(connection, code, status(code, "Refused", **self.details))
            body = json.loads(request.body)
            if body.get("note") in self.broken:
                return reply(connection, 500, status(500, "InternalError"))
            if request.method == "POST":
                assert request.path == EVENTS.format(body["metadata"]["namespace"])
                name = body["metadata"]["name"]
                if name in self.events:
                    return reply(connection, 409, status(409, "AlreadyExists"))
                self.events[name] = body
                return reply(connection, 201, body)
            found = self.events.get(request.path.removeprefix(f"{BASE}/"))
            if found is None:
                return reply(connection, 404, status(404, "NotFound"))
            found |= body
            return reply(connection, 200, found)

    @property
    def only(self) -> dict[str, Any]:
        (event,) = self.events.values()
        return event


@pytest.fixture
def api(server: Server) -> Api:
    return Api(server)


class Results(list[str]):
    """The results in the order of their events."""


@pytest.fixture
def results() -> Results:
    return Results()


@contextlib.contextmanager
def recording(
    server: Server, results: Results, instance: str = "node-a", **options: Any
) -> Iterator[Recorder]:
    transport = Transport(FileAccess(server.url))
    it = Recorder(transport, "topolet.io/agent", instance, "AssignCPUs", results.append, **options)
    yield it
    it.close()
    transport.close()


@pytest.fixture
def recorder(server: Server, api: Api, results: Results) -> Iterator[Recorder]:
    with recording(server, results) as it:
        yield it


def test_event_has_pod_reason_and_note(api: Api, recorder: Recorder, results: Results) -> None:
    recorder.record(POD, "CPUClaimNotHonored", "it has no CPUs")
    eventually("it is written", lambda: results == ["written"])
    event = api.only
    assert event["regarding"] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": "ns",
        "name": "p",
        "uid": "uid-p",
    }
    assert (event["type"], event["reason"]) == ("Warning", "CPUClaimNotHonored")
    assert event["note"] == "it has no CPUs"
    assert (event["reportingController"], event["reportingInstance"], event["action"]) == (
        "topolet.io/agent",
        "node-a",
        "AssignCPUs",
    )
    assert event["metadata"]["name"].startswith("p.")


def test_a_normal_event_waits_for_warnings(
    api: Api, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "REFILL_SECONDS", 0.2)
    for number in range(events.BURST):
        recorder.inform(POD, "CPUsAssigned", f"first {number}")
    eventually("the burst is sent", lambda: len(api.events) == events.BURST)
    recorder.inform(POD, "CPUsAssigned", "owns CPUs 0-1")
    recorder.record(POD, "CPUClaimNotHonored", "why")
    eventually("all are sent", lambda: len(api.events) == events.BURST + 2)
    last = list(api.events.values())[-2:]
    assert [each["type"] for each in last] == ["Warning", "Normal"]


def test_event_of_a_node_is_in_the_default_namespace(
    server: Server, api: Api, recorder: Recorder, results: Results
) -> None:
    """The API server accepts no other one (Kubernetes, pkg/apis/core/validation/events.go)."""
    recorder.record(NODE, "InvalidNodeConfiguration", "a label is unknown")
    eventually("it is written", lambda: results == ["written"])
    event = api.only
    assert server.requests[0].path == EVENTS.format("default")
    assert event["metadata"]["namespace"] == "default"
    assert event["regarding"] == {
        "apiVersion": "v1",
        "kind": "Node",
        "name": "n",
        "uid": "uid-n",
    }


def test_repeated_event_extends_the_series(
    monkeypatch: pytest.MonkeyPatch, api: Api, recorder: Recorder, results: Results
) -> None:
    monkeypatch.setattr(events, "AGAIN_SECONDS", 0.0)
    recorder.record(POD, "R", "note")
    eventually("it is written", lambda: results == ["written"])
    recorder.record(POD, "R", "note")
    eventually("the series is extended", lambda: results == ["written", "written"])
    assert api.only["series"]["count"] == 2
    recorder.record(POD, "R", "another")
    eventually("a second event exists", lambda: len(api.events) == 2)


def test_events_repeated_within_a_short_time_are_one_request(
    server: Server, api: Api, recorder: Recorder, results: Results
) -> None:
    for _ in range(100):
        recorder.record(POD, "R", "note")
    recorder.record(POD, "R", "last")
    eventually("both exist", lambda: len(api.events) == 2)
    assert len(server.requests) == 2


def test_event_of_an_earlier_agent_is_extended(
    server: Server, api: Api, recorder: Recorder, results: Results
) -> None:
    recorder.record(POD, "R", "note")
    eventually("it is written", lambda: results == ["written"])
    with recording(server, results) as second:
        second.record(POD, "R", "note")
        eventually("the series is extended", lambda: results == ["written", "written"])
    assert api.only["series"]["count"] == 2


def test_event_is_retried_after_503_and_dropped_after_403(
    api: Api, recorder: Recorder, results: Results
) -> None:
    api.refusals = [503, 403]
    recorder.record(POD, "R", "refused")
    eventually("it was refused", lambda: results == ["failed"])
    recorder.record(POD, "R", "next")
    eventually("the next one is written", lambda: results == ["failed", "written"])
    assert api.only["note"] == "next"


class Clock:
    """`read`: the times that callers have read."""

    def __init__(self) -> None:
        self.now = 0.0
        self.read: list[float] = []

    def __call__(self) -> float:
        self.read.append(self.now)
        return self.now


def test_retry_after_is_respected(server: Server, api: Api, results: Results) -> None:
    api.refusals, api.details = [429], {"retryAfterSeconds": 300}
    clock = Clock()
    with recording(server, results, clock=clock) as recorder:
        recorder.record(POD, "R", "note")
        eventually("it is refused", lambda: server.requests and len(clock.read) >= 3)
        clock.now = 299.0
        recorder.record(POD, "R", "another")
        eventually("the recorder has read the time", lambda: 299.0 in clock.read)
        assert (len(server.requests), results) == (1, [])
        clock.now = 1_000.0
        recorder.record(POD, "R", "a third")
        eventually("all are written", lambda: results == ["written"] * 3)


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    short = Backoff(lambda: 0.5, base_seconds=0.01)
    monkeypatch.setattr(events, "Backoff", lambda rng: short)


@pytest.mark.usefixtures("short_pauses")
def test_failing_event_does_not_delay_others(
    api: Api, recorder: Recorder, results: Results
) -> None:
    """For example while an admission webhook for its namespace is down."""
    api.broken = {"first"}
    recorder.record(POD, "R", "first")
    recorder.record(POD, "R", "second")
    eventually("the second is written", lambda: results == ["written"])
    assert api.only["note"] == "second"
    api.broken = set()
    eventually("the first is written too", lambda: len(api.events) == 2)


def test_number_of_requests_and_of_pending_events_is_bounded(
    monkeypatch: pytest.MonkeyPatch, server: Server, api: Api, recorder: Recorder, results: Results
) -> None:
    monkeypatch.setattr(events, "MAX_EVENTS", events.BURST + 5)
    monkeypatch.setattr(events, "REFILL_SECONDS", 3600.0)
    for number in range(events.MAX_EVENTS + 7):
        recorder.record(POD, "R", f"note {number}")
    eventually("a burst is written", lambda: results.count("written") == events.BURST)
    assert len(server.requests) == events.BURST
    for number in range(events.BURST + 100):
        recorder.record(POD, "R", f"more {number}")
    recorded = events.MAX_EVENTS + 7 + events.BURST + 100
    assert results.count("dropped") == recorded - events.BURST - events.MAX_EVENTS


def test_long_node_name_is_truncated(server: Server, api: Api, results: Results) -> None:
    with recording(server, results, "n" * 253) as recorder:
        recorder.record(POD, "R", "note")
        eventually("it is written", lambda: results == ["written"])
    assert api.only["reportingInstance"] == "n" * 128


def test_long_note_is_truncated(api: Api, recorder: Recorder, results: Results) -> None:
    recorder.record(POD, "R", "ü" * 2000)
    eventually("it is written", lambda: results == ["written"])
    assert len(api.only["note"].encode()) <= events.MAX_NOTE


@pytest.mark.parametrize(
    "name", ["p" * 253, "p" * 235 + "-" + "p" * 17, "p" * 235 + "." + "p" * 17]
)
def test_event_of_a_pod_with_a_long_name_has_a_valid_name(
    api: Api, recorder: Recorder, results: Results, name: str
) -> None:
    recorder.record(Regarding("ns", name, "uid"), "R", "note")
    eventually("it is written", lambda: results == ["written"])
    label = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
    assert re.fullmatch(rf"(?=.{{1,253}}$){label}(\.{label})*", api.only["metadata"]["name"])
