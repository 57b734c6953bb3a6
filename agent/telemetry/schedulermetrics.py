"""The scheduler's metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

_SECONDS: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5,
)  # fmt: skip


class SchedulerFacts(msgspec.Struct, frozen=True):
    """The values of a scrape. `lost_races`: binds whose node was taken since the filter. `waiting`:
    unschedulable pods. `retried`, `evicted`: the numbers of retries and of evictions. `corrected`:
    writes of the CPUs that a kubelet gave into annotations, `uncorrected`: writes that failed,
    `misreported`: annotations that are wrong now. `watch_ages_seconds`: by resource, the time since
    its watch was in touch with the API server last."""

    deciding: bool
    nodes: int
    lost_races: int
    waiting: int = 0
    retried: int = 0
    evicted: int = 0
    corrected: int = 0
    uncorrected: int = 0
    misreported: int = 0
    watch_ages_seconds: Mapping[str, float] = {}


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

    def follow(self, read: Callable[[], SchedulerFacts]) -> None:
        """Every page has the values of `read` from now on."""
        self._registry.register(_Read(read))

    def answered(self, verb: str, result: str, seconds: float) -> None:
        """A verb came to an end."""
        self._seconds[verb].observe(seconds)
        self._answers[verb, result].inc()

    def render(self) -> bytes:
        return generate_latest(self._registry)


class _Read(Collector):
    def __init__(self, read: Callable[[], SchedulerFacts]) -> None:
        self._read = read

    def collect(self) -> Iterable[GaugeMetricFamily | CounterMetricFamily]:
        facts = self._read()
        return [
            _watch_ages(facts),
            GaugeMetricFamily(
                "topolet_scheduler_deciding",
                "Whether this process leads and knows the cluster: 1 or 0.",
                int(facts.deciding),
            ),
            GaugeMetricFamily("topolet_scheduler_nodes", "Nodes that are known.", facts.nodes),
            CounterMetricFamily(
                "topolet_scheduler_lost_races",
                "Binds whose node was taken by others since it was offered.",
                facts.lost_races,
            ),
            GaugeMetricFamily(
                "topolet_scheduler_waiting_pods",
                "Pods that found no node when they were asked about last.",
                facts.waiting,
            ),
            CounterMetricFamily(
                "topolet_scheduler_retries",
                "Pods that were tried again as a node had room for them.",
                facts.retried,
            ),
            CounterMetricFamily(
                "topolet_scheduler_evictions",
                "Pods that were evicted to make room where only our rule blocked.",
                facts.evicted,
            ),
            _corrections(facts),
            GaugeMetricFamily(
                "topolet_scheduler_misreported_pods",
                "Pods whose resource-status names other CPUs than their kubelet gave them.",
                facts.misreported,
            ),
        ]


def _corrections(facts: SchedulerFacts) -> CounterMetricFamily:
    family = CounterMetricFamily(
        "topolet_scheduler_corrections",
        "Writes of the CPUs that a kubelet gave into resource-status, by result.",
        labels=["result"],
    )
    family.add_metric(["written"], facts.corrected)
    family.add_metric(["failed"], facts.uncorrected)
    return family


def _watch_ages(facts: SchedulerFacts) -> GaugeMetricFamily:
    family = GaugeMetricFamily(
        "topolet_scheduler_watch_age_seconds",
        "Time since a watch had an event, a bookmark or an answer of the API server, by resource.",
        labels=["resource"],
    )
    for resource, seconds in facts.watch_ages_seconds.items():
        family.add_metric([resource], seconds)
    return family
