"""The metrics page."""

from __future__ import annotations

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from agent.hooks.agent_client import SnapshotFile
from agent.nri import daemon
from tests.nri.world import World, container, pod
from tests.proxy.exchanges import BOOT, OWNED


def test_every_series_is_readable_and_counts(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.publish(OWNED)
    assert daemon.unready(world.link) == "the plugin is not registered with the runtime"
    world.runtime.set_up()
    assert daemon.unready(world.link) == ""
    world.create(container("c", "p"), pod("p"))
    world.conflicts.error("ns/p", 'plugins "10-topolet" and "a"b" both tried to set CPUSetCPUs')
    world.conflicts.changed("ns/p", "1", "")
    page = daemon.metrics_page(
        world.link,
        world.admission.outcomes,
        world.updater,
        world.conflicts,
        world.containers,
        world.notifier,
        SnapshotFile(str(world.path), BOOT),
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
    world.close()
