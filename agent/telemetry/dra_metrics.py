"""The metrics of the DRA driver: an agent without it does not load them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from agent.telemetry.exposition import Declarations, Histogram, Histograms, Metric, single
from agent.telemetry.metrics import AgentMetrics

PREPARATION_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
"""The bounds of the histogram."""
_DRA: Final = Declarations("topolet_dra")
_CLAIMS: Final = _DRA.gauge("prepared_claims", "ResourceClaims that have CPUs of the node.")
_CPUS: Final = _DRA.gauge("claimed_cpus", "CPUs of prepared ResourceClaims.")
_SECONDS: Final = _DRA.histogram(
    "preparation_seconds", "Time of a preparation, without those of claims that have their CPUs."
)
_REFUSED: Final = _DRA.counter(
    "refused_preparations", "Preparations that the agent refused, by reason.", "reason"
)
_EVICTED: Final = _DRA.counter(
    "evicted_pods", "Pods that the agent evicted because it can't prepare their claims."
)
_WRITES: Final = _DRA.counter("slice_writes", "Writes and removals of ResourceSlices.")
_LOW: Final = _DRA.gauge(
    "pods_below_claims", "Pods whose CPU request is below the CPUs of their claims."
)
DECLARED: Final = _DRA.all


class DraCounts(NamedTuple):
    """What the driver counts."""

    claims: int
    cpus: int
    seconds: Histogram
    refused: Mapping[str, int]
    evicted: int
    slice_writes: int
    low_requests: int


def follow_dra(metrics: AgentMetrics, read: Callable[[], DraCounts]) -> None:
    """Exports with each scrape. To be called once."""

    def values() -> Iterable[Metric | Histograms]:
        counts = read()
        yield single(_CLAIMS, counts.claims)
        yield single(_CPUS, counts.cpus)
        yield Histograms(_SECONDS, {(): counts.seconds})
        yield Metric(_REFUSED, {(kind,): number for kind, number in counts.refused.items()})
        yield single(_EVICTED, counts.evicted)
        yield single(_WRITES, counts.slice_writes)
        yield single(_LOW, counts.low_requests)

    metrics.add(values)
