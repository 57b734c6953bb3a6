from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.allocate.batch import (
    EXTENDED_RESOURCE_SPEC,
    MAX_CPU_MILLI,
    MAX_MEMORY_BYTES,
    BatchLimits,
    BatchResources,
    batch_excess,
    batch_limits,
    batch_resources,
    cpu_request_milli,
)
from agent.model.linux_resources import NO_QUOTA, UNLIMITED, CpuQuota, LinuxResources
from agent.model.pod.annotations import AnnotationError
from agent.model.pod.qos import QoS

CPU, MEMORY = "kubernetes.io/batch-cpu", "kubernetes.io/batch-memory"


def of(**containers: object) -> dict[str, str]:
    return {EXTENDED_RESOURCE_SPEC: json.dumps({"containers": containers})}


def test_a_pod_as_the_webhook_writes_it() -> None:
    annotations = of(
        main={
            "limits": {CPU: "1000", MEMORY: "1Gi"},
            "requests": {CPU: "500", MEMORY: "512Mi"},
        },
        side={"requests": {CPU: "1k"}},
    )
    result = batch_resources(annotations)
    assert result == {
        "main": BatchResources(500, 1000, 512 << 20, 1 << 30),
        "side": BatchResources(1000, None, 0, None),
    }
    assert cpu_request_milli(result) == 1500


@pytest.mark.parametrize(
    ("amounts", "result"),
    [
        ({}, BatchResources()),
        (None, BatchResources()),
        ({"limits": None, "requests": {}}, BatchResources()),
        ({"limits": {CPU: 2000, MEMORY: 1048576}}, BatchResources(0, 2000, 0, 1048576)),
        ({"limits": {CPU: "0", MEMORY: "0"}}, BatchResources()),
        ({"limits": {CPU: "1.5"}}, BatchResources(cpu_limit_milli=2)),
        ({"limits": {"cpu": "1", "memory": "1"}}, BatchResources()),
        ({"limits": {"koordinator.sh/batch-cpu": "7"}}, BatchResources(cpu_limit_milli=7)),
        (
            {"limits": {"koordinator.sh/batch-cpu": "7", CPU: "8"}},
            BatchResources(cpu_limit_milli=8),
        ),
    ],
)
def test_amounts(amounts: object, result: BatchResources) -> None:
    assert batch_resources(of(c=amounts)) == {"c": result}


@pytest.mark.parametrize("text", [None, "", "null", "{}", '{"containers":null}'])
def test_a_pod_without_batch_resources(text: str | None) -> None:
    annotations = {} if text is None else {EXTENDED_RESOURCE_SPEC: text}
    assert batch_resources(annotations) == {}
    assert cpu_request_milli({}) == 0


@pytest.mark.parametrize(
    ("amounts", "reason"),
    [
        ({"limits": {CPU: "-1"}}, rf"containers\.c\.limits\.{CPU}: '-1' is below zero"),
        ({"requests": {CPU: "many"}}, rf"containers\.c\.requests\.{CPU}: 'many' is not a quantity"),
        ({"requests": {CPU: "100000001"}}, rf"{CPU}: '100000001' is more than 100000000"),
        ({"limits": {MEMORY: "9e99"}}, rf"containers\.c\.limits\.{MEMORY}: '9e99' is more than"),
        ({"limits": {MEMORY: "-1Gi"}}, "below zero"),
        ({"limits": {CPU: True}}, r"containers"),
        ({"limits": [CPU]}, "object"),
        ("all", "object"),
    ],
)
def test_bad_amounts_are_named(amounts: object, reason: str) -> None:
    with pytest.raises(AnnotationError, match=reason) as error:
        batch_resources(of(c=amounts))
    assert error.value.key == EXTENDED_RESOURCE_SPEC
    assert str(error.value).startswith(f"annotation {EXTENDED_RESOURCE_SPEC}: ")


SPEC = {"main": ({CPU: 500, "koordinator.sh/batch-memory": 10}, {CPU: 1000}), "empty": ({}, {})}


@pytest.mark.parametrize(
    ("name", "amounts", "excess"),
    [
        ("main", BatchResources(500, 1000, 10, 20), ""),
        ("main", BatchResources(0, 1, 0, None), ""),
        ("main", BatchResources(501, 1000), f"requests.{CPU}: 501 is more than 500"),
        ("main", BatchResources(500, 1001), f"limits.{CPU}: 1001 is more than 1000"),
        ("main", BatchResources(500, None), f"limits.{CPU}: no limit is more than 1000"),
        ("main", BatchResources(0, 1000, 11), f"requests.{MEMORY}: 11 is more than 10"),
        ("empty", BatchResources(0, 1, 0, 1), ""),
        ("empty", BatchResources(1), f"requests.{CPU}: 1 is more than 0"),
        ("other", BatchResources(9, 9, 9, 9), ""),
    ],
)
def test_the_annotation_names_no_more_than_the_spec(
    name: str, amounts: BatchResources, excess: str
) -> None:
    found = batch_excess({name: amounts}, SPEC)
    assert found == (f"containers.{name}.{excess}, which the container has" if excess else "")


