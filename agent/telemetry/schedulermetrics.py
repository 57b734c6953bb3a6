"""The scheduler's metrics."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from agent.telemetry.exposition import (
    BUILD_INFO,
    Declarations,
    Histogram,
    Histograms,
    Labels,
    Metric,
    Numbers,
    Summary,
    build_labels,
    process_metrics,
    render,
    single,
)

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
    """What the rebind controller has done."""

    ended: Mapping[str, int] = {}
    """RebindResources by phase."""
    plans: int = 0
    """Those that began to move pods."""
    made: int = 0
    """Writes of annotations that made a move."""
    undone: int = 0
    """Writes of annotations that undid one."""
    finished: int = 0
    """Plans that ended."""
    seconds: float = 0.0
    """The time of these."""
    locked: int = 0
    """Nodes that take no pods that need CPUs or devices now."""


class SchedulerValues(msgspec.Struct, frozen=True):
    """The values of a scrape."""

    deciding: bool
    nodes: int
    lost_races: int
    """So many binds failed because another pod had taken the node's room since the filter."""
    unable_nodes: Mapping[str, str] = {}
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
    """The metrics of the scheduler. Every series of `verbs` and `results` exists from the start.
    `render` returns them in the text format."""

    def __init__(self, verbs: Sequence[str], results: Sequence[str]) -> None:
        self._lock = threading.Lock()
        self._seconds: dict[Labels, Histogram] = {(verb,): Histogram(_SECONDS) for verb in verbs}
        self._answers = Numbers(_REQUESTS)
        for verb in verbs:
            for result in results:
                self._answers.set(0, verb, result)
        self._read: Callable[[], SchedulerValues] | None = None

    def follow(self, read: Callable[[], SchedulerValues]) -> None:
        """Exports with each scrape the values that `read` returns."""
        self._read = read

    def answered(self, verb: str, result: str, seconds: float) -> None:
        """Counts the answer to a call."""
        with self._lock:
            self._seconds[verb,].observe(seconds)
        self._answers.inc(verb, result)

    def render(self) -> bytes:
        return render(
            [
                *process_metrics(),
                Metric(BUILD_INFO, {build_labels("scheduler"): 1}),
                Histograms(_REQUEST_SECONDS, self._seconds),
                self._answers.metric,
                *(_metrics(self._read()) if self._read else ()),
            ]
        ).encode()


def _metrics(values: SchedulerValues) -> list[Metric | Summary]:
    rebinds = values.rebinds
    return [
        Metric(_WATCH_AGE, {(name,): age for name, age in values.watch_ages_seconds.items()}),
        single(_LEADER, int(values.deciding)),
        single(_NODES, values.nodes),
        Metric(_WITHOUT_AGENT, dict.fromkeys(values.unable_nodes.items(), 1)),
        single(_UNTRIED, values.untried),
        single(_BIND_CONFLICTS, values.lost_races),
        single(_UNSCHEDULABLE, values.waiting),
        single(_RETRIES, values.retried),
        single(_EVICTIONS, values.evicted),
        Metric(_STATUS_UPDATES, {("written",): values.corrected, ("failed",): values.uncorrected}),
        single(_STATUS_MISMATCHES, values.misreported),
        Metric(_REBINDS, {(phase,): count for phase, count in rebinds.ended.items()}),
        single(_REBIND_PLANS, rebinds.plans),
        Metric(_REBIND_MOVES, {("made",): rebinds.made, ("undone",): rebinds.undone}),
        Summary(_REBIND_SECONDS, rebinds.finished, rebinds.seconds),
        single(_LOCKED_NODES, rebinds.locked),
    ]
