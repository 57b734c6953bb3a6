"""Readiness and the metrics page of a proxy."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from agent import VERSION
from agent.host.listener import Listener
from agent.host.loop import Loop
from agent.model.settings.frontends import CREATE
from agent.proxy import daemon
from agent.proxy.daemon import Latencies, OwnSocket
from agent.relay.server import RelayServer
from tests.hooks.snapshots import OWNED
from tests.proxy.harness import GateHarness


def test_the_metrics_page_counts_calls_and_failures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = GateHarness(monkeypatch, hold_seconds=0)
    harness.publish(OWNED)
    harness.call_create("new", "LSE", "2")
    harness.call_create("other", "LS", "2")
    latencies = Latencies()
    for seconds in (0.002, 0.2):
        latencies.observe(b"/r/CreateContainer", seconds, 0.00006)
    latencies.observe(b"/\xff", 3.0, 1.0)
    loop = Loop()
    server = RelayServer(loop, harness.gate, str(tmp_path / "front"), str(tmp_path / "back"))
    server.meter.in_flight[b"/r/Exec"] = 3
    text = daemon.metrics_page(
        server,
        harness.admission.outcomes,
        harness.notifier,
        harness.snapshots,
        latencies,
        OwnSocket(str(tmp_path / "front"), None),
    )
    assert server.accepting
    server.close()
    assert not server.accepting
    loop.close()
    found = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert found["topolet_proxy_failed_total", CREATE, "LSE", "timeout"] == 1
    assert found["topolet_proxy_failed_open_total", CREATE, "LS", "timeout"] == 1
    assert found["topolet_proxy_calls_in_flight", "/r/Exec"] == 3
    assert found["topolet_proxy_call_duration_seconds_count", "/r/CreateContainer"] == 2
    assert found["topolet_proxy_call_duration_seconds_bucket", "+Inf", "/\\xff"] == 1
    assert found["topolet_proxy_call_duration_seconds_bucket", "/r/CreateContainer", "0.0025"] == 1
    assert found["topolet_proxy_call_overhead_seconds_bucket", "/r/CreateContainer", "0.0001"] == 2
    assert found["topolet_proxy_snapshot_generation",] == 1
    assert found["topolet_proxy_snapshot_age_seconds",] >= 0
    assert found["topolet_proxy_ready",] == 1
    assert found["topolet_proxy_socket_lost",] == 0
    assert found["topolet_build_info", VERSION, "proxy"] == 1
    assert found["process_resident_memory_bytes",] > 1 << 20


def test_a_proxy_is_ready_while_it_accepts_and_the_runtime_listens(tmp_path: Path) -> None:
    runtime = str(tmp_path / "runtime.sock")
    assert "the runtime does not answer" in daemon.unready(runtime, accepting=True)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(runtime)
        assert "Connection refused" in daemon.unready(runtime, accepting=True), (
            "the runtime has ended"
        )
        listening.listen()
        assert daemon.unready(runtime, accepting=True) == ""
        assert daemon.unready(runtime, accepting=False) == "the proxy accepts no connections"


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Listener]:
    made = Listener(str(tmp_path / "cri.sock"))
    yield made
    made.close()


def not_called(listening: socket.socket) -> None:
    raise AssertionError("no new socket was needed")


def accepts(listening: socket.socket, path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
        accepted, _ = listening.accept()
        accepted.close()
    return True


def test_a_removed_socket_is_made_again(
    listener: Listener, caplog: pytest.LogCaptureFixture
) -> None:
    own, found = OwnSocket(listener.path, listener), list[socket.socket]()
    own.check(not_called)
    assert own.lost() == ""
    former = listener.socket
    os.unlink(listener.path)
    assert own.lost() == (
        f"{listener.path} does not exist: the proxy makes it again as soon as the path is free"
    )
    own.check(found.append)
    assert found == [listener.socket]
    assert former.fileno() == -1
    assert own.lost() == ""
    assert own.recreated == 1
    assert accepts(listener.socket, listener.path)
    assert os.stat(listener.path).st_mode & 0o777 == 0o600
    assert f"{listener.path} did not exist: the proxy made it again" in caplog.text


def test_a_socket_of_somebody_else_stays(
    listener: Listener, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    own = OwnSocket(listener.path, listener)
    os.unlink(listener.path)
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(listener.path)
        for _ in range(2):
            own.check(not_called)
        assert caplog.text.count(f"{listener.path} is not the proxy's") == 1
        assert own.lost()
    os.unlink(listener.path)
    own.check(lambda listening: None)
    assert own.lost() == ""
    assert "clients find the proxy" in caplog.text


def test_a_folder_that_is_gone_is_awaited(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    listener = Listener(str(folder / "cri.sock"))
    own = OwnSocket(listener.path, listener)
    folder.rename(tmp_path / "moved")
    own.check(not_called)
    assert "does not exist" in own.lost()
    folder.mkdir()
    own.check(lambda listening: None)
    assert own.lost() == ""
    listener.close()


def test_the_service_manager_makes_its_socket_again(tmp_path: Path) -> None:
    """Also a proxy that starts while the file is missing says so."""
    path = str(tmp_path / "cri.sock")
    text = f"{path} does not exist: systemctl restart topolet-proxy.socket makes it again"
    with socket.socket(socket.AF_UNIX) as inherited:
        inherited.bind(path)
        own = OwnSocket(path, None)
        assert own.lost() == ""
        os.unlink(path)
        own.check(not_called)
        assert own.lost() == OwnSocket(path, None).lost() == text
