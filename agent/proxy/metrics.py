"""What the proxy counts, as its metrics page shows it."""

from __future__ import annotations

import os

from agent.proxy.bell import Bell
from agent.proxy.gate import CpusetGate
from agent.proxy.snapshots import SnapshotFile
from agent.runtime.relayserver import RelayServer
from agent.telemetry.plain import Metric, render


def page(server: RelayServer, gate: CpusetGate, bell: Bell, snapshots: SnapshotFile) -> str:
    """All series, in base units."""
    stats = server.stats
    snapshot = snapshots.current()
    passed = {
        "hook_error": stats.hook_errors,
        "oversize": stats.passed_oversize,
        "compressed": stats.passed_compressed,
        "irregular": stats.passed_irregular,
    }
    return render(
        [
            _gauge("connections", "Client connections open now.", server.connections),
            _counter("unreachable", "Connections closed: no runtime.", server.unreachable),
            _counter("malformed", "Connections that were no HTTP/2.", stats.malformed),
            _counter("hooked", "Calls that a hook saw.", stats.hooked),
            _counter("rewritten", "Calls whose request was changed.", stats.replaced),
            _counter("refused", "Calls that were answered with an error.", stats.refused),
            _counter("timed_out", "Calls that waited in vain for the agent.", gate.timed_out),
            _gauge("held", "Calls that wait for the agent now.", stats.held_now),
            Metric(
                "topolet_proxy_passed_unhooked_total",
                "counter",
                "Calls of hooked methods that passed unchanged for a reason of ours.",
                passed,
                label="reason",
            ),
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
                {"": _resident_bytes()},
            ),
        ]
    )


def _counter(name: str, text: str, value: float) -> Metric:
    return Metric(f"topolet_proxy_{name}_total", "counter", text, {"": value})


def _gauge(name: str, text: str, value: float) -> Metric:
    return Metric(f"topolet_proxy_{name}", "gauge", text, {"": value})


def _resident_bytes() -> int:
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
