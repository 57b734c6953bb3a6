"""The spec and the status of NodeMetrics."""

from __future__ import annotations

from typing import Any

import pytest

from agent.model.objects import ObjectError
from agent.model.pod.apiobjects import ApiPod, Phase
from agent.model.pod.qos import PRIORITY_CLASS_LABEL, QOS_LABEL, PriorityClass, QoS
from agent.usage.gpus import UsedGpu
from agent.usage.node_metric import (
    CollectPolicy,
    NodeMemoryPolicy,
    UsedApplication,
    UsedNode,
    UsedPod,
    collect_policy,
    duration_text,
    priority_class_of_pod,
    qos_of_pod,
    status,
)
from agent.usage.prediction import Peak, Prediction
from agent.usage.sampler import Used
from agent.usage.series import Aggregate, aggregate


def written(**policy: Any) -> dict[str, Any]:
    return {"metadata": {"name": "n"}, "spec": {"metricCollectPolicy": policy}}


@pytest.mark.parametrize(
    ("body", "policy"),
    [
        ({"metadata": {"name": "n"}}, CollectPolicy()),
        ({"metadata": {"name": "n"}, "spec": {}}, CollectPolicy()),
        (
            written(
                aggregateDurationSeconds=600,
                reportIntervalSeconds=30,
                nodeAggregatePolicy={"durations": ["1m30s", "1h", "45s"]},
                nodeMemoryCollectPolicy="usageWithPageCache",
            ),
            CollectPolicy(600, 30, (90, 3600, 45), NodeMemoryPolicy.WITH_PAGE_CACHE),
        ),
        (written(nodeAggregatePolicy={"durations": []}), CollectPolicy(durations=())),
        (written(nodeAggregatePolicy={}), CollectPolicy()),
    ],
)
def test_what_a_spec_leaves_out_has_the_defaults(
    body: dict[str, Any], policy: CollectPolicy
) -> None:
    assert collect_policy(body) == policy


@pytest.mark.parametrize(
    ("policy", "field"),
    [
        ({"reportIntervalSeconds": 0}, "reportIntervalSeconds"),
        ({"aggregateDurationSeconds": "5m"}, "aggregateDurationSeconds"),
        ({"nodeMemoryCollectPolicy": "all"}, "nodeMemoryCollectPolicy"),
        ({"nodeAggregatePolicy": {"durations": ["5"]}}, "durations: '5' is not a duration"),
        ({"nodeAggregatePolicy": {"durations": ["0s"]}}, "durations: '0s' is not a duration"),
        ({"nodeAggregatePolicy": {"durations": ["5m"] * 17}}, "durations"),
    ],
)
def test_a_bad_value_is_named(policy: dict[str, Any], field: str) -> None:
    with pytest.raises(ObjectError, match=f"NodeMetric n.*{field}"):
        collect_policy(written(**policy))


@pytest.mark.parametrize(
    ("seconds", "text"), [(300, "5m0s"), (1800, "30m0s"), (45, "45s"), (3661, "1h1m1s")]
)
def test_durations_are_written_as_go_does(seconds: int, text: str) -> None:
    assert duration_text(seconds) == text


def used(cpus: float | None = None, memory_bytes: float | None = None, span: float = 300) -> Used:
    def constant(value: float | None) -> Aggregate | None:
        return None if value is None else aggregate([0.0, span], [value, value])

    return Used(constant(cpus), constant(memory_bytes))


def test_a_status() -> None:
    values = UsedNode(
        used(3.4567, 10 << 30),
        used(0.5, 1000),
        ((300, used(3.4567, 10 << 30), used(0.5, 1000)), (1800, used(3.0), used(0.5))),
        {1: used(1.0, 2048), 0: used(2.4567)},
        (
            UsedPod("ns", "b", "koord-prod", "LSR", used(2.0, 1 << 20)),
            UsedPod("ns", "a", "koord-batch", "BE", used(0.0019)),
            UsedPod("ns", "without-values", "koord-prod", "LS", used()),
        ),
    )
    node = {"resources": {"cpu": "3456m", "memory": "10Gi"}}
    system = {"resources": {"cpu": "500m", "memory": "1000"}}
    names = ("avg", "p50", "p90", "p95", "p99")
    assert status(values, "2026-01-01T00:00:00Z") == {
        "updateTime": "2026-01-01T00:00:00Z",
        "nodeMetric": {
            "nodeUsage": node,
            "systemUsage": system,
            "aggregatedNodeUsages": [
                {"usage": dict.fromkeys(names, node), "duration": "5m0s"},
                {"usage": {}, "duration": "30m0s"},
            ],
            "aggregatedSystemUsages": [
                {"usage": dict.fromkeys(names, system), "duration": "5m0s"},
                {"usage": {}, "duration": "30m0s"},
            ],
            "numaUsages": [
                {"numaNodeID": 0, "nodeUsage": {"resources": {"cpu": "2456m"}}},
                {"numaNodeID": 1, "nodeUsage": {"resources": {"cpu": "1", "memory": "2Ki"}}},
            ],
        },
        "hostApplicationMetric": [],
        "podsMetric": [
            {
                "name": "a",
                "namespace": "ns",
                "podUsage": {"resources": {"cpu": "1m"}},
                "priority": "koord-batch",
                "qos": "BE",
            },
            {
                "name": "b",
                "namespace": "ns",
                "podUsage": {"resources": {"cpu": "2", "memory": "1Mi"}},
                "priority": "koord-prod",
                "qos": "LSR",
            },
        ],
    }


