"""The metrics of quiet CPUs."""

from __future__ import annotations

from agent.telemetry.metrics import AgentMetrics
from agent.telemetry.quiet_metrics import QuietMeasures, follow_quiet


def test_the_last_second_is_on_the_page() -> None:
    metrics = AgentMetrics()
    before = set(metrics.render().splitlines())
    measures = QuietMeasures({"interrupts": 12, "c-states": 0}, ["c-states"], 2, {"c-states": 1})
    follow_quiet(metrics, lambda: measures)
    page = metrics.render().splitlines()
    assert {line for line in page if not line.startswith("#")} - before >= {
        'topolet_quiet_files{feature="interrupts"} 12',
        'topolet_quiet_files{feature="c-states"} 0',
        'topolet_quiet_unsupported{feature="c-states"} 1',
        "topolet_quiet_failed_files 2",
        'topolet_quiet_owners{feature="c-states"} 1',
    }
