"""The variables and the socket that a runtime passes to a plugin that it launches."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from agent.hooks.agent_client import SnapshotFile
from agent.nri import daemon
from agent.nri.daemon import LaunchError, launched
from tests.hooks.snapshots import BOOT, OWNED
from tests.nri.harness import PluginHarness, container, pod


def test_without_a_socket_the_plugin_was_not_launched_by_the_runtime() -> None:
    environment = {"NRI_PLUGIN_NAME": "ignored", "PATH": "/bin"}
    assert launched(environment) is None
    assert environment == {"PATH": "/bin"}


def test_socket_name_and_index_come_from_the_runtime() -> None:
    plugin_end, runtime_end = socket.socketpair()
    os.set_inheritable(plugin_end.fileno(), True)
    environment = {
        "NRI_PLUGIN_SOCKET": str(plugin_end.detach()),
        "NRI_PLUGIN_NAME": "topolet",
        "NRI_PLUGIN_IDX": "07",
    }
    found = launched(environment)
    assert found is not None
    assert (found.name, found.index, environment) == ("topolet", "07", {})
    assert not found.socket.get_inheritable(), "child processes do not inherit it"
    runtime_end.send(b"x")
    assert found.socket.recv(1) == b"x"
    found.socket.close()
    runtime_end.close()


@pytest.mark.parametrize("number", ["x", "-1", "100000"])
def test_an_invalid_socket_number_is_named(number: str) -> None:
    with pytest.raises(LaunchError, match=f"NRI_PLUGIN_SOCKET={number} is not a socket"):
        launched({"NRI_PLUGIN_SOCKET": number})


def test_every_series_is_readable_and_counts(tmp_path: Path) -> None:
    harness = PluginHarness(tmp_path)
    harness.publish(OWNED)
    assert daemon.unready(harness.link) == "the plugin is not registered with the runtime"
    harness.runtime.set_up()
    assert daemon.unready(harness.link) == ""
    harness.create(container("c", "p"), pod("p"))
    harness.conflicts.error("ns/p", 'plugins "10-topolet" and "a"b" both tried to set CPUSetCPUs')
    harness.conflicts.changed("ns/p", "1", "")
    page = daemon.metrics_page(
        harness.link,
        harness.admission.outcomes,
        harness.updater,
        harness.conflicts,
        harness.containers,
        harness.notifier,
        SnapshotFile(str(harness.path), BOOT),
    )
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }
    assert found["topolet_nri_ready",] == 1
    assert found["topolet_nri_sessions_total",] == 1
    assert found["topolet_nri_calls_total", "CreateContainer"] == 1
    assert found["topolet_nri_adjusted_containers_total",] == 1
    assert found["topolet_nri_containers",] == 1
    assert found["topolet_nri_snapshot_generation",] == OWNED.generation
    assert found["topolet_nri_conflicts_total", "changed", ""] == 1
    assert found["process_resident_memory_bytes",] > 1 << 20
    harness.close()
