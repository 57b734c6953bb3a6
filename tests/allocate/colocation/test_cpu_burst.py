"""Invariants of the strategy; koordlet's answers are in tests/conformance."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.allocate.colocation.cpu_burst import (
    BurstContainer,
    BurstPod,
    CpuValues,
    PodCpuValues,
    SharedUse,
    SharePool,
    pod_burst,
    share_pool,
    token_capacity,
    tokens,
)
from agent.model.linux_resources import LEAST_QUOTA_MICROSECONDS, UNLIMITED, CpuQuota
from agent.model.node_slo import CpuBurst

AUTO = CpuBurst(policy="auto")
MICROSECONDS = st.integers(1, 10**7)
CONTAINERS = st.builds(
    BurstContainer,
    st.none() | MICROSECONDS,
    st.none() | st.just(UNLIMITED) | MICROSECONDS,
    st.booleans(),
    st.booleans(),
)
PODS = st.builds(
    BurstPod,
    st.none() | MICROSECONDS,
    st.dictionaries(st.sampled_from("abcd"), CONTAINERS),
)
STRATEGIES = st.builds(
    CpuBurst,
    st.sampled_from(("none", "cpuBurstOnly", "cfsQuotaBurstOnly", "auto")),
    st.integers(1, 10_000),
    st.integers(100, 1_000),
)
POOLS = st.sampled_from(SharePool)


def micros(values: CpuValues) -> int:
    assert values.quota is not None
    return values.quota.microseconds


@given(STRATEGIES, POOLS, PODS)
def test_a_kernel_takes_the_values(strategy: CpuBurst, pool: SharePool, pod: BurstPod) -> None:
    """It refuses a burst above its quota, also above that of the limit if another process writes
    it, and v1 a quota above that of the parent."""
    wanted = pod_burst(strategy, pool, pod)
    for name, container in pod.containers.items():
        of_limit = max(LEAST_QUOTA_MICROSECONDS, container.limit_microseconds or 0)
        assert wanted.containers[name].burst_microseconds <= of_limit
    for group in (wanted.pod, *wanted.containers.values()):
        assert group.burst_microseconds >= 0
        if group.quota is not None:
            assert group.burst_microseconds <= group.quota.microseconds
            assert group.quota.microseconds >= LEAST_QUOTA_MICROSECONDS
            if wanted.pod.quota is not None:
                assert group.quota.microseconds <= wanted.pod.quota.microseconds


@given(STRATEGIES, POOLS, PODS)
def test_a_quota_is_never_below_its_limit(
    strategy: CpuBurst, pool: SharePool, pod: BurstPod
) -> None:
    wanted = pod_burst(strategy, pool, pod)
    for name, container in pod.containers.items():
        limit = container.limit_microseconds
        if limit is None or container.quota_microseconds is None:
            assert wanted.containers[name].quota is None
        else:
            quota = micros(wanted.containers[name])
            least = max(LEAST_QUOTA_MICROSECONDS, limit)
            assert least <= quota <= least * strategy.cfs_quota_burst_percent // 100
    if pod.limit_microseconds is None:
        assert wanted.pod.quota is None
    else:
        assert micros(wanted.pod) >= pod.limit_microseconds


@given(POOLS, PODS)
def test_a_strategy_that_is_off_leaves_the_limits(pool: SharePool, pod: BurstPod) -> None:
    wanted = pod_burst(CpuBurst(), pool, pod)
    for name, values in wanted.containers.items():
        assert values.burst_microseconds == 0
        limit = pod.containers[name].limit_microseconds
        assert values.quota in (None, CpuQuota(max(LEAST_QUOTA_MICROSECONDS, limit or 0)))
    assert wanted.pod.burst_microseconds == 0


@given(STRATEGIES, POOLS, PODS)
def test_a_node_without_spare_cpu_raises_no_quota(
    strategy: CpuBurst, pool: SharePool, pod: BurstPod
) -> None:
    wanted = pod_burst(strategy, pool, pod)
    for name, container in pod.containers.items():
        present = container.quota_microseconds
        if pool is not SharePool.IDLE and wanted.containers[name].quota is not None:
            least = max(LEAST_QUOTA_MICROSECONDS, container.limit_microseconds or 0)
            assert micros(wanted.containers[name]) <= max(present or 0, least)


def rounds(count: int, pool: SharePool, pod: BurstPod) -> PodCpuValues:
    for _ in range(count):
        wanted = pod_burst(AUTO, pool, pod)
        containers = {
            name: replace(container, quota_microseconds=micros(wanted.containers[name]))
            for name, container in pod.containers.items()
        }
        pod = replace(pod, containers=containers)
    return wanted


def test_a_throttled_container_gets_more_until_the_node_is_busy() -> None:
    still = BurstContainer(100_000, 100_000)
    pod = BurstPod(200_000, {"a": replace(still, throttled=True), "b": still})
    first = rounds(1, SharePool.IDLE, pod)
    assert (micros(first.containers["a"]), micros(first.pod)) == (120_000, 220_000)
    last = rounds(7, SharePool.IDLE, pod)
    assert (micros(last.containers["a"]), micros(last.pod)) == (300_000, 400_000)
    assert last == rounds(8, SharePool.IDLE, pod)
    high = replace(pod, containers={"a": replace(still, quota_microseconds=300_000), "b": still})
    assert micros(rounds(1, SharePool.OVERLOAD, high).containers["a"]) == 240_000
    assert micros(rounds(5, SharePool.OVERLOAD, high).pod) == 200_000


def test_the_recommended_burst_of_ten_limits_is_as_large_as_the_quota() -> None:
    """koordinator#2326: a kernel refuses a larger one."""
    pod = BurstPod(
        150_000, {"a": BurstContainer(100_000, 100_000), "b": BurstContainer(50_000, 50_000)}
    )
    wanted = pod_burst(AUTO, SharePool.IDLE, pod)
    assert wanted.containers["a"] == CpuValues(CpuQuota(100_000), 100_000)
    assert wanted.pod == CpuValues(CpuQuota(150_000), 150_000)


