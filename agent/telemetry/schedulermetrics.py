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
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

_SECONDS: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5,
)  # fmt: skip


class RebindValues(msgspec.Struct, frozen=True):
    """`ended`: RebindResources by phase. `plans`: those of which pods began to be moved. `made`,
    `undone`: writes of pods' annotations. `finished`: the plans that ended, which took
    `seconds` together. `locked`: nodes that take no pods that need CPUs or devices now."""

    ended: Mapping[str, int] = {}
    plans: int = 0
    made: int = 0
    undone: int = 0
    finished: int = 0
    seconds: float = 0.0
    locked: int = 0


class SchedulerValues(msgspec.Struct, frozen=True):
    """The values of a scrape. `lost_races`: binds whose node was taken since the filter. `waiting`:
    unschedulable pods. `retried`, `evicted`: the numbers of retries and of evictions. `corrected`:
    annotations updated with the CPUs that a kubelet assigned, `uncorrected`: updates that failed,
    `misreported`: annotations that are wrong now. `watch_ages_seconds`: by resource, the time since
    its watch last received something from the API server."""

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
    rebinds: RebindValues = RebindValues()


class SchedulerMetrics:
    """`render` gives the text format."""

    def __init__(self, verbs: Sequence[str], results: Sequence[str]) -> None:
        """Every series of `verbs` and `results` exists from the start."""
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        seconds = Histogram(
            "topolet_scheduler_verb_seconds",
            "Time of a verb from the last byte of the request to the complete answer.",
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

    def follow(self, read: Callable[[], SchedulerValues]) -> None:
        """Exports the values of `read` on every page."""
        self._registry.register(_Read(read))

    def answered(self, verb: str, result: str, seconds: float) -> None:
        """Counts the answer to a call."""
        self._seconds[verb].observe(seconds)
        self._answers[verb, result].inc()

    def render(self) -> bytes:
        return generate_latest(self._registry)


class _Read(Collector):
    def __init__(self, read: Callable[[], SchedulerValues]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        values = self._read()
        return [
            _watch_ages(values),
            GaugeMetricFamily(
                "topolet_scheduler_deciding",
                "1 if this process is the leader and has listed the cluster, else 0.",
                int(values.deciding),
            ),
            GaugeMetricFamily("topolet_scheduler_nodes", "Known nodes.", values.nodes),
            CounterMetricFamily(
                "topolet_scheduler_lost_races",
                "Binds whose CPUs or devices other pods took after the filter.",
                values.lost_races,
            ),
            GaugeMetricFamily(
                "topolet_scheduler_waiting_pods",
                "Pods for which the last filter found no node.",
                values.waiting,
            ),
            CounterMetricFamily(
                "topolet_scheduler_retries",
                "Retries of unschedulable pods after a node got room for them.",
                values.retried,
            ),
            CounterMetricFamily(
                "topolet_scheduler_evictions",
                "Pods evicted to make room where only the extender rejected the node.",
                values.evicted,
            ),
            _corrections(values),
            GaugeMetricFamily(
                "topolet_scheduler_misreported_pods",
                "Pods whose resource-status names other CPUs than their kubelet assigned.",
                values.misreported,
            ),
            *_rebinds(values.rebinds),
        ]


def _rebinds(values: RebindValues) -> list[Metric]:
    ended = CounterMetricFamily(
        "topolet_scheduler_rebinds", "RebindResources that ended, by phase.", labels=["phase"]
    )
    for phase, count in values.ended.items():
        ended.add_metric([phase], count)
    moves = CounterMetricFamily(
        "topolet_scheduler_rebind_moves",
        "Writes of resource-status for RebindResources, by whether they undo a move.",
        labels=["kind"],
    )
    moves.add_metric(["made"], values.made)
    moves.add_metric(["undone"], values.undone)
    return [
        ended,
        CounterMetricFamily(
            "topolet_scheduler_rebind_plans",
            "RebindResources of which pods began to be moved.",
            values.plans,
        ),
        moves,
        SummaryMetricFamily(
            "topolet_scheduler_rebind_seconds",
            "Time from the plan of a RebindResource to its end.",
            values.finished,
            values.seconds,
        ),
        GaugeMetricFamily(
            "topolet_scheduler_rebind_locked_nodes",
            "Nodes that take no pods that need CPUs or devices while pods are moved.",
            values.locked,
        ),
    ]


def _corrections(values: SchedulerValues) -> CounterMetricFamily:
    family = CounterMetricFamily(
        "topolet_scheduler_corrections",
        "Updates of resource-status with the CPUs that a kubelet assigned, by result.",
        labels=["result"],
    )
    family.add_metric(["written"], values.corrected)
    family.add_metric(["failed"], values.uncorrected)
    return family


def _watch_ages(values: SchedulerValues) -> GaugeMetricFamily:
    family = GaugeMetricFamily(
        "topolet_scheduler_watch_age_seconds",
        "Time since a watch had an event, a bookmark or an answer of the API server, by resource.",
        labels=["resource"],
    )
    for resource, seconds in values.watch_ages_seconds.items():
        family.add_metric([resource], seconds)
    return family
