"""The metrics page of the NRI plugin."""

from __future__ import annotations

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from agent.hooks.agent_client import SnapshotFile
from agent.nri import daemon
from tests.hooks.snapshots import BOOT, OWNED
from tests.nri.harness import PluginHarness, container, pod


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
