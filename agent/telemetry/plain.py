"""Counters of the proxy in the Prometheus text format.

Not prometheus-client: importing it takes a process from 9 to 23 MB (docs/decisions.md).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Metric(msgspec.Struct, frozen=True):
    """`values`: by one label's value, or under "" without labels."""

    name: str
    kind: str
    text: str
    values: Mapping[str, float]
    label: str = ""


def render(metrics: list[Metric]) -> str:
    """The page that a scrape gets."""
    lines = []
    for metric in metrics:
        lines += [f"# HELP {metric.name} {metric.text}", f"# TYPE {metric.name} {metric.kind}"]
        for value, number in sorted(metric.values.items()):
            escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
            labels = f'{{{metric.label}="{escaped}"}}' if metric.label else ""
            lines.append(f"{metric.name}{labels} {number:.15g}")
    return "\n".join(lines) + "\n"
