"""The metrics of the DRA driver."""

from __future__ import annotations

from agent.telemetry.dra_metrics import PREPARATION_SECONDS, DraCounts, follow_dra
from agent.telemetry.exposition import Histogram
from agent.telemetry.metrics import AgentMetrics


def test_the_driver_is_exported_with_its_refusals_by_reason() -> None:
    seconds = Histogram(PREPARATION_SECONDS)
    seconds.observe(0.004)
    metrics = AgentMetrics()
    follow_dra(metrics, lambda: DraCounts(2, 12, seconds, {"cpus-taken": 3}, 1, 5, 4))
    lines = metrics.render().splitlines()
    for line in (
        "topolet_dra_prepared_claims 2",
        "topolet_dra_claimed_cpus 12",
        'topolet_dra_preparation_seconds_bucket{le="0.0025"} 0',
        'topolet_dra_preparation_seconds_bucket{le="0.005"} 1',
        "topolet_dra_preparation_seconds_count 1",
        'topolet_dra_refused_preparations_total{reason="cpus-taken"} 3',
        "topolet_dra_evicted_pods_total 1",
        "topolet_dra_slice_writes_total 5",
        "topolet_dra_pods_below_claims 4",
    ):
        assert line in lines
