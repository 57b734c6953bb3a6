"""What the vectors of koordlet's prediction do not show."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent.usage.prediction import (
    COLD_SECONDS,
    CPU_BUCKETS,
    MARGIN,
    MEMORY_BUCKETS,
    PROD,
    SYSTEM,
    UNCLASSED,
    DecayingHistogram,
    Peak,
    PredictedPod,
    predicted,
)

DAY = 86_400.0
NOTHING = {SYSTEM: Peak(), PROD: Peak(), UNCLASSED: Peak()}


def test_the_layouts_have_koordlets_number_of_buckets() -> None:
    assert (CPU_BUCKETS.count, MEMORY_BUCKETS.count) == (158, 205)
    assert [CPU_BUCKETS.of(value) for value in (0.0, 0.0249, 0.025, 1e9)] == [0, 0, 1, 157]


def test_a_histogram_without_samples_has_no_peak() -> None:
    histogram = DecayingHistogram(CPU_BUCKETS)
    assert histogram.empty
    assert histogram.percentile(0.95) == 0
    assert DecayingHistogram.restored(CPU_BUCKETS, histogram.checkpoint()).empty


def test_old_samples_fade() -> None:
    histogram = DecayingHistogram(CPU_BUCKETS)
    histogram.add(8.0, 0.0)
    for day in range(1, 8):
        histogram.add(1.0, day * DAY)
    assert 1.0 < histogram.percentile(0.95) < 1.1
    histogram.add(1.0, 1000 * DAY)
    assert 1.0 < histogram.percentile(1.0) < 1.1, "more than 100 half-lives later it is gone"


@given(st.lists(st.floats(0, 2048), min_size=1, max_size=50))
def test_a_peak_is_at_most_a_bucket_above_the_largest_sample(values: list[float]) -> None:
    histogram = DecayingHistogram(CPU_BUCKETS)
    for at, value in enumerate(values):
        histogram.add(value, float(at))
    largest = min(max(values), CPU_BUCKETS.start(CPU_BUCKETS.count - 1))
    assert largest * 0.999 <= histogram.percentile(1.0) <= max(0.025, largest) * 1.06 + 0.03
    assert histogram.percentile(0.6) <= histogram.percentile(0.95)


amounts = st.builds(Peak, st.integers(0, 64_000), st.integers(0, 1 << 38))
pods = st.builds(
    PredictedPod,
    amounts,
    st.none() | amounts,
    st.sampled_from([0.0, COLD_SECONDS]),
    ends=st.booleans(),
)


@given(amounts, st.lists(pods, max_size=6), amounts, amounts)
def test_no_more_is_reclaimable_than_is_requested_and_left(
    allocatable: Peak, prod: list[PredictedPod], system: Peak, together: Peak
) -> None:
    classes = {**NOTHING, SYSTEM: system, PROD: together}
    found = predicted(allocatable, prod, classes)
    assert found is not None
    requested = sum(pod.request.cpu_milli for pod in prod if not pod.ends)
    assert 0 <= found.reclaimable.cpu_milli <= requested
    assert found.reclaimable.cpu_milli <= max(0, allocatable.cpu_milli - found.peak.cpu_milli)
    assert found.peak.cpu_milli >= int((system + together).cpu_milli * MARGIN)
    assert predicted(allocatable, prod, {SYSTEM: system, PROD: together}) is None
