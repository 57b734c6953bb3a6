"""What the proxy counts, as its metrics page shows it."""

from __future__ import annotations

from typing import Final

from agent.proxy.bell import Bell
from agent.proxy.counts import Counts
from agent.proxy.gate import CpusetGate
from agent.proxy.latencies import Latencies, method_label
from agent.proxy.snapshots import SnapshotFile
from agent.runtime.relayserver import RelayServer
from agent.telemetry.plain import Metric, render

_COUNTS: Final = Counts("topolet_proxy")


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
    return render(
        [
            _COUNTS.gauge("connections", "Client connections open now.", server.connections),
            _COUNTS.counter("unreachable", "Connections closed: no runtime.", server.unreachable),
            _COUNTS.counter("faults", "Connections closed by a fault of ours.", server.faults),
            _COUNTS.counter("malformed", "Connections that were no HTTP/2.", stats.malformed),
            Metric(
                "topolet_proxy_in_flight",
                "gauge",
                "Calls under way, by method.",
                {method_label(path): number for path, number in server.meter.in_flight.items()},
                ("method",),
            ),
            *latencies.metrics(),
            _COUNTS.counter("hooked", "Calls that a hook saw.", stats.hooked),
            _COUNTS.counter("rewritten", "Calls whose request was changed.", stats.replaced),
            _COUNTS.counter("refused", "Calls that were answered with an error.", stats.refused),
            _COUNTS.gauge("held", "Calls that wait for the agent now.", stats.held_now),
            _COUNTS.counter("hook_errors", "Faults of a hook.", stats.hook_errors),
            *_COUNTS.shared(outcomes, bell, snapshots),
        ]
    )
