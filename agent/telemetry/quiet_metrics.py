"""The metrics of quiet CPUs: an agent without them does not load these."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, NamedTuple

from agent.telemetry.exposition import Declarations, Metric, single
from agent.telemetry.metrics import AgentMetrics

_QUIET: Final = Declarations("topolet")
_FILES: Final = _QUIET.gauge(
    "quiet_files",
    "Files of the machine that a feature of quiet CPUs has, or would have if it acted.",
    "feature",
)
_UNSUPPORTED: Final = _QUIET.gauge(
    "quiet_unsupported",
    "1 for a feature that an owner of CPUs asks for and this machine can't have.",
    "feature",
)
_FAILED: Final = _QUIET.gauge(
    "quiet_failed_files", "Files that quiet CPUs could not write in the last second."
)
_OWNERS: Final = _QUIET.gauge("quiet_owners", "Owners of CPUs that ask for a feature.", "feature")

DECLARED: Final = _QUIET.all


class QuietMeasures(NamedTuple):
    """What the last second has brought."""

    files: Mapping[str, int]
    """The number of files by feature."""
    unsupported: Collection[str]
    """The features that can't have what an owner asks for."""
    failed: int
    """The number of files that could not be written."""
    owners: Mapping[str, int]
    """The number of owners that ask, by feature."""


def follow_quiet(metrics: AgentMetrics, read: Callable[[], QuietMeasures]) -> None:
    """Exports these values with each scrape. To be called once."""

    def values() -> Iterable[Metric]:
        measures = read()
        return (
            Metric(_FILES, {(name,): number for name, number in measures.files.items()}),
            Metric(_UNSUPPORTED, {(name,): 1 for name in measures.unsupported}),
            single(_FAILED, measures.failed),
            Metric(_OWNERS, {(name,): number for name, number in measures.owners.items()}),
        )

    metrics.add(values)