def test_a_pod_with_a_lifted_quota_keeps_it() -> None:
    lifted = BurstPod(None, {"a": BurstContainer(None, UNLIMITED)})
    nothing = CpuValues(None, 0)
    assert pod_burst(AUTO, SharePool.IDLE, lifted) == PodCpuValues(nothing, {"a": nothing})


@pytest.mark.parametrize(
    ("used_cores", "state"),
    [
        (None, SharePool.UNKNOWN),
        (1.79, SharePool.IDLE),
        (1.8, SharePool.COOLING),
        (2.0, SharePool.OVERLOAD),
    ],
)
def test_states_of_the_shared_cpus(used_cores: float | None, state: SharePool) -> None:
    assert share_pool(AUTO, SharedUse(8, 4000, used_cores)) is state


def test_owners_of_all_cpus_leave_nothing_to_spare() -> None:
    assert share_pool(AUTO, SharedUse(8, 8000, 0.0)) is SharePool.OVERLOAD


@given(
    st.integers(0, 10**6),
    st.none() | st.floats(-1, 1),
    st.floats(0, 10_000),
    st.floats(0, 60),
    st.floats(0, 60),
)
def test_tokens_do_not_depend_on_the_length_of_rounds(
    capacity: int, part: float | None, used_percent: float, one: float, other: float
) -> None:
    before = None if part is None else part * capacity
    at_once = tokens(capacity, before, used_percent, one + other)
    in_two = tokens(capacity, before, used_percent, one)
    in_two = tokens(capacity, in_two, used_percent, other)
    assert in_two == pytest.approx(at_once, rel=1e-9, abs=1e-3)
    assert -capacity <= at_once <= capacity


def test_a_container_pays_for_what_is_above_its_limit() -> None:
    limited = CpuBurst(cfs_quota_burst_percent=200, cfs_quota_burst_period_seconds=10)
    capacity = token_capacity(limited)
    assert capacity == 1000
    left = tokens(capacity, None, 150, 4.0)
    assert left == 50
    assert tokens(capacity, left, 80, 100.0) == 50
    assert tokens(capacity, left, 20, 100.0) == 1000
    assert token_capacity(AUTO) is None
