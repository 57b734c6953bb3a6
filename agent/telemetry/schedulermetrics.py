"""The scheduler's metrics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

_SECONDS: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5,
)  # fmt: skip


class SchedulerMetrics:
    """`render` gives the text format."""

    def __init__(self, verbs: Sequence[str], results: Sequence[str]) -> None:
        """Every series of `verbs` and `results` is there from the start."""
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        seconds = Histogram(
            "topolet_scheduler_verb_seconds",
            "Time of a verb from the whole body of the request to that of the answer.",
            ["verb"],
            registry=registry,
            buckets=_SECONDS,
        )
        answers = Counter(
            "topolet_scheduler_answers",
            "Answers to kube-scheduler, by verb and result.",
            ["verb", "result"],
            registry=registry,
        )
        self._seconds = {verb: seconds.labels(verb) for verb in verbs}
        self._answers = {
            (verb, result): answers.labels(verb, result) for verb in verbs for result in results
        }
        self.leader = Gauge(
            "topolet_scheduler_leader", "Whether this process decides: 1 or 0.", registry=registry
        )

    def answered(self, verb: str, result: str, seconds: float) -> None:
        """A verb came to an end."""
        self._seconds[verb].observe(seconds)
        self._answers[verb, result].inc()

    def render(self) -> bytes:
        return generate_latest(self._registry)
