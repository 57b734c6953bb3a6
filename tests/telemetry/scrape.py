"""Samples of a scrape, by name and labels."""

from __future__ import annotations

from collections import Counter

from prometheus_client.parser import text_string_to_metric_families

from agent.telemetry.metrics import AgentMetrics

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def samples(metrics: AgentMetrics) -> Samples:
    found = [
        ((each.name, frozenset(each.labels.items())), each.value)
        for family in text_string_to_metric_families(metrics.render())
        for each in family.samples
    ]
    duplicates = [key for key, count in Counter(key for key, _ in found).items() if count > 1]
    assert not duplicates, "Prometheus refuses a scrape with a duplicate series"
    return dict(found)
