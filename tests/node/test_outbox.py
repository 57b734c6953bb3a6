from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent.kube.cluster import SPREAD_SECONDS
from agent.kube.errors import (
    ForbiddenError,
    KubeError,
    ServerError,
    StoreError,
    TooManyRequestsError,
    UnreachableError,
)
from agent.kube.store import EmbeddedStore
from agent.model.devices.device_object import Device
from agent.model.nrt.resource_topology import NodeTopology
from agent.node.node_resource_topology import DeviceReport, Report
from agent.node.outbox import Outbox, ReportPace, deliver
from agent.telemetry.metrics import AgentMetrics
from tests.waiting import eventually

PACE = ReportPace(settle_seconds=1, max_seconds=10, recheck_seconds=300)


def report(name: str) -> Report:
    return Report(NodeTopology(name), {}, {}, DeviceReport())


class Server:
    """Accepts reports, or fails."""

    def __init__(self) -> None:
        self.delivered: list[str] = []
        self.failing: StoreError | None = None
        self.attempts = 0

    def __call__(self, sent: Report) -> bool:
        self.attempts += 1
        if self.failing is not None:
            raise self.failing
        self.delivered.append(sent.topology.name)
        return True


class Changed(threading.Condition):
    """`waiting`: a thread waits, and no notification has ended its wait."""

    waiting = False

    def wait(self, timeout: float | None = None) -> bool:
        self.waiting = True
        try:
            return super().wait(timeout)
        finally:
            self.waiting = False

    def notify(self, n: int = 1) -> None:
        self.waiting = False
        super().notify(n)


