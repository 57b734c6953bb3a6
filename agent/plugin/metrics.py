"""What the plugin counts, as its metrics page shows it."""

from __future__ import annotations

import os

from agent.plugin.conflicts import Conflicts
from agent.plugin.containers import Containers
from agent.plugin.updater import Updater
from agent.proxy.bell import Bell
from agent.proxy.outcomes import Outcomes
from agent.proxy.snapshots import SnapshotFile
from agent.runtime.nri.link import Link
from agent.telemetry.plain import Metric, render


def page(
    link: Link,
    outcomes: Outcomes,
    updater: Updater,
    conflicts: Conflicts,
    containers: Containers,
    bell: Bell,
    snapshots: SnapshotFile,
) -> str:
    """All series, in base units."""
    stats = link.stats
    snapshot = snapshots.current()
    return render(
        [
            _gauge("ready", "1 while the runtime asks us about each container.", int(link.ready)),
            _counter("sessions", "Sessions with the runtime begun.", link.sessions),
            _counter("sessions_failed", "Sessions that ended before we did.", link.failed_sessions),
            Metric(
                "topolet_nri_calls_total",
                "counter",
                "Calls of the runtime.",
                {(method,): number for method, number in stats.calls.items()},
                ("method",),
            ),
            Metric(
                "topolet_nri_hook_errors_total",
                "counter",
                "Faults of a hook.",
                {(method,): number for method, number in stats.errors.items()},
                ("method",),
            ),
            _counter("adjusted", "Containers whose making or change was adjusted.", stats.adjusted),
            _counter("refused", "Calls that were answered with an error.", stats.refused),
            _gauge("held", "Calls that wait for the agent now.", stats.held_now),
            _gauge("slowest_seconds", "The longest answer so far.", stats.slowest_seconds),
            Metric(
                "topolet_nri_failed_open_total",
                "counter",
                "Calls that went on though their hook could not do its work, and why.",
                outcomes.failed_open,
                ("hook", "qos", "reason"),
            ),
            Metric(
                "topolet_nri_failed_total",
                "counter",
                "Calls that failed because their hook could not do its work, and why.",
                outcomes.failed,
                ("hook", "qos", "reason"),
            ),
            _gauge("containers", "Containers that the runtime has.", len(containers)),
            _counter("updates", "Containers changed for the agent.", updater.updates),
            _counter("updates_failed", "Changes that the runtime did not make.", updater.failed),
            _counter(
                "updates_unverified",
                "Changes that the runtime took, and a process still runs elsewhere.",
                updater.unverified,
            ),
            Metric(
                "topolet_nri_conflicts_total",
                "counter",
                "Signs of another writer of cpusets, and who it may be.",
                conflicts.found,
                ("kind", "plugin"),
            ),
            _counter("rings", "Datagrams to the agent.", bell.rings),
            _counter("rings_undelivered", "Datagrams nobody took.", bell.undelivered),
            _gauge(
                "snapshot_generation",
                "Number of the snapshot in force, 0 for none.",
                snapshot.generation if snapshot else 0,
            ),
            Metric(
                "process_resident_memory_bytes",
                "gauge",
                "Resident memory size in bytes.",
                {(): _resident_bytes()},
            ),
        ]
    )


def _counter(name: str, text: str, value: float) -> Metric:
    return Metric(f"topolet_nri_{name}_total", "counter", text, {(): value})


def _gauge(name: str, text: str, value: float) -> Metric:
    return Metric(f"topolet_nri_{name}", "gauge", text, {(): value})


def _resident_bytes() -> int:
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
