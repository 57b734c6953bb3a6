import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.cgroup import limits
from agent.cgroup.hierarchy import MEMS
from agent.cgroup.limits import MAX, MEMORY, MEMORY_MAX, MIGRATE, QUOTA, SHARES, WEIGHT
from agent.model.linux_resources import NO_QUOTA, UNLIMITED, CpuQuota

COST = "io.cost.qos 8:0"


@pytest.mark.parametrize(
    ("quota", "period", "text"),
    [
        (CpuQuota(50_000), "100000", "50000"),
        (CpuQuota(50_000), "20000", "10000"),
        (CpuQuota(50_001), "20000", "10001"),
        (CpuQuota(10_000, 20_000), "100000", "50000"),
        (CpuQuota(1_000), "10000", "1000"),
        (CpuQuota(250_000), "1000000", "2500000"),
        (NO_QUOTA, "20000", "-1"),
    ],
)
def test_quota_is_converted_to_the_current_period(quota: CpuQuota, period: str, text: str) -> None:
    assert limits.quota_text(quota, f"-1 {period}") == text
    v2 = limits.max_text(quota, f"max {period}")
    assert v2 == f"{'max' if text == '-1' else text} {period}"
    assert limits.max_text(quota, f"7000 {period}") == v2


@pytest.mark.parametrize(
    ("text", "quota"),
    [
        ("50000 100000", CpuQuota(50_000)),
        ("10000 20000", CpuQuota(10_000, 20_000)),
        ("-1 100000", NO_QUOTA),
        ("max 20000", NO_QUOTA),
    ],
)
def test_quota_is_read_with_its_period(text: str, quota: CpuQuota) -> None:
    assert limits.quota_of(text) == quota


# The kubelet's conversion: KEP-2254, and runc before 1.4.
@pytest.mark.parametrize(
    ("shares", "weight"),
    [(0, 1), (2, 1), (1024, 39), (512, 20), (262_144, 10_000), (10**9, 10_000)],
)
def test_weight(shares: int, weight: int) -> None:
    assert limits.weight(shares) == weight


@given(st.integers(1, 10_000))
def test_shares_of_a_weight_are_the_fewest_with_that_weight(weight: int) -> None:
    shares = limits.shares_of_weight(str(weight))
    assert limits.weight(shares) == weight
    assert shares == 2 or limits.weight(shares - 1) == weight - 1


def test_weight_0_is_the_minimum_of_shares() -> None:
    assert limits.shares_of_weight("0") == 2


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("max", UNLIMITED),
        ("9223372036854771712", UNLIMITED),
        ("9223372036854710272", UNLIMITED),  # pages of 64 KiB
        ("-1", UNLIMITED),
        ("4096", 4096),
    ],
)
def test_memory(text: str, limit: int) -> None:
    assert limits.memory_of(text) == limit


@pytest.mark.parametrize(
    ("file", "one", "other"),
    [
        (QUOTA, "-1", "-1"),
        (QUOTA, "-1", "-2"),
        (MAX, "max 100000", "max 50000"),
        (MAX, "5000 10000", "50000 100000"),
        (SHARES, "0", "2"),
        (SHARES, "262144", "999999"),
        (MEMORY, "9223372036854771712", "-1"),
        (MEMORY, "4096", "5000"),
        (MEMORY_MAX, "1048576", "1048577"),
        (MEMS, "0,1", "0-1"),
        ("io.max 8:0 rbps", "", "max"),
        ("blkio.throttle.read_bps_device 8:0", "", "0"),
        ("io.weight 8:0", "", "default"),
        (COST, "", "enable=0 ctrl=user rlat=9"),
        (COST, "enable=1 ctrl=auto rlat=9", "enable=1 ctrl=auto rlat=8"),
        (COST, "enable=1 ctrl=user rpct=5", "enable=1 ctrl=user rpct=5.00"),
        ("io.cost.model 8:0", "", "ctrl=auto model=linear rbps=3"),
    ],
)
def test_equal_values(file: str, one: str, other: str) -> None:
    assert limits.same(file, one, other)
    assert limits.same(file, other, one)
    assert not limits.grows(file, one, other)


@pytest.mark.parametrize(
    ("file", "less", "more"),
    [
        (QUOTA, "1000", "2000"),
        (QUOTA, "1000", "-1"),
        (MAX, "1000 100000", "1000 10000"),
        (MAX, "1000 100000", "max 100000"),
        (SHARES, "2", "3"),
        (WEIGHT, "1", "2"),
        (MEMORY, "4096", "-1"),
        (MEMORY_MAX, "4096", "max"),
        (MEMS, "0", "0-1"),
        (MIGRATE, "0", "1"),
        ("io.max 8:0 rbps", "1", "max"),
        ("blkio.throttle.read_bps_device 8:0", "1", ""),
        ("io.bfq.weight 8:0", "", "100"),
        (COST, "", "enable=1 ctrl=user rlat=9"),
        ("io.cost.model 8:0", "ctrl=auto rbps=3", "ctrl=user rbps=3"),
    ],
)
def test_smaller_and_larger_values(file: str, less: str, more: str) -> None:
    assert not limits.same(file, less, more)
    assert limits.grows(file, less, more)
    assert not limits.grows(file, more, less)


def test_other_memory_nodes_count_as_larger_in_both_directions() -> None:
    assert limits.grows(MEMS, "0", "1")
    assert limits.grows(MEMS, "1", "0")


def test_the_parents_memory_nodes_may_be_a_superset() -> None:
    assert limits.grows(MEMS, "0", "")


@pytest.mark.parametrize(
    ("file", "text"),
    [(MAX, "max"), (MAX, "max 0"), (MAX, "x 1"), (QUOTA, ""), (MEMORY, "x"), (MEMS, "x")],
)
def test_an_invalid_text_is_an_error(file: str, text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - int()'s and CpuSet's too
        limits.same(file, text, "1 1")


def test_a_file_without_a_limit_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"'cpu\.uclamp' is not a file of limits"):
        limits.same("cpu.uclamp", "0", "1")
