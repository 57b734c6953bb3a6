import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocate.batch import (
    MAX_CPU_MILLI,
    MAX_MEMORY_BYTES,
    BatchLimits,
    BatchResources,
    batch_limits,
)
from agent.model.pod.qos import QoS
from agent.model.snapshot import UNLIMITED, CgroupLimits

GIB = 1 << 30
FULL = BatchResources(500, 1000, GIB, 2 * GIB)


@pytest.mark.parametrize(
    ("amounts", "limits"),
    [
        (FULL, CgroupLimits(100_000, 512, 2 * GIB)),
        (BatchResources(), CgroupLimits(UNLIMITED, 2, UNLIMITED)),
        (BatchResources(cpu_request_milli=1), CgroupLimits(UNLIMITED, 2, UNLIMITED)),
        (BatchResources(cpu_request_milli=1999), CgroupLimits(UNLIMITED, 2046, UNLIMITED)),
        (BatchResources(cpu_limit_milli=1), CgroupLimits(1_000, 2, UNLIMITED)),
        (BatchResources(cpu_limit_milli=15), CgroupLimits(1_500, 2, UNLIMITED)),
        (
            BatchResources(memory_request_bytes=5, memory_limit_bytes=7),
            CgroupLimits(UNLIMITED, 2, 7),
        ),
        (
            BatchResources(MAX_CPU_MILLI, MAX_CPU_MILLI),
            CgroupLimits(10_000_000_000, 262_144, UNLIMITED),
        ),
    ],
)
def test_one_container(amounts: BatchResources, limits: CgroupLimits) -> None:
    assert batch_limits(QoS.BE, {"c": amounts}) == BatchLimits(limits, {"c": limits})


@pytest.mark.parametrize(
    ("others", "pod"),
    [
        ([FULL], CgroupLimits(200_000, 1024, 4 * GIB)),
        ([BatchResources(1000, 250, 0, None)], CgroupLimits(125_000, 1536, UNLIMITED)),
        ([BatchResources(0, None, 0, GIB)], CgroupLimits(UNLIMITED, 512, 3 * GIB)),
        ([BatchResources(), FULL], CgroupLimits(UNLIMITED, 1024, UNLIMITED)),
    ],
)
def test_a_pods_limits_are_the_sum(others: list[BatchResources], pod: CgroupLimits) -> None:
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
    assert limits.pod.quota_microseconds == quota
    assert limits.containers["c"].quota_microseconds == quota


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
    for each in limits.containers.values():
        for one, pod in (
            (each.quota_microseconds, limits.pod.quota_microseconds),
            (each.memory_limit_bytes, limits.pod.memory_limit_bytes),
        ):
            assert one is not None
            assert pod is not None
            assert pod == UNLIMITED or UNLIMITED < one <= pod
        assert each.shares is not None
        assert limits.pod.shares is not None
        assert 2 <= each.shares <= limits.pod.shares
