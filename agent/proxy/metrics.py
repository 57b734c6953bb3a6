"""What the proxy counts, as its metrics page shows it."""

from __future__ import annotations

import os

from agent.proxy.bell import Bell
from agent.proxy.gate import CpusetGate
from agent.proxy.latencies import Latencies, method_label
from agent.proxy.snapshots import SnapshotFile
from agent.runtime.relayserver import RelayServer
from agent.telemetry.plain import Metric, render


def page(
    server: RelayServer,
    gate: CpusetGate,
    bell: Bell,
    snapshots: SnapshotFile,
    latencies: Latencies,
) -> str:
    """All series, in base units."""
    server.meter.tell()
    stats, outcomes = server.stats, gate.outcomes
    snapshot = snapshots.current()
    return render(
        [
            _gauge("connections", "Client connections open now.", server.connections),
            _counter("unreachable", "Connections closed: no runtime.", server.unreachable),
            _counter("faults", "Connections closed by a fault of ours.", server.faults),
            _counter("malformed", "Connections that were no HTTP/2.", stats.malformed),
            Metric(
                "topolet_proxy_in_flight",
                "gauge",
                "Calls under way, by method.",
                {method_label(path): number for path, number in server.meter.in_flight.items()},
                ("method",),
            ),
            *latencies.metrics(),
            _counter("hooked", "Calls that a hook saw.", stats.hooked),
            _counter("rewritten", "Calls whose request was changed.", stats.replaced),
            _counter("refused", "Calls that were answered with an error.", stats.refused),
            _gauge("held", "Calls that wait for the agent now.", stats.held_now),
            Metric(
                "topolet_proxy_failed_open_total",
                "counter",
                "Calls that went on though their hook could not do its work, and why.",
                outcomes.failed_open,
                ("hook", "qos", "reason"),
            ),
            Metric(
                "topolet_proxy_failed_total",
                "counter",
                "Calls that failed because their hook could not do its work, and why.",
                outcomes.failed,
                ("hook", "qos", "reason"),
            ),
            _counter("hook_errors", "Faults of a hook.", stats.hook_errors),
            _counter("rings", "Datagrams to the agent.", bell.rings),
            _counter("rings_undelivered", "Datagrams nobody took.", bell.undelivered),
            _counter("snapshot_unreadable", "Torn snapshots ignored.", snapshots.unreadable),
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
    return Metric(f"topolet_proxy_{name}_total", "counter", text, {(): value})


def _gauge(name: str, text: str, value: float) -> Metric:
    return Metric(f"topolet_proxy_{name}", "gauge", text, {(): value})


def _resident_bytes() -> int:
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
