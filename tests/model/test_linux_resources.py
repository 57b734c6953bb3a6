import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.linux_resources import (
    NO_QUOTA,
    NO_RESOURCES,
    RUNTIME_DEFAULTS,
    UNLIMITED,
    CpuQuota,
    LinuxResources,
    from_cri,
    to_cri,
)
from agent.model.wire import WireError, patch
from agent.proto import cri_pb2 as pb

LISTS = st.sampled_from(["0", "1-3", "0,2"])
RESOURCES = st.builds(
    LinuxResources,
    st.none() | LISTS,
    st.none() | LISTS,
    st.none() | st.integers(2, 1 << 18),
    st.none()
    | st.just(NO_QUOTA)
    | st.builds(CpuQuota, st.integers(1_000, 1 << 40), st.integers(1_000, 1_000_000)),
    st.none() | st.just(UNLIMITED) | st.integers(1, 1 << 60),
)


@pytest.mark.parametrize(
    ("microseconds", "period_microseconds", "quota"),
    [
        (50_000, 20_000, CpuQuota(50_000, 20_000)),
        (50_000, 0, CpuQuota(50_000, 100_000)),
        (50_000, -7, CpuQuota(50_000, 100_000)),
        (0, 20_000, None),
        (-1, 20_000, NO_QUOTA),
        (-9, 0, NO_QUOTA),
    ],
)
def test_a_quota_comes_with_its_period(
    microseconds: int, period_microseconds: int, quota: CpuQuota | None
) -> None:
    assert CpuQuota.of(microseconds, period_microseconds) == quota


@pytest.mark.parametrize(
    ("wanted", "present", "missing"),
    [
        (LinuxResources("1"), LinuxResources("1"), NO_RESOURCES),
        (LinuxResources("1"), LinuxResources("0-1"), LinuxResources("1")),
        (LinuxResources("1"), NO_RESOURCES, LinuxResources("1")),
        (LinuxResources("1", shares=5), LinuxResources("1"), LinuxResources(shares=5)),
        (NO_RESOURCES, LinuxResources("1", "0", 5, CpuQuota(5_000), 7), NO_RESOURCES),
        (RUNTIME_DEFAULTS, NO_RESOURCES, NO_RESOURCES),
        (RUNTIME_DEFAULTS, LinuxResources(quota=CpuQuota(5_000)), LinuxResources(quota=NO_QUOTA)),
        (
            LinuxResources(memory_limit_bytes=UNLIMITED),
            LinuxResources(memory_limit_bytes=7),
            LinuxResources(memory_limit_bytes=UNLIMITED),
        ),
        (
            LinuxResources(quota=CpuQuota(50_000)),
            LinuxResources(quota=CpuQuota(5_000, 10_000)),
            NO_RESOURCES,
        ),
        (
            LinuxResources(quota=CpuQuota(50_000)),
            LinuxResources(quota=CpuQuota(50_000, 10_000)),
            LinuxResources(quota=CpuQuota(50_000)),
        ),
    ],
)
def test_values_that_a_container_does_not_have(
    wanted: LinuxResources, present: LinuxResources, missing: LinuxResources
) -> None:
    assert wanted.missing_in(present) == missing


@given(RESOURCES, RESOURCES)
def test_a_container_with_the_missing_values_lacks_none(
    wanted: LinuxResources, present: LinuxResources
) -> None:
    missing = wanted.missing_in(present)
    assert wanted.missing_in(missing.over(present)) == NO_RESOURCES
    assert set(missing.names) <= set(wanted.names)


@given(RESOURCES, RESOURCES)
def test_set_values_replace_others(one: LinuxResources, other: LinuxResources) -> None:
    both = one.over(other)
    assert both.over(other) == one.over(both) == both
    assert set(both.names) == set(one.names) | set(other.names)
    assert both.without(*one.names) == other.without(*one.names)


@given(RESOURCES)
def test_the_cri_has_every_value(resources: LinuxResources) -> None:
    encoded = to_cri(resources)
    assert from_cri(encoded) == resources
    message = pb.LinuxContainerResources.FromString(encoded)
    assert (message.cpuset_cpus, message.cpuset_mems) == (
        resources.cpuset or "",
        resources.mems or "",
    )
    assert (message.cpu_shares, message.memory_limit_in_bytes) == (
        resources.shares or 0,
        resources.memory_limit_bytes or 0,
    )


def test_a_lifted_quota_leaves_the_period_of_the_request() -> None:
    message = pb.LinuxContainerResources(cpu_quota=5_000, cpu_period=10_000)
    message.MergeFromString(to_cri(LinuxResources(quota=NO_QUOTA)))
    assert (message.cpu_quota, message.cpu_period) == (-1, 10_000)


def test_the_last_value_of_a_field_counts_and_others_are_left_out() -> None:
    message = patch((6,), "0") + patch((6,), "1") + patch((3,), "text") + patch((9,), b"\xff")
    assert from_cri(message) == LinuxResources("1")


def test_a_list_that_is_not_utf8_is_an_error() -> None:
    with pytest.raises(WireError):
        from_cri(patch((6,), b"\xff"))


def test_huge_pages_are_read_and_never_written() -> None:
    limit = patch((1,), "2MB") + patch((2,), 4 << 20)
    resources = from_cri(patch((8,), limit))
    assert resources == LinuxResources(hugepages={2 << 20: 4 << 20})
    assert to_cri(resources) == b""