@pytest.mark.parametrize(
    ("labels", "kube_class", "priority", "qos", "priority_class"),
    [
        ({}, "guaranteed", None, "LSR", "koord-prod"),
        ({}, "burstable", 5500, "LS", "koord-batch"),
        ({}, "besteffort", None, "BE", "koord-batch"),
        ({QOS_LABEL: "LSE"}, "besteffort", 1, "LSE", "koord-prod"),
        ({QOS_LABEL: "other"}, "burstable", 7000, "LS", "koord-mid"),
        ({PRIORITY_CLASS_LABEL: "koord-free"}, "burstable", 9500, "LS", "koord-free"),
    ],
)
def test_the_classes_of_a_pod_are_koordlets(
    labels: dict[str, str], kube_class: Any, priority: int | None, qos: str, priority_class: str
) -> None:
    pod = ApiPod("u", "ns", "p", "n", Phase.RUNNING, labels, {}, kube_class, 0, priority=priority)
    assert (qos_of_pod(pod), priority_class_of_pod(pod)) == (qos, priority_class)


def test_what_prod_pods_leave_is_reported_once_it_is_known() -> None:
    used_node = UsedNode(used(), used(), prod=Prediction(Peak(2500, 3 << 30), Peak(100, 0)))
    reported = status(used_node, "")
    peak = {"resource": {"resources": {"cpu": "2500m", "memory": "3Gi"}}}
    assert reported["prodPeakMetric"] == peak
    spare = {"resource": {"resources": {"cpu": "100m", "memory": "0"}}}
    assert reported["prodReclaimableMetric"] == spare
    assert "prodPeakMetric" not in status(UsedNode(used(), used()), "")


def test_applications_of_the_host_have_their_use_and_classes() -> None:
    applications = (
        UsedApplication("web", PriorityClass.PROD, QoS.LS, used(1.0)),
        UsedApplication("agent", None, None, used(1.0)),
        UsedApplication("gone", None, None, Used()),
    )
    reported = status(UsedNode(used(), used(), applications=applications), "")
    first, second = reported["hostApplicationMetric"]
    assert (first["name"], first.keys()) == ("agent", {"name", "usage"})
    assert second == {
        "name": "web",
        "usage": first["usage"],
        "priority": "koord-prod",
        "qos": "LS",
    }


def test_gpus_are_in_every_aggregation() -> None:
    samples = aggregate([0.0, 200.0], [400.0, 600.0])
    gpu = UsedGpu("GPU-a", 3, aggregate([0.0, 200.0], [10.0, 33.0]), samples, 1000)
    unknown = UsedGpu("GPU-b", 4)
    of_node = Used(gpus=(gpu, unknown))
    pod = UsedPod("ns", "p", "", "LS", Used(gpus=(UsedGpu("GPU-a", 3, memory_bytes=samples),)))
    reported = status(
        UsedNode(of_node, Used(), ((300, of_node, Used()), (600, of_node, Used())), {}, (pod,)), ""
    )

    def device(core: str, memory: str, ratio: str) -> dict[str, Any]:
        resources = {
            "koordinator.sh/gpu-core": core,
            "koordinator.sh/gpu-memory": memory,
            "koordinator.sh/gpu-memory-ratio": ratio,
        }
        return {"id": "GPU-a", "minor": 3, "type": "gpu", "resources": resources}

    metric = reported["nodeMetric"]
    assert metric["nodeUsage"] == {"devices": [device("21", "500", "50")]}
    recent, long = metric["aggregatedNodeUsages"]
    assert recent["usage"]["p50"] == {"devices": [device("10", "400", "40")]}
    assert long["usage"] == {}
    of_pod = reported["podsMetric"][0]["podUsage"]["devices"]
    assert of_pod[0]["resources"] == {"koordinator.sh/gpu-memory": "500"}
