"""koordlet's prediction: the histograms of its models, and what a node reports for prod."""

from __future__ import annotations

import datetime
import json
import math
from typing import Any, Final

from agent.model.pod.apiobjects import decode_node, from_object
from agent.model.pod.qos import PriorityClass
from agent.model.pod.resource_request import pod_requests
from agent.usage.node_metric import priority_class_of_pod
from agent.usage.prediction import (
    CPU_BUCKETS,
    MEMORY_BUCKETS,
    DecayingHistogram,
    Peak,
    PredictedPod,
    predicted,
)
from conformance.files import CaseVerdict, Judge

_PERCENTILES: Final = {"p60": 0.6, "p90": 0.9, "p95": 0.95, "p98": 0.98, "max": 1.0}
_TOLERANCE: Final = 1e-9


def judge(case: dict[str, Any]) -> CaseVerdict:
    return _histogram(case) if case["op"] == "histogram" else _peak(case)


def _histogram(case: dict[str, Any]) -> CaseVerdict:
    buckets = CPU_BUCKETS if case["kind"] == "cpu" else MEMORY_BUCKETS
    histogram, saved_after = DecayingHistogram(buckets), case.get("restoreAfter")
    actual: dict[str, Any] = {}
    for number, (at, value) in enumerate((*case["samples"], (None, None))):
        if number == saved_after:
            saved = histogram.checkpoint()
            histogram = DecayingHistogram.restored(buckets, saved)
            reference = datetime.datetime.fromtimestamp(saved.reference_seconds, datetime.UTC)
            actual["checkpoint"] = {
                "referenceTimestamp": reference.isoformat().replace("+00:00", "Z"),
                "bucketWeights": {str(key): each for key, each in saved.bucket_weights.items()},
                "totalWeight": saved.total_weight,
            }
        if at is not None:
            histogram.add(value, at)
    actual |= {name: histogram.percentile(share) for name, share in _PERCENTILES.items()}
    return CaseVerdict(_equal(actual, case["expect"]), actual)


def _equal(actual: Any, expected: Any) -> bool:
    if isinstance(actual, dict) and isinstance(expected, dict):
        return actual.keys() == expected.keys() and all(
            _equal(actual[name], expected[name]) for name in actual
        )
    if isinstance(actual, float) and isinstance(expected, int | float):
        return math.isclose(actual, expected, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)
    return bool(actual == expected)


def _peak(case: dict[str, Any]) -> CaseVerdict:
    models = {uid: Peak(*amounts) for uid, amounts in case["predictions"].items()}
    pods = []
    for written in case["pods"]:
        pod = from_object(written["pod"])
        if priority_class_of_pod(pod) == PriorityClass.PROD:
            pods.append(
                PredictedPod(
                    Peak.of(pod_requests(pod)),
                    models.get(pod.uid),
                    float(written["ageSeconds"]),
                    ends=written["deleting"] or pod.terminal,
                )
            )
    node = decode_node(json.dumps(case["node"]).encode())
    prediction = predicted(Peak.of(node.allocatable), pods, models)
    actual: Any = {name: {"error": True} for name in ("peak", "reclaimable")}
    if prediction is not None:
        actual = {
            name: {"cpuMilli": each.cpu_milli, "memory": each.memory_bytes}
            for name, each in (("peak", prediction.peak), ("reclaimable", prediction.reclaimable))
        }
    return CaseVerdict(actual == case["expect"], actual)


JUDGES: Final = {"koordinator-predict": Judge(judge)}
