"""The scheduler's metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from agent.telemetry.series import BUILD_INFO, Declarations, Series, build_labels

_SECONDS: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5,
)  # fmt: skip


_SCHEDULER: Final = Declarations("topolet_scheduler")
_REQUEST_SECONDS: Final = _SCHEDULER.histogram(
    "request_duration_seconds",
    "Time of a request of kube-scheduler from its last byte to the complete answer, by verb.",
    "verb",
)
_REQUESTS: Final = _SCHEDULER.counter(
    "requests",
    "Requests of kube-scheduler that were answered, by verb and result.",
    "verb",
    "result",
)
_LEADER: Final = _SCHEDULER.gauge(
    "leader", "1 if this process is the leader and has listed the cluster, else 0."
)
_NODES: Final = _SCHEDULER.gauge("nodes", "Known nodes.")
_WITHOUT_AGENT: Final = _SCHEDULER.gauge(
    "node_without_agent",
    "1 for each Linux node whose CPUs the scheduler can't give, by reason: no-agent, "
    "agent-not-ready, no-report (it has no NodeResourceTopology, or an invalid one).",
    "node",
    "reason",
)
_UNTRIED: Final = _SCHEDULER.gauge(
    "untried_pods",
    "Pods that wait for this scheduler, and that kube-scheduler has not tried, or could not try "
    "(condition PodScheduled with the reason SchedulerError).",
)
_BIND_CONFLICTS: Final = _SCHEDULER.counter(
    "bind_conflicts", "Binds whose CPUs or devices other pods took after the filter."
)
_UNSCHEDULABLE: Final = _SCHEDULER.gauge(
    "unschedulable_pods", "Pods for which the last filter found no node."
)
_RETRIES: Final = _SCHEDULER.counter(
    "retries", "Retries of unschedulable pods after a node got room for them."
)
_EVICTIONS: Final = _SCHEDULER.counter(
    "evictions", "Pods evicted to make room where only the extender rejected the node."
)
_STATUS_UPDATES: Final = _SCHEDULER.counter(
    "resource_status_updates",
    "Updates of resource-status with the CPUs that a kubelet assigned, by result: written, failed.",
    "result",
)
_STATUS_MISMATCHES: Final = _SCHEDULER.gauge(
    "resource_status_mismatches",
    "Pods whose resource-status names other CPUs than their kubelet assigned.",
)
_REBINDS: Final = _SCHEDULER.counter("rebinds", "RebindResources that ended, by phase.", "phase")
_REBIND_PLANS: Final = _SCHEDULER.counter(
    "rebind_plans", "RebindResources that began to move pods."
)
_REBIND_MOVES: Final = _SCHEDULER.counter(
    "rebind_moves",
    "Writes of resource-status for RebindResources, by kind: made, undone (undo a move).",
    "kind",
)
_REBIND_SECONDS: Final = _SCHEDULER.summary(
    "rebind_duration_seconds", "Time from the plan of a RebindResource to its end."
)
_LOCKED_NODES: Final = _SCHEDULER.gauge(
    "rebind_locked_nodes",
    "Nodes that take no pods that need CPUs or devices while pods are moved.",
)
_WATCH_AGE: Final = _SCHEDULER.gauge(
    "watch_age_seconds",
    "Time since a watch had an event, a bookmark or an answer of the API server, by resource.",
    "resource",
)
DECLARED: Final = (*_SCHEDULER.all, BUILD_INFO)
"""All metrics of the scheduler."""


class RebindValues(msgspec.Struct, frozen=True):
    """`ended`: RebindResources by phase. `plans`: those that began to move pods. `made`,
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
    """The values of a scrape."""

    deciding: bool
    nodes: int
    lost_races: int
    """So many binds failed because another pod had taken the node's room since the filter."""
    without_agent: Mapping[str, str] = {}
    """By the name of a node without a usable agent, the reason."""
    untried: int = 0
    """So many pods wait that kube-scheduler has not tried."""
    waiting: int = 0
    """So many pods are unschedulable."""
    retried: int = 0
    evicted: int = 0
    corrected: int = 0
    """So many annotations were updated with the CPUs that a kubelet assigned."""
    uncorrected: int = 0
    """So many of these updates failed."""
    misreported: int = 0
    """So many annotations differ from what the kubelet assigned at the moment."""
    watch_ages_seconds: Mapping[str, float] = {}
    """By resource, the time since its watch last received something from the API server."""
    rebinds: RebindValues = RebindValues()


class SchedulerMetrics:
    """The metrics of the scheduler. `render` returns them in the text format."""

    def __init__(self, verbs: Sequence[str], results: Sequence[str]) -> None:
        """Every series of `verbs` and `results` exists from the start."""
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        seconds = Histogram(
            _REQUEST_SECONDS.name,
            _REQUEST_SECONDS.text,
            _REQUEST_SECONDS.labels,
            registry=registry,
            buckets=_SECONDS,
        )
        answers = Counter(_REQUESTS.name, _REQUESTS.text, _REQUESTS.labels, registry=registry)
        build = Gauge(BUILD_INFO.name, BUILD_INFO.text, BUILD_INFO.labels, registry=registry)
        build.labels(*build_labels("scheduler")).set(1)
        self._seconds = {verb: seconds.labels(verb) for verb in verbs}
        self._answers = {
            (verb, result): answers.labels(verb, result) for verb in verbs for result in results
        }

    def follow(self, read: Callable[[], SchedulerValues]) -> None:
        """Exports with each scrape the values that `read` returns."""
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
            _gauge(_WATCH_AGE, {(each,): age for each, age in values.watch_ages_seconds.items()}),
            _gauge(_LEADER, {(): int(values.deciding)}),
            _gauge(_NODES, {(): values.nodes}),
            _gauge(_WITHOUT_AGENT, dict.fromkeys(sorted(values.without_agent.items()), 1)),
            _gauge(_UNTRIED, {(): values.untried}),
            _counter(_BIND_CONFLICTS, {(): values.lost_races}),
            _gauge(_UNSCHEDULABLE, {(): values.waiting}),
            _counter(_RETRIES, {(): values.retried}),
            _counter(_EVICTIONS, {(): values.evicted}),
            _counter(
                _STATUS_UPDATES,
                {("written",): values.corrected, ("failed",): values.uncorrected},
            ),
            _gauge(_STATUS_MISMATCHES, {(): values.misreported}),
            *_rebinds(values.rebinds),
        ]


def _rebinds(values: RebindValues) -> list[Metric]:
    return [
        _counter(_REBINDS, {(phase,): count for phase, count in values.ended.items()}),
        _counter(_REBIND_PLANS, {(): values.plans}),
        _counter(_REBIND_MOVES, {("made",): values.made, ("undone",): values.undone}),
        SummaryMetricFamily(
            _REBIND_SECONDS.name, _REBIND_SECONDS.text, values.finished, values.seconds
        ),
        _gauge(_LOCKED_NODES, {(): values.locked}),
    ]


_Values = Mapping[tuple[str, ...], float]
"""By the values of the labels."""


def _counter(series: Series, values: _Values) -> CounterMetricFamily:
    family = CounterMetricFamily(series.name, series.text, labels=series.labels)
    for labels, value in values.items():
        family.add_metric(labels, value)
    return family


def _gauge(series: Series, values: _Values) -> GaugeMetricFamily:
    family = GaugeMetricFamily(series.name, series.text, labels=series.labels)
    for labels, value in values.items():
        family.add_metric(labels, value)
    return family
