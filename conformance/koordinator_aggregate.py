"""koordlet's aggregation of the samples of one metric."""

from __future__ import annotations

import math
from typing import Any, Final

from agent.usage.series import aggregate
from conformance.files import CaseVerdict, Judge

_TOLERANCE: Final = 1e-9


def judge(case: dict[str, Any]) -> CaseVerdict:
    times = [milliseconds / 1000 for milliseconds, _ in case["points"]]
    aggregated = aggregate(times, [float(value) for _, value in case["points"]])
    actual = {
        name: getattr(aggregated, field) if aggregated else None for name, field in _FIELDS.items()
    }
    actual["count"] = aggregated.count if aggregated else 0
    expected = case["expect"]
    agrees = expected.keys() == actual.keys() and all(
        _equal(value, expected[name]) for name, value in actual.items()
    )
    return CaseVerdict(agrees, actual)


_FIELDS: Final = {
    "avg": "average",
    "p50": "p50",
    "p90": "p90",
    "p95": "p95",
    "p99": "p99",
    "last": "last",
}


def _equal(actual: float | None, expected: float | None) -> bool:
    if actual is None or expected is None:
        return actual is expected
    return math.isclose(actual, expected, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)


JUDGES: Final = {"koordinator-aggregate": Judge(judge)}
