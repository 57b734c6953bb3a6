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
from agent.model.linux_resources import NO_QUOTA, UNLIMITED, CpuQuota, LinuxResources
from agent.model.pod.qos import QoS

GIB = 1 << 30
FULL = BatchResources(500, 1000, GIB, 2 * GIB)


@pytest.mark.parametrize(
    ("amounts", "limits"),
    [
        (FULL, LinuxResources(shares=512, quota=CpuQuota(100_000), memory_limit_bytes=2 * GIB)),
        (BatchResources(), LinuxResources(shares=2, quota=NO_QUOTA, memory_limit_bytes=UNLIMITED)),
        (
            BatchResources(cpu_request_milli=1),
            LinuxResources(shares=2, quota=NO_QUOTA, memory_limit_bytes=UNLIMITED),
        ),
        (
            BatchResources(cpu_request_milli=1999),
            LinuxResources(shares=2046, quota=NO_QUOTA, memory_limit_bytes=UNLIMITED),
        ),
        (
            BatchResources(cpu_limit_milli=1),
            LinuxResources(shares=2, quota=CpuQuota(1_000), memory_limit_bytes=UNLIMITED),
        ),
        (
            BatchResources(cpu_limit_milli=15),
            LinuxResources(shares=2, quota=CpuQuota(1_500), memory_limit_bytes=UNLIMITED),
        ),
        (
            BatchResources(memory_request_bytes=5, memory_limit_bytes=7),
            LinuxResources(shares=2, quota=NO_QUOTA, memory_limit_bytes=7),
        ),
        (
            BatchResources(MAX_CPU_MILLI, MAX_CPU_MILLI),
            LinuxResources(
                shares=262_144, quota=CpuQuota(10_000_000_000), memory_limit_bytes=UNLIMITED
            ),
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
