"""What the plugin counts, as its metrics page shows it."""

from __future__ import annotations

from typing import Final

from agent.hooks.agent_link import Notifier, SnapshotFile
from agent.hooks.requests import Outcomes
from agent.nri.conflicts import Conflicts
from agent.nri.containers import Containers
from agent.nri.link import PluginLink
from agent.nri.updater import Updater
from agent.telemetry.hookmetrics import Counts
from agent.telemetry.plain import render

_COUNTS: Final = Counts("topolet_nri")


def page(
    link: PluginLink,
    outcomes: Outcomes,
    updater: Updater,
    conflicts: Conflicts,
    containers: Containers,
    notifier: Notifier,
    snapshots: SnapshotFile,
) -> str:
    """All series, in base units."""
    stats = link.stats
    return render(
        [
            _COUNTS.gauge(
                "ready", "1 while the runtime asks us about each container.", int(link.ready)
            ),
            _COUNTS.counter("sessions", "Sessions with the runtime begun.", link.sessions),
            _COUNTS.counter(
                "sessions_failed", "Sessions that ended before we did.", link.failed_sessions
            ),
            _COUNTS.counters(
                "calls",
                "Calls of the runtime.",
                {(method,): number for method, number in stats.calls.items()},
                ("method",),
            ),
            _COUNTS.counters(
                "hook_errors",
                "Faults of a hook.",
                {(method,): number for method, number in stats.errors.items()},
                ("method",),
            ),
            _COUNTS.counter(
                "adjusted", "Containers whose making or change was adjusted.", stats.adjusted
            ),
            _COUNTS.counter("refused", "Calls that were answered with an error.", stats.refused),
            _COUNTS.gauge("held", "Calls that wait for the agent now.", stats.held_now),
            _COUNTS.gauge("slowest_seconds", "The longest answer so far.", stats.slowest_seconds),
            _COUNTS.gauge("containers", "Containers that the runtime has.", len(containers)),
            _COUNTS.counter("updates", "Containers changed for the agent.", updater.updates),
            _COUNTS.counter(
                "updates_failed", "Changes that the runtime did not make.", updater.failed
            ),
            _COUNTS.counter(
                "updates_unverified",
                "Changes that the runtime took, and a process still runs elsewhere.",
                updater.unverified,
            ),
            _COUNTS.counters(
                "conflicts",
                "Signs of another writer of cpusets, and who it may be.",
                conflicts.found,
                ("kind", "plugin"),
            ),
            *_COUNTS.shared(outcomes, notifier, snapshots),
        ]
    )