class Clock:
    """A clock that the test advances between the steps of the outbox: `advance` returns when the
    outbox has done every step that was due."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.changed = Changed()

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        eventually("the outbox waits", lambda: self.changed.waiting)
        with self.changed:
            self.now += seconds
            self.changed.notify()
        eventually("the outbox waits again", lambda: self.changed.waiting)


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def outbox(server: Server, clock: Clock) -> Iterator[Outbox]:
    outbox = Outbox(server, AgentMetrics(), PACE, clock, changed=clock.changed)
    outbox.start()
    yield outbox
    outbox.close()
    assert not [each for each in threading.enumerate() if each.name == "reports"]


def test_a_burst_of_reports_is_sent_once_with_the_newest(
    outbox: Outbox, server: Server, clock: Clock
) -> None:
    for number in range(100):
        outbox.put(report(str(number)))
    assert server.delivered == []
    clock.advance(1)
    assert server.delivered == ["99"]


def test_continuous_reports_are_sent_at_intervals(
    outbox: Outbox, server: Server, clock: Clock
) -> None:
    for number in range(40):
        outbox.put(report(str(number)))
        clock.advance(0.5)
        if number == 20:
            assert len(server.delivered) == 1
    assert len(server.delivered) <= 2


def test_stored_objects_are_checked_periodically(
    outbox: Outbox, server: Server, clock: Clock
) -> None:
    outbox.put(report("a"))
    clock.advance(1)
    assert server.attempts == 1
    clock.advance(299)
    assert server.attempts == 1
    clock.advance(2)
    assert server.attempts == 2


@pytest.mark.parametrize(
    "failure",
    [
        ServerError("PATCH /x: 500 broken"),
        ForbiddenError("PATCH /x: 403 no role", "patch", "nodes/status"),
        StoreError("no"),
    ],
)
def test_a_failure_is_logged_once_and_retried_with_backoff(
    outbox: Outbox,
    server: Server,
    clock: Clock,
    failure: StoreError,
    caplog: pytest.LogCaptureFixture,
) -> None:
    server.failing = failure
    outbox.put(report("a"))
    clock.advance(1)
    assert server.attempts == 1
    for _ in range(20):
        clock.advance(0.5)
    assert server.attempts <= 5
    assert str(failure) in (outbox.problem.text or "")
    records = [each for each in caplog.records if each.levelname == "ERROR"]
    assert len(records) == 1
    server.failing = None
    outbox.put(report("b"))
    clock.advance(100)
    assert server.delivered == ["b"]
    assert outbox.problem.text is None


def test_a_report_is_sent_soon_after_the_server_answers_any_request(
    outbox: Outbox, server: Server, clock: Clock
) -> None:
    server.failing = UnreachableError("PATCH /x: nobody answers")
    outbox.put(report("a"))
    for _ in range(10):
        clock.advance(60)
    server.failing = None
    attempts = server.attempts
    outbox.server_available()
    clock.advance(SPREAD_SECONDS)
    assert (server.delivered, server.attempts) == (["a"], attempts + 1)


def test_an_answering_server_does_not_shorten_the_settling_time(
    outbox: Outbox, server: Server, clock: Clock
) -> None:
    outbox.put(report("a"))
    outbox.server_available()
    clock.advance(0.5)
    assert server.attempts == 0
    clock.advance(0.5)
    assert server.delivered == ["a"]


def test_retry_after_is_observed(outbox: Outbox, server: Server, clock: Clock) -> None:
    server.failing = TooManyRequestsError("PATCH /x: 429", 60.0)
    outbox.put(report("a"))
    clock.advance(1)
    assert server.attempts == 1
    clock.advance(59)
    outbox.put(report("b"))
    clock.advance(0)
    assert server.attempts == 1
    clock.advance(5)
    assert server.attempts == 2


def test_nothing_is_sent_after_the_end(server: Server, clock: Clock) -> None:
    outbox = Outbox(server, AgentMetrics(), PACE, clock)
    outbox.start()
    outbox.put(report("a"))
    outbox.close()
    clock.now += 100
    assert server.attempts == 0


def test_the_first_step_is_retried_until_it_succeeds_with_its_own_backoff(
    server: Server, clock: Clock
) -> None:
    attempts = 0

    def first() -> None:
        nonlocal attempts
        attempts += 1
        raise StoreError("not yet")

    outbox = Outbox(server, AgentMetrics(), PACE, clock, first)
    outbox.start()
    outbox.start()
    eventually("tried once", lambda: attempts == 1)
    for number in range(20):
        outbox.put(report(str(number)))
    clock.now += 100
    assert attempts <= 2
    outbox.close()
    assert (server.attempts, outbox.problem.text) == (0, "not yet")


GPU = Device("gpu", "GPU-1", 0, {"koordinator.sh/gpu-core": 100})
REPORT = Report(
    NodeTopology("n", labels={"app.kubernetes.io/managed-by": "topolet"}),
    {"topology.topolet.io/cpus": "4"},
    {"koordinator.sh/gpu-core": 100},
    DeviceReport((GPU,)),
)
EMPTY = msgspec.structs.replace(REPORT, resources={}, devices=DeviceReport())


class RestrictedStore(EmbeddedStore):
    """A store that refuses writes of one kind, or does not serve its kinds."""

    def __init__(self, folder: Path, refused: str = "", served: bool = True) -> None:
        super().__init__(str(folder))
        self._refused = refused
        self._served = served

    def version(self, kind: str) -> str | None:
        return super().version(kind) if self._served else None

    def apply(self, wanted: dict[str, Any]) -> bool:
        if wanted["kind"] == self._refused:
            raise ForbiddenError(f"no role allows us patch {self._refused}", "patch", self._refused)
        return super().apply(wanted)


@pytest.fixture
def store(tmp_path: Path) -> EmbeddedStore:
    return EmbeddedStore(str(tmp_path))


def test_a_report_is_three_objects_written_once(store: EmbeddedStore) -> None:
    assert deliver(store, REPORT) is True
    assert deliver(store, REPORT) is False
    topology, node, device = (
        store.get(kind, "n") for kind in ("NodeResourceTopology", "Node", "Device")
    )
    assert topology is not None
    assert node is not None
    assert device is not None
    assert topology["apiVersion"] == "topology.node.k8s.io/v1alpha2"
    assert node["metadata"]["labels"] == {"topology.topolet.io/cpus": "4"}
    assert node["status"]["allocatable"] == {"koordinator.sh/gpu-core": "100"}
    assert [each["id"] for each in device["spec"]["devices"]] == ["GPU-1"]
    assert device["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "topolet"


def test_removed_devices_are_removed_from_node_and_device(store: EmbeddedStore) -> None:
    deliver(store, REPORT)
    of_others = {"capacity": {"cpu": "4"}, "phase": "Running"}
    node = store.get("Node", "n") or {}
    store.apply({**node, "status": {**node["status"], **of_others}})
    assert deliver(store, EMPTY) is True
    assert (store.get("Node", "n") or {})["status"] == of_others
    assert (store.get("Device", "n") or {})["spec"]["devices"] == []
    assert deliver(store, EMPTY) is False


def test_without_devices_no_device_object_is_created_or_changed(store: EmbeddedStore) -> None:
    deliver(store, EMPTY)
    assert store.get("Device", "n") is None
    of_others = {"kind": "Device", "metadata": {"name": "n"}, "spec": {"devices": [{"id": "x"}]}}
    store.apply(of_others)
    deliver(store, EMPTY)
    assert store.get("Device", "n") == of_others


@pytest.mark.parametrize(
    ("managers", "changes"), [(["koordlet"], False), (["koordlet", "topolet"], True)]
)
def test_an_empty_device_object_is_the_agents_by_its_field_managers_and_not_by_its_label(
    store: EmbeddedStore, managers: list[str], changes: bool
) -> None:
    metadata = {
        "name": "n",
        "labels": {"app.kubernetes.io/managed-by": "Koordinator"},
        "managedFields": [{"manager": each} for each in managers],
    }
    found = {"kind": "Device", "metadata": metadata, "spec": {"devices": [{"id": "x"}]}}
    store.apply(found)
    deliver(store, EMPTY)
    assert (store.get("Device", "n") != found) is changes


@pytest.mark.parametrize("refused", ["NodeResourceTopology", "Node", "Device"])
def test_a_refused_object_does_not_delay_the_others(tmp_path: Path, refused: str) -> None:
    store = RestrictedStore(tmp_path, refused)
    store.apply({"kind": "Pod", "metadata": {"name": "n"}})
    with pytest.raises(
        StoreError, match=f"no role allows us patch {refused}|Node n does not exist"
    ):
        deliver(store, REPORT)
    written = {kind for kind in ("NodeResourceTopology", "Node", "Device") if store.get(kind, "n")}
    assert written == {"NodeResourceTopology", "Node", "Device"} - {refused}


def test_all_missing_permissions_and_kinds_are_named(tmp_path: Path) -> None:
    store = RestrictedStore(tmp_path, "Device", served=False)
    with pytest.raises(KubeError, match=r"NodeResourceTopology is not served.*; no role"):
        deliver(store, REPORT)
    assert store.get("Node", "n") is not None


@pytest.mark.parametrize(
    "failure", [TooManyRequestsError("later", 3.0), UnreachableError("no route")]
)
def test_a_failing_server_is_tried_once(tmp_path: Path, failure: KubeError) -> None:
    applied = []

    class FailingStore(EmbeddedStore):
        def apply(self, wanted: dict[str, Any]) -> bool:
            applied.append(wanted["kind"])
            raise failure

    with pytest.raises(type(failure)) as raised:
        deliver(FailingStore(str(tmp_path)), REPORT)
    assert raised.value is failure
    assert applied == ["NodeResourceTopology"]
