"""Readiness and the metrics page of a proxy."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from agent import VERSION
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
