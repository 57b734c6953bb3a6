from __future__ import annotations

from agent.telemetry.schedulermetrics import RebindValues, SchedulerMetrics, SchedulerValues


def lines(metrics: SchedulerMetrics) -> set[str]:
    return set(metrics.render().decode().splitlines())


def test_every_series_exists_from_the_start() -> None:
    page = lines(SchedulerMetrics(["filter", "bind"], ["answered", "fault"]))
    for verb in ("filter", "bind"):
        assert f'topolet_scheduler_request_duration_seconds_count{{verb="{verb}"}} 0' in page
        for result in ("answered", "fault"):
            labels = f'{{result="{result}",verb="{verb}"}}'
            assert f"topolet_scheduler_requests_total{labels} 0" in page


def test_an_answer_is_counted_with_its_duration() -> None:
    metrics = SchedulerMetrics(["filter"], ["answered"])
    metrics.answered("filter", "answered", 0.003)
    page = lines(metrics)
    assert 'topolet_scheduler_requests_total{result="answered",verb="filter"} 1' in page
    assert 'topolet_scheduler_request_duration_seconds_bucket{le="0.0025",verb="filter"} 0' in page
    assert 'topolet_scheduler_request_duration_seconds_bucket{le="0.005",verb="filter"} 1' in page


def test_values_are_read_for_every_scrape() -> None:
    metrics = SchedulerMetrics([], [])
    values = SchedulerValues(deciding=False, nodes=0, lost_races=0)
    metrics.follow(lambda: values)
    assert "topolet_scheduler_leader 0" in lines(metrics)
    values = SchedulerValues(
        deciding=True,
        nodes=7,
        lost_races=3,
        waiting=2,
        retried=4,
        evicted=5,
        corrected=6,
        uncorrected=8,
        misreported=9,
        watch_ages_seconds={"pods": 1.5, "nodes": 0.5},
        unable_nodes={"n1": "no-agent"},
        untried=10,
        rebinds=RebindValues({"Succeed": 1}, 2, 3, 4, 5, 6.5, 7),
    )
    assert lines(metrics) >= {
        "topolet_scheduler_leader 1",
        "topolet_scheduler_nodes 7",
        'topolet_scheduler_node_without_agent{node="n1",reason="no-agent"} 1',
        "topolet_scheduler_untried_pods 10",
        "topolet_scheduler_bind_conflicts_total 3",
        "topolet_scheduler_unschedulable_pods 2",
        "topolet_scheduler_retries_total 4",
        "topolet_scheduler_evictions_total 5",
        'topolet_scheduler_resource_status_updates_total{result="written"} 6',
        'topolet_scheduler_resource_status_updates_total{result="failed"} 8',
        "topolet_scheduler_resource_status_mismatches 9",
        'topolet_scheduler_rebinds_total{phase="Succeed"} 1',
        "topolet_scheduler_rebind_plans_total 2",
        'topolet_scheduler_rebind_moves_total{kind="made"} 3',
        'topolet_scheduler_rebind_moves_total{kind="undone"} 4',
        "topolet_scheduler_rebind_duration_seconds_count 5",
        "topolet_scheduler_rebind_duration_seconds_sum 6.5",
        "topolet_scheduler_rebind_locked_nodes 7",
        'topolet_scheduler_watch_age_seconds{resource="pods"} 1.5',
        'topolet_scheduler_watch_age_seconds{resource="nodes"} 0.5',
    }
