from __future__ import annotations

from typing import Any, Final

import pytest

from agent.allocate.colocation.eviction_pod import (
    BATCH_CPU,
    EVICTION_ENABLED,
    EVICTION_POLICY,
    EVICTION_PRIORITY,
    SUB_PRIORITY,
    USED_CPU,
    USED_MEMORY,
    eviction_pod,
)
from agent.model.pod.apiobjects import CONFIG_MIRROR, ApiContainer, ApiPod, Phase
from agent.model.pod.qos import QOS_LABEL, PriorityClass

BATCH_MEMORY: Final = "kubernetes.io/batch-memory"


def api_pod(
    labels: dict[str, str] | None = None, annotations: dict[str, str] | None = None, **other: Any
) -> ApiPod:
    resources = {BATCH_CPU: 500, BATCH_MEMORY: 1 << 30, "cpu": 100}
    return ApiPod(
        "u",
        "default",
        "p",
        "node",
        other.pop("phase", Phase.RUNNING),
        labels or {},
        annotations or {},
        "besteffort",
        0,
        containers=(ApiContainer("c", resources), ApiContainer("d", {BATCH_CPU: 1})),
        **other,
    )


def test_a_batch_pod_frees_its_requests_and_what_it_uses() -> None:
    labels = {QOS_LABEL: "BE", EVICTION_ENABLED: "true"}
    pod = eviction_pod(api_pod(labels), PriorityClass.BATCH, 250, 5 << 20)
    assert pod.frees == {
        BATCH_CPU: 501,
        BATCH_MEMORY: 1 << 30,
        USED_CPU: 250,
        USED_MEMORY: 5 << 20,
    }
    assert (pod.priority, pod.sub_priority, pod.agreed, pod.allowed) == (5500, 5500, True, None)
    assert pod.spec_priority is None


def test_a_pod_of_services_frees_what_kubernetes_counts() -> None:
    pod = eviction_pod(api_pod(priority=3), PriorityClass.PROD, None, None)
    assert pod.frees == {"cpu": 100, "memory": 0}
    assert (pod.priority, pod.batch, pod.agreed) == (3, False, False)
    assert (pod.used_cpu_milli, pod.used_memory_bytes) == (None, None)


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"annotations": {CONFIG_MIRROR: "hash"}}, "it is static"),
        ({"controlling_node": "node-uid"}, "it is static"),
        ({"priority": 2_000_001_000}, "it is critical"),
        ({"priority": 2_000_000_000}, "it is critical"),
        ({"priority": 1_999_999_999}, ""),
    ],
)
def test_static_mirror_and_critical_pods_are_spared(other: dict[str, Any], why: str) -> None:
    assert eviction_pod(api_pod(**other), PriorityClass.PROD, None, None).spared == why


@pytest.mark.parametrize(
    ("text", "allowed", "faults"),
    [
        ('["CPUEvict"]', {"CPUEvict"}, 0),
        ("[]", set(), 0),
        ("null", None, 0),
        ("bad", set(), 1),
        ('["CPUEvict"' + ',"a"' * 40 + "]", set(), 1),
    ],
)
def test_a_policy_that_can_not_be_read_allows_nothing(
    text: str, allowed: set[str] | None, faults: int
) -> None:
    pod = eviction_pod(
        api_pod(annotations={EVICTION_POLICY: text}), PriorityClass.BATCH, None, None
    )
    assert pod.allowed == allowed
    assert len(pod.faults) == faults
    assert all("default/p" in fault and EVICTION_POLICY in fault for fault in pod.faults)


@pytest.mark.parametrize(
    ("text", "number", "faults"),
    [("-5", -5, 0), ("bad", 0, 1), ("2147483648", 0, 1), ("9" * 63, 0, 1), ("", 0, 1)],
)
def test_an_eviction_priority_has_32_bits(text: str, number: int, faults: int) -> None:
    pod = eviction_pod(
        api_pod(annotations={EVICTION_PRIORITY: text}), PriorityClass.BATCH, None, None
    )
    assert (pod.eviction_priority, len(pod.faults)) == (number, faults)


def test_a_sub_priority_that_is_no_number_counts_as_none() -> None:
    def sub_priority(text: str) -> int:
        labels = {SUB_PRIORITY: text}
        return eviction_pod(api_pod(labels), PriorityClass.MID, None, None).sub_priority

    assert (sub_priority("7"), sub_priority("bad")) == (7, 7500)


def test_deleted_and_ended_pods_are_told_apart() -> None:
    deleted = eviction_pod(api_pod(deleted=True), PriorityClass.MID, None, None)
    ended = eviction_pod(api_pod(phase=Phase.FAILED), PriorityClass.MID, None, None, asked=True)
    assert (deleted.leaving, deleted.running, deleted.asked) == (True, True, False)
    assert (ended.leaving, ended.running, ended.asked) == (False, False, True)
