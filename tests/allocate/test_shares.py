import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocate.shares import unequal_resources, whole_cpus


@pytest.mark.parametrize(
    ("shares", "quota", "period", "difference"),
    [
        (2048, 200_000, 100_000, ""),
        (2048, 100_000, 50_000, ""),
        (1536, 150_000, 100_000, ""),
        (2, 0, 100_000, ""),
        (262_144, 40_000_000, 100_000, ""),
        (2048, 400_000, 100_000, "its sandbox: requests.cpu is 2, limits.cpu is 4"),
        (2048, 0, 100_000, "its sandbox: requests.cpu is 2, limits.cpu is not set"),
        # The kubelet sets no quotas; it assigned CPUs to the pod; the sandbox shows nothing.
        (2048, 0, 0, ""),
        (2048, -1, 100_000, ""),
        (0, 0, 0, ""),
    ],
)
def test_the_resources_of_a_sandbox_show_a_limit_that_differs(
    shares: int, quota: int, period: int, difference: str
) -> None:
    assert unequal_resources(shares, quota, period) == difference


@given(st.integers(10, 250_000), st.integers(10, 250_000), st.sampled_from([50_000, 100_000]))
def test_equal_amounts_are_never_taken_for_different_ones(
    requested_milli: int, limit_milli: int, period: int
) -> None:
    """As the kubelet computes both (pkg/kubelet/cm, MilliCPUToShares and MilliCPUToQuota)."""

    def difference(limit_milli: int) -> str:
        shares, quota = requested_milli * 1024 // 1000, limit_milli * period // 1000
        return unequal_resources(shares, quota, period)

    assert difference(requested_milli) == ""
    if requested_milli // 1000 != limit_milli // 1000:
        assert difference(limit_milli)


@pytest.mark.parametrize(
    ("shares", "cpus"),
    [(0, 0), (2, 0), (1023, 0), (1024, 1), (1025, 0), (1536, 0), (2048, 2), (261_120, 255),
     (262_144, 0), (-1024, 0)],
)  # fmt: skip
def test_whole_cpus_by_shares(shares: int, cpus: int) -> None:
    assert whole_cpus(shares) == cpus


def test_no_fractional_request_is_read_as_whole_cpus() -> None:
    """For all shares that the kubelet computes."""
    for milli in range(1, 20_000):
        expected = milli // 1000 if milli % 1000 == 0 else 0
        assert whole_cpus(max(2, milli * 1024 // 1000)) == expected
