"""How long watches of the cluster's objects have been out of touch, in agent and scheduler."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client.core import GaugeMetricFamily


def watch_ages(name: str, ages_seconds: Mapping[str, float]) -> GaugeMetricFamily:
    """One series for each watched resource."""
    text = (
        "Time since a watch had an event, a bookmark or an answer of the API server, by resource."
    )
    family = GaugeMetricFamily(name, text, labels=["resource"])
    for resource, seconds in ages_seconds.items():
        family.add_metric([resource], seconds)
    return family