GIB = 1 << 30
FULL = BatchResources(500, 1000, GIB, 2 * GIB)


LEAST = LinuxResources(shares=2, quota=NO_QUOTA, memory_limit_bytes=UNLIMITED)


@pytest.mark.parametrize(
    ("amounts", "limits"),
    [
        (FULL, LinuxResources(shares=512, quota=CpuQuota(100_000), memory_limit_bytes=2 * GIB)),
        (BatchResources(), LEAST),
        (BatchResources(cpu_request_milli=1), LEAST),
        (BatchResources(cpu_request_milli=1999), replace(LEAST, shares=2046)),
        (BatchResources(cpu_limit_milli=1), replace(LEAST, quota=CpuQuota(1_000))),
        (BatchResources(cpu_limit_milli=15), replace(LEAST, quota=CpuQuota(1_500))),
        (
            BatchResources(memory_request_bytes=5, memory_limit_bytes=7),
            replace(LEAST, memory_limit_bytes=7),
        ),
        (
            BatchResources(MAX_CPU_MILLI, MAX_CPU_MILLI),
            replace(LEAST, shares=262_144, quota=CpuQuota(10_000_000_000)),
        ),
    ],
)
def test_one_container(amounts: BatchResources, limits: LinuxResources) -> None:
    assert batch_limits(QoS.BE, {"c": amounts}) == BatchLimits(limits, {"c": limits})


@pytest.mark.parametrize(
    ("others", "pod"),
    [
        ([FULL], LinuxResources(shares=1024, quota=CpuQuota(200_000), memory_limit_bytes=4 * GIB)),
        (
            [BatchResources(1000, 250, 0, None)],
            LinuxResources(shares=1536, quota=CpuQuota(125_000), memory_limit_bytes=UNLIMITED),
        ),
        (
            [BatchResources(0, None, 0, GIB)],
            LinuxResources(shares=512, quota=NO_QUOTA, memory_limit_bytes=3 * GIB),
        ),
        (
            [BatchResources(), FULL],
            LinuxResources(shares=1024, quota=NO_QUOTA, memory_limit_bytes=UNLIMITED),
        ),
    ],
)
def test_a_pods_limits_are_the_sum(others: list[BatchResources], pod: LinuxResources) -> None:
    containers = {"c": FULL} | {f"o{index}": each for index, each in enumerate(others)}
    limits = batch_limits(QoS.BE, containers)
    assert limits is not None
    assert limits.pod == pod
    assert list(limits.containers) == list(containers)


@pytest.mark.parametrize(
    ("ratio", "milli", "quota"),
    [
        (1.0, 1000, 100_000),
        (0.5, 1000, 100_000),
        (1.2, 1000, 83_334),
        (2.0, 1000, 50_000),
        (3.0, 20, 1_000),
        (float("inf"), 1000, 1_000),
        (float("nan"), 1000, 100_000),
        (2.0, None, UNLIMITED),
    ],
)
def test_faster_cpus_need_less_time(ratio: float, milli: int | None, quota: int) -> None:
    limits = batch_limits(QoS.BE, {"c": BatchResources(cpu_limit_milli=milli)}, ratio)
    assert limits is not None
    assert limits.pod.quota == limits.containers["c"].quota == CpuQuota(quota)


@pytest.mark.parametrize("qos", [each for each in QoS if each is not QoS.BE])
def test_other_pods_have_no_batch_limits(qos: QoS) -> None:
    assert batch_limits(qos, {"c": FULL}) is None


def test_a_be_pod_without_amounts_has_no_batch_limits() -> None:
    assert batch_limits(QoS.BE, {}) is None


amounts = st.builds(
    BatchResources,
    st.integers(0, MAX_CPU_MILLI),
    st.none() | st.integers(1, MAX_CPU_MILLI),
    st.just(0),
    st.none() | st.integers(1, MAX_MEMORY_BYTES),
)


@given(st.dictionaries(st.text(min_size=1), amounts, min_size=1), st.floats(1, 10))
def test_no_containers_limit_exceeds_its_pods(
    containers: dict[str, BatchResources], ratio: float
) -> None:
    """Otherwise the kernel (v1) would refuse a container's quota."""
    limits = batch_limits(QoS.BE, containers, ratio)
    assert limits is not None
    assert limits.pod.quota is not None
    for each in limits.containers.values():
        assert each.quota is not None
        for one, pod in (
            (each.quota.microseconds, limits.pod.quota.microseconds),
            (each.memory_limit_bytes, limits.pod.memory_limit_bytes),
        ):
            assert one is not None
            assert pod is not None
            assert pod == UNLIMITED or UNLIMITED < one <= pod
        assert each.shares is not None
        assert limits.pod.shares is not None
        assert 2 <= each.shares <= limits.pod.shares
